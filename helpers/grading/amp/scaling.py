"""04.scale: the largest power of two that carries gradients into fp16 without an overflow. Runs on one rank."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.amp import LAB
from helpers.grading.drawing import Draw, laid_out
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_only
from helpers.grading.kit.stories import number
from helpers.grading.task import Finding, Task, Trial, World
from helpers.learner.words import Words

FP16 = torch.finfo(torch.float16)
ROUNDS_UP = 65520.0  # from here on the cast gives infinity; what lies below is rounded down to FP16.max
SUBNORMAL = 2.0**-24  # the smallest that fp16 holds
CASES = (  # what is special, exponent of the largest value, its tensor, its sign, between which it lies in its octave
    ("ordinary", -14, 0, 1, (1.1, 1.9)),
    ("negative", -9, 0, -1, (1.1, 1.9)),
    ("in the last tensor", -12, -1, 1, (1.1, 1.9)),
    ("a power of two", -11, 0, 1, (1.0, 1.0)),
    ("below 2**-23", -24, 0, 1, (1.55, 1.9)),  # fp16 rounds 1.55 steps to two
    ("above 65504", 18, 0, -1, (1.1, 1.9)),
    ("rounded down to 65504", -7, 0, 1, (1.99906, 1.99948)),
    ("rounded up to 65536", -5, 0, 1, (1.99954, 1.99996)),
    ("65520 itself, halfway", -3, 0, 1, (ROUNDS_UP / 2**15, ROUNDS_UP / 2**15)),
    ("tiny", -100, 0, 1, (1.1, 1.9)),
    ("huge", 100, -1, 1, (1.1, 1.9)),
)


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Three tensors a case, whose largest value is set by hand so that each known mistake shows; one is all zero."""
    return [{"cases": [gradients_of(rng, *case) for case in CASES]} for _ in range(world_size)]


def gradients_of(
    rng: Draw, kind: str, exponent: int, place: int, sign: int, between: tuple[float, float]
) -> list[Tensor]:
    low, high = between
    exponent += 0 if kind == "below 2**-23" else rng.integer(-2, 2)
    largest = (low + (high - low) * float(torch.rand((), generator=rng))) * 2.0**exponent
    tensors = [
        making.normal(rng, 2 * rng.integer(2, 4)).clamp(-3, 3) * (largest / 40 / 2 ** (3 * i)) for i in (0, 1, 2)
    ]
    tensors[1] *= 0
    tensors[place][rng.integer(0, 3)] = sign * largest
    tensors[0][rng.integer(0, 3)] *= 1.0 if place == 0 else 0.0
    return [tensors[0].float(), tensors[1].view(2, -1).float(), laid_out(tensors[2].view(2, -1).float(), "transposed")]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> list[Any]:
    return [submitted([tensor.clone() for tensor in tensors]) for tensors in inputs["cases"]]


# -- the right answer, and what each known mistake answers -----------------------------------------------------------
def largest_of(tensors: Sequence[Tensor]) -> float:
    return max(tensor.abs().max().item() for tensor in tensors)


def fits(size: float, limit: float = ROUNDS_UP) -> float:
    """The largest power of two that keeps size * scale at or below the limit, and below ROUNDS_UP."""
    scale = 2.0 ** math.floor(math.log2(limit / size))
    return scale / 2 if size * scale == limit == ROUNDS_UP else scale


def cast_first(tensors: Sequence[Tensor], limit: float) -> float | None:
    """From the values as fp16 holds them before they are scaled; None where those say nothing."""
    largest = largest_of([tensor.half() for tensor in tensors])
    return fits(largest, limit) if 0 < largest < math.inf else None


def lifted(tensors: Sequence[Tensor], to: float) -> float:
    """What brings the smallest value up to `to`."""
    smallest = min(tensor[tensor != 0].abs().min().item() for tensor in tensors if tensor.any())
    return 2.0 ** math.ceil(math.log2(to / smallest))


def below_2_16(tensors: Sequence[Tensor]) -> float:
    """From the exponent alone: what stays below 2**16."""
    return 2.0 ** (16 - math.frexp(largest_of(tensors))[1])


def under(wrong: Callable[[Sequence[Tensor], float], float | None]) -> list[Callable[[Sequence[Tensor]], float | None]]:
    """A mistake is the same with either limit, the right one and the one that most people know."""
    return [functools.partial(wrong, limit=limit) for limit in (ROUNDS_UP, FP16.max)]


WRONG = {
    "sign_forgotten": under(lambda tensors, limit: fits(max(tensor.max().item() for tensor in tensors), limit)),
    "first_gradient_only": [
        *under(lambda tensors, limit: fits(largest_of(tensors[:1]), limit)),
        *under(lambda tensors, limit: fits(largest_of(tensors[-1:]), limit)),
    ],
    "never_below_one": under(lambda tensors, limit: max(1.0, fits(largest_of(tensors), limit))),
    "cast_first": under(cast_first),
    "limit_too_high": [
        lambda tensors: fits(largest_of(tensors), 2.0**16),
        lambda tensors: 2.0 ** math.floor(math.log2(ROUNDS_UP / largest_of(tensors))),
        below_2_16,
    ],
    "limit_too_low": [lambda tensors: fits(largest_of(tensors), FP16.max)],
    "rounded_up": [
        lambda tensors: 2.0 ** math.ceil(math.log2(FP16.max / largest_of(tensors))),
        lambda tensors: 2.0 ** math.ceil(math.log2(ROUNDS_UP / largest_of(tensors))),
    ],
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
    hints=LAB.hints(*WRONG),
    world_sizes=(1,),
    keeps=("gradients",),
)
