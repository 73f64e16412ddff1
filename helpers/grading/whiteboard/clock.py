"""wb.clock: two ranks' clocks on one: offset and drift, from the moments at which both left the same barriers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.grading.whiteboard import LAB
from helpers.learner.words import Words

Line = tuple[float, float]  # offset in seconds, drift
EPOCH = 1.8e9  # seconds since 1970
DIGITS = 1e-6  # relative: another order of the same sums differs by less


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Seconds since the machine started; since 1970 in the second and the fourth case; one barrier in the third."""
    number = rng.case.number
    count = 1 if number == 2 else rng.integer(6, 12)
    mine = 100 + rng.normal(count).abs().add(0.5).cumsum(0) + EPOCH * (number in (1, 3))
    offset, drift = rng.one_of(-1, 1) * rng.integer(20, 80) / 1000, rng.one_of(-1, 1) * rng.integer(40, 90) / 1e6
    jitter = rng.normal(count) / 1e4
    return [{"mine": mine, "yours": mine + offset + drift * (mine - mine[0]) + jitter}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    with one_thread():
        result = submitted(inputs["mine"].clone(), inputs["yours"].clone())
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    if not is_pair or not all(isinstance(one, float | int) or _is_number(one) for one in result):
        return {"returned": type(result).__name__}
    return {"line": torch.tensor([float(one) for one in result], dtype=torch.float64)}


def _is_number(one: Any) -> bool:
    return isinstance(one, Tensor) and one.numel() == 1


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    got = world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=RETURNED.format(got["returned"]))
        return
    lines = of_all(**world.inputs[0])
    right, line = lines.pop("right"), tuple(got["line"].tolist())
    known = [key for key, wrong in lines.items() if alike(wrong, line) and not alike(wrong, right)]
    if not known and world.case.number in (1, 3):
        known = ["digits_lost"]
    told, wanted = (f"{offset * 1e3:.6g} ms, {drift * 1e6:.6g} µs/s" for offset, drift in (line, right))
    en, zh = f"offset and drift are {told}, expected {wanted}", f"偏移和漂移是 {told}，应为 {wanted}"
    yield expect(alike(right, line), en, zh, mistakes=known)


def alike(one: Line, other: Line) -> bool:
    return all(
        math.isclose(a, b, rel_tol=DIGITS, abs_tol=1e-12) or math.isnan(a) and not math.isfinite(b)
        for a, b in zip(one, other, strict=True)
    )


def of_all(mine: Tensor, yours: Tensor) -> dict[str, Line]:
    """The right line, and what known mistakes give: by the key of a hint."""
    since, ahead = mine - mine[0], yours - mine
    far, high = since - since.mean(), ahead - ahead.mean()
    drift = float((far * high).sum() / far.square().sum()) if len(mine) > 1 else 0.0
    middle, first = float(ahead.mean()), float(ahead[0])
    right = middle - drift * float(since.mean())
    ends = float((ahead[-1] - ahead[0]) / since[-1])
    through = float((since * (ahead - first)).sum() / since.square().sum())
    return {
        "right": (right, drift),
        "one_barrier": (math.nan, math.nan),
        "turned_round": (-right, -drift),
        "slope_for_drift": (right, 1 + drift),
        "offset_at_zero": (middle - drift * float(mine.mean()), drift),
        "offset_in_the_middle": (middle, drift),
        "drift_forgotten": (middle, 0.0),
        "first_and_last": (first, ends),
        "first_is_exact": (first, through),
    }


def recognise_failure(failure: RunFailure) -> list[str]:
    return ["one_barrier"] if failure.type_name in ("ZeroDivisionError", "StatisticsError") else []


RETURNED = Words(
    en="one_clock returns {}, expected a pair of numbers: (offset, drift)",
    zh="one_clock 返回的是 {}，应为一对数：(offset, drift)",
)
CLOCK = Task(
    key="wb.clock",
    signature="one_clock(mine, yours)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_failure,
    hints=LAB.hints(
        "one_barrier",
        "turned_round",
        "slope_for_drift",
        "offset_at_zero",
        "offset_in_the_middle",
        "drift_forgotten",
        "first_and_last",
        "first_is_exact",
        "digits_lost",
    ),
    world_sizes=(1,),
    runs_on="process",
    variations=Variations(min_cases=4),
    must_not_change=("mine", "yours"),
)
