"""05.activations: bytes that one transformer layer keeps for backward.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4: equation 1 (one
GPU), 2 (tensor parallel) and 4 (with sequence parallelism), with 2-byte numbers and 1-byte dropout masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from helpers.grading.drawing import CaseGenerator
from helpers.grading.kit.meter import as_integer
from helpers.grading.memory import LAB
from helpers.grading.memory.counting import judge_numbers, run_submission
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """One GPU and several, with and without sequence parallelism, each with and without flash attention."""
    kinds = [(split, sp, flash) for split in (False, True) for sp in (False, True) for flash in (False, True)]
    return [{"cases": [telling(rng, *kind) for kind in kinds]}]


def telling(rng: CaseGenerator, is_split: bool, sequence_parallel: bool, flash: bool) -> dict[str, Any]:
    """Sizes with which no two mistakes give one number: with t = 3, say, 4-byte numbers look like no t at all."""
    while True:
        t = rng.integer(2, 8) if is_split else 1
        heads = t * rng.integer(2, 8)  # t divides heads and s, the two that it cuts
        sizes = {"s": t * rng.integer(30, 300), "b": rng.integer(1, 7), "h": heads * rng.integer(16, 128), "a": heads}
        case = sizes | {"t": t, "sequence_parallel": sequence_parallel, "flash": flash}
        wrong = [value for value in known_mistakes(case).values() if value != kept(case)]
        if len(set(wrong)) == len(wrong):
            return case


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    cases = world.inputs[0]["cases"]
    names = [BYTES.format(**case) for case in cases]
    wrong = [known_mistakes(case) for case in cases]
    mistakes = {key: [one[key] for one in wrong] for key in MISTAKES}
    yield from judge_numbers(names, [kept(case) for case in cases], world.outputs[0], mistakes)


def known_mistakes(case: dict[str, Any]) -> dict[str, int | float]:
    return {key: kept(case, **wrong) for key, wrong in MISTAKES.items()}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How a person counts. Without arguments: as the paper does."""

    number: int = 2  # bytes
    mask: int = 1
    wide: int = 4  # times hidden, in the feed-forward
    heads: bool = True
    maps: bool = True
    flash: Callable[[bool], bool] = lambda flash: flash
    split_maps: bool = True
    split_blocks: Callable[[int], int] = lambda t: t
    split_rest: Callable[[int, bool], int] = lambda t, sequence_parallel: t if sequence_parallel else 1


def kept(case: dict[str, Any], **counted_as: Any) -> int | float:
    """Bytes on one rank of the layer, as this person counts."""
    by = Counted(**counted_as)
    s, b, h, t = (case[name] for name in "sbht")
    whole_numbers, masks = 4, 2  # inputs of both norms, of attention and of the feed-forward; dropout after both
    split_numbers = 4 + 2 * by.wide  # q, k, v, what the projection reads; what GELU reads, what the down matrix reads
    rest = Fraction(
        s * b * h * (whole_numbers * by.number + masks * by.mask), by.split_rest(t, case["sequence_parallel"])
    )
    blocks = Fraction(s * b * h * split_numbers * by.number, by.split_blocks(t))
    per_map = 2 * by.number + by.mask  # softmax's output, the same after dropout, dropout's mask
    maps = Fraction(per_map * (case["a"] if by.heads else 1) * s * s * b, by.split_blocks(t) if by.split_maps else 1)
    total = rest + blocks + (maps if by.maps and not by.flash(case["flash"]) else 0)
    return as_integer(float(total)) if total.denominator > 1 else int(total)


MISTAKES: dict[str, dict[str, Any]] = {
    "map_forgotten": {"maps": False},
    "heads_forgotten": {"heads": False},
    "masks_of_two_bytes": {"mask": 2},
    "masks_left_out": {"mask": 0},
    "four_byte_numbers": {"number": 4},
    "feed_forward_not_wide": {"wide": 1},
    "flash_keeps_maps": {"flash": lambda flash: False},
    "tp_splits_all": {"split_rest": lambda t, sequence_parallel: t},
    "tp_ignored": {"split_blocks": lambda t: 1, "split_rest": lambda t, sequence_parallel: 1},
    "maps_not_split": {"split_maps": False},
    "sequence_parallel_ignored": {"split_rest": lambda t, sequence_parallel: 1},
}
BYTES = Words(
    en="the number of bytes (s {s}, b {b}, h {h}, a {a}, t {t}, sequence_parallel {sequence_parallel}, flash {flash})",
    zh="字节数（s {s}，b {b}，h {h}，a {a}，t {t}，sequence_parallel {sequence_parallel}，flash {flash}）",
)
ACTIVATIONS = Task(
    key="05.activations",
    signature="layer_activations(s, b, h, a, t, sequence_parallel, flash)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(*MISTAKES),
    world_sizes=(1,),
    runs_on="process",
)
