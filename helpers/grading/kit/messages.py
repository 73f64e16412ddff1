"""What tasks of messages share: a function called several times, on send and receive alone, all of it waited for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helpers.grading.kit.comparisons import expect, expect_only
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure
from helpers.records import CommEvent, CommLog

RETURNED = "returned"
MESSAGE_HINTS = ("calls_a_collective", "sends_first", "receives_first", "not_waited")  # hints that fit each such task
Act = Callable[[Callable[..., Any], dict[str, Any], RankContext], Any]


def each_call(run_one: Act) -> Act:
    """An `act` for inputs {"calls": [...]}: the outputs of each call, whose end is marked."""

    def run_submission(submitted: Callable[..., Any], inputs: dict[str, Any], context: RankContext) -> list[Any]:
        outputs = []
        for one in inputs["calls"]:
            outputs.append(run_one(submitted, one, context))
            context.mark(RETURNED)
        return outputs

    return run_submission


def calls_of(world: JudgedWorld) -> Iterator[JudgedWorld]:
    """Each call as a World of its own: its inputs, its outputs, its part of the logs, and when it returned."""
    ends = [[when for name, when in marks if name == RETURNED] for marks in world.marks]
    for number in range(len(world.inputs[0]["calls"])):
        logs = []
        for log, times in zip(world.logs, ends, strict=True):
            before, end = times[number - 1] if number else 0.0, times[number]
            logs.append(CommLog(events=tuple(event for event in log.events if before < event.start < end)))
        yield JudgedWorld(
            size=world.size,
            inputs=[one["calls"][number] for one in world.inputs],
            outputs=[output[number] for output in world.outputs],
            logs=logs,
            marks=[[(RETURNED, times[number])] for times in ends],
        )


def expect_messages(world: JudgedWorld) -> Iterator[Judgement]:
    """Of one call: nothing but send and receive, and all of it complete when the function returned."""
    yield from expect_only(world, ["send", "recv"], mistakes=["calls_a_collective"])
    for rank, (log, marks) in enumerate(zip(world.logs, world.marks, strict=True)):
        late = sorted({event.op for event in log.events if event.end > marks[0][1]})
        yield expect(
            not late,
            f"it returns before its {' and '.join(late)} is complete",
            f"{' 和 '.join(late)} 还没完成就返回了",
            rank=rank,
            mistakes=["not_waited"],
        )


def sends_of(world: JudgedWorld, rank: int) -> list[CommEvent]:
    """In the order of issuing."""
    return [event for event in world.logs[rank].events if event.op == "send"]


def recognise_among(*keys: str) -> Callable[[RunFailure], Sequence[str]]:
    """What a hang, a mismatch or an exception tells, as far as a task has the hint."""
    return lambda failure: [key for key in _recognised(failure) if key in keys]


def _recognised(failure: RunFailure) -> Sequence[str]:
    if failure.kind == "hang" and failure.text.startswith("every rank waits"):
        sends, receives = failure.is_waiting_in("send"), failure.is_waiting_in("recv")
        return [] if sends == receives else ["sends_first" if sends else "receives_first"]
    dtypes = re.findall(r"\b(?:sends|expects) (\w+) x \d", failure.text)
    if failure.kind == "mismatch" and dtypes:
        return ["sizes_differ"] if len(set(dtypes)) == 1 else []
    return ["sends_to_itself"] if is_to_itself(failure) else []


def is_to_itself(failure: RunFailure) -> bool:
    """Whether a rank named itself as its peer: the wire refuses it, and torch its own blocking send."""
    return re.search(r"to or from itself|should not be the same as the rank", failure.text) is not None
