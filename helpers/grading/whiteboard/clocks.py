"""Judges wb.clock: the offset and the drift between two ranks' clocks, from the times at which both left the same
barriers.

A line gives one clock from the other: `yours` = `mine` + offset + drift * (time since the first barrier). The right
line is fitted by least squares.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. The
mistakes that learners often make are in mistakes.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.plain_data import simplified
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    RankContext,
    RunFailure,
    Task,
    Variations,
)
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.whiteboard import LAB

words = LAB.messages

Line = tuple[float, float]  # offset in seconds, and drift in seconds per second
EPOCH = 1.8e9  # seconds from 1970 to about today
SINCE_1970 = (1, 3)  # numbers of the cases whose clocks count from 1970
TOLERANCE = 1e-6  # relative; the same sums in another order differ by less


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """When each rank left the barriers, by its own clock; in the third case there is a single barrier.

    The clocks count seconds since the machine started, and since 1970 in the cases SINCE_1970.
    """
    number = rng.case.number
    count = 1 if number == 2 else rng.integer(6, 12)  # of barriers
    start = EPOCH if number in SINCE_1970 else 0.0
    # All barriers come after 100 s, so that the offset at time 0, a known mistake, differs from that at the first one.
    mine = 100 + rng.normal(count).abs().add(0.5).cumsum(0) + start
    # An offset of 20 to 80 ms, a drift of 40 to 90 µs/s, and a jitter of about 0.1 ms.
    offset, drift = rng.one_of(-1, 1) * rng.integer(20, 80) / 1000, rng.one_of(-1, 1) * rng.integer(40, 90) / 1e6
    jitter = rng.normal(count) / 1e4
    return [{"mine": mine, "yours": mine + offset + drift * (mine - mine[0]) + jitter}]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The learner's line as a list of two numbers, or under "returned" the type of an answer that is no line."""
    with one_thread():
        result = submitted(inputs["mine"].clone(), inputs["yours"].clone())
    values = simplified(result)  # a tensor of one element as its number, a tuple as a list
    if not (isinstance(values, list) and len(values) == 2 and all(isinstance(one, float | int) for one in values)):
        return {"returned": type(result).__name__}
    return {"line": values}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """Compares the learner's line with the right one."""
    got = world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=words["one_clock_returns"].format(got["returned"]))
        return
    right, line = right_line(**world.inputs[0]), tuple(got["line"])
    ok = all(math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=1e-12) for pair in zip(right, line, strict=True))
    shown, expected = (f"{offset * 1e3:.6g} ms, {drift * 1e6:.6g} µs/s" for offset, drift in (line, right))
    message = words["offset_and_drift"].format(shown, expected, len(world.inputs[0]["mine"]))
    # Named here: squares of seconds since 1970 have more digits than float64, and what is left of them depends on the
    # order of the operations. A mistake of another kind also fails in the other cases.
    yield expect(ok, message, mistakes=["digits_lost"] if world.case.number in SINCE_1970 else [])


def right_line(mine: Tensor, yours: Tensor) -> Line:
    """The line by least squares: its value at the first barrier and its slope, which is 0 for a single barrier."""
    elapsed, difference = mine - mine[0], yours - mine
    centred = elapsed - elapsed.mean()
    drift = float((centred * difference).sum() / centred.square().sum()) if len(mine) > 1 else 0.0
    return float(difference.mean()) - drift * float(elapsed.mean()), drift


def recognise_failure(failure: RunFailure) -> list[str]:
    """With one barrier, a formula for the slope divides by zero, and `statistics` refuses to fit a line."""
    return ["one_barrier"] if failure.type_name in ("ZeroDivisionError", "StatisticsError") else []


CLOCK = Task(
    key="wb.clock",
    signature="one_clock(mine, yours)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=recognise_failure,
    runs_on="process",
    variations=Variations(min_cases=4),
    must_not_change=("mine", "yours"),
)
