"""04.scale: the largest power of two that carries gradients into fp16 without an overflow. Runs on one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.amp import hints
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_only
from helpers.grading.kit.stories import number
from helpers.grading.task import Finding, Task, Trial, World
from helpers.words import Words

FP16 = torch.finfo(torch.float16)
SUBNORMAL = 2.0**-24  # the smallest that fp16 holds
CASES = (
    ("ordinary", -14, 0, 1),  # what is special, exponent of the largest value, its tensor, its sign
    ("negative", -9, 0, -1),
    ("in the last tensor", -12, -1, 1),
    ("a power of two", -11, 0, 1),
    ("below 2**-23", -24, 0, 1),
    ("above 65504", 18, 0, -1),
)


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Three tensors a case, whose largest value is set by hand so that each known mistake shows."""
    cases = []
    for kind, exponent, place, sign in CASES:
        exponent += 0 if kind == "below 2**-23" else making.integer(rng, -2, 2)
        least = 0.55 if kind == "below 2**-23" else 0.1  # fp16 rounds 1.55 steps to two
        mantissa = 1 + (0 if kind == "a power of two" else least + (0.9 - least) * float(torch.rand((), generator=rng)))
        largest = mantissa * 2.0**exponent
        tensors = [making.normal(rng, making.integer(rng, 4, 9)).float() for _ in range(3)]
        tensors = [tensor.clamp(-3, 3) * (largest / 40 / 2 ** (3 * i)) for i, tensor in enumerate(tensors)]
        tensors[1][0] = 0.0
        tensors[place][making.integer(rng, 0, 3)] = sign * largest
        cases.append(tensors)
    return [{"cases": cases} for _ in range(world_size)]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    return [submitted([tensor.clone() for tensor in tensors]) for tensors in inputs["cases"]]


# -- the right answer, and what each known mistake answers -----------------------------------------------------------
def largest_of(tensors: Sequence[Tensor]) -> float:
    return max(tensor.abs().max().item() for tensor in tensors)


def fits(size: float, limit: float = FP16.max) -> float:
    """The largest power of two that keeps size * scale at or below the limit."""
    return 2.0 ** math.floor(math.log2(limit / size))


def cast_first(tensors: Sequence[Tensor]) -> float | None:
    """From the values as fp16 holds them before they are scaled; None where those say nothing."""
    largest = largest_of([tensor.half() for tensor in tensors])
    return fits(largest) if 0 < largest < math.inf else None


def lifted(tensors: Sequence[Tensor], to: float) -> float:
    """What brings the smallest value up to `to`."""
    smallest = min(tensor[tensor != 0].abs().min().item() for tensor in tensors)
    return 2.0 ** math.ceil(math.log2(to / smallest))


WRONG = {
    "sign_forgotten": [lambda tensors: fits(max(tensor.max().item() for tensor in tensors))],
    "first_gradient_only": [
        lambda tensors: fits(largest_of(tensors[:1])),
        lambda tensors: fits(largest_of(tensors[-1:])),
    ],
    "never_below_one": [lambda tensors: max(1.0, fits(largest_of(tensors)))],
    "cast_first": [cast_first],
    "limit_too_high": [lambda tensors: fits(largest_of(tensors), 2.0**16)],
    "rounded_up": [lambda tensors: 2.0 ** math.ceil(math.log2(FP16.max / largest_of(tensors)))],
    "half_the_range": [
        lambda tensors: fits(largest_of(tensors)) / 2,
        lambda tensors: fits(largest_of(tensors), 2.0**15),
    ],
    "not_a_power": [lambda tensors: FP16.max / largest_of(tensors), lambda tensors: 2.0**16 / largest_of(tensors)],
    "smallest_lifted": [lambda tensors: lifted(tensors, SUBNORMAL), lambda tensors: lifted(tensors, FP16.tiny)],
}


def judge(world: World) -> Iterator[Finding]:
    cases, answers = world.inputs[0]["cases"], [number(answer) for answer in world.outputs[0]]
    known = tuple(key for key, several in WRONG.items() if any(_explains(one, cases, answers) for one in several))
    for tensors, answer in zip(cases, answers, strict=True):
        right = fits(largest_of(tensors))
        ok = isinstance(answer, float) and answer == right
        says = SAYS.format(f"{largest_of(tensors):.6g}", f"{_said(answer)}", f"{_said(right)}")
        yield Finding(ok=ok, says=says, mistakes=() if ok else known)
    yield from expect_only(world, [])


SAYS = Words(
    en="for gradients up to {} in size the scale is {}, expected {}", zh="梯度绝对值最大为 {} 时，scale 是 {}，应为 {}"
)


def _explains(wrong: Any, cases: Sequence[Sequence[Tensor]], answers: Sequence[Any]) -> bool:
    expected = [wrong(tensors) for tensors in cases]
    pairs = [(one, answer) for one, answer in zip(expected, answers, strict=True) if one is not None]
    return all(isinstance(got, float) and math.isclose(one, got, rel_tol=1e-5) for one, got in pairs)


def _said(value: Any) -> str:
    if not isinstance(value, float):
        return repr(value)[:60]
    power = math.log2(value) if 0 < value < math.inf else 0.5
    return f"2**{power:.0f}" if power.is_integer() else f"{value:.6g}"


SCALE = Task(
    key="04.scale",
    signature="choose_scale(gradients)",
    make=make,
    act=act,
    judge=judge,
    hints=hints.of(*WRONG),
    world_sizes=(1,),
)
