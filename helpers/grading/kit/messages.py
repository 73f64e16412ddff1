"""What tasks about send and receive share: several calls of one function, and what each call sent and waited for.

Used by labs 01, 06 and 13. Such a task runs the learner's function several times in one world, which is a number of
ranks that run together: its inputs are {"calls": [inputs of the first call, …]} on each rank. `run_each_call` runs
them, and `worlds_of_calls` takes the world apart again, so that a judge sees one call at a time. A mark is an instant
that a rank notes, on the clock of the communication log.

A mistake is a wrong solution that learners often write, such as "not_waited"; its name is the key of the hint about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helpers.grading.kit.comparisons import expect, expect_only_ops
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure
from helpers.learner.words import book
from helpers.records import CommEvent, CommLog

words = book("values")  # sentences in English and Chinese
RETURNED = "returned"  # the mark that a rank sets when a call returned
RunSubmission = Callable[[Callable[..., Any], dict[str, Any], RankContext], Any]  # a task's run_submission


def run_each_call(run_one: RunSubmission) -> RunSubmission:
    """A `run_submission` for inputs {"calls": [...]}.

    It runs `run_one`, the `run_submission` of one call, with the inputs of each call, and marks when the call returned.
    """

    def run_submission(submitted: Callable[..., Any], inputs: dict[str, Any], context: RankContext) -> list[Any]:
        outputs = []
        for call in inputs["calls"]:
            outputs.append(run_one(submitted, call, context))
            context.mark(RETURNED)
        return outputs

    return run_submission


def worlds_of_calls(world: JudgedWorld) -> Iterator[JudgedWorld]:
    """Each call as a JudgedWorld of its own: its inputs and outputs, its part of the logs, and when it returned."""
    ends = [[seconds for name, seconds in marks if name == RETURNED] for marks in world.marks]  # as [rank][call]
    for number in range(len(world.inputs[0]["calls"])):
        logs = []
        for log, times in zip(world.logs, ends, strict=True):
            start, end = times[number - 1] if number else 0.0, times[number]  # a call begins where the one before ended
            logs.append(CommLog(events=tuple(event for event in log.events if start < event.start < end)))
        yield JudgedWorld(
            size=world.size,
            inputs=[of_rank["calls"][number] for of_rank in world.inputs],
            outputs=[output[number] for output in world.outputs],
            logs=logs,
            marks=[[(RETURNED, times[number])] for times in ends],
        )


def expect_messages(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects that one call uses send and receive only, and that all of them are complete when it returns."""
    yield from expect_only_ops(world, ["send", "recv"], mistakes=["calls_a_collective"])
    for rank, (log, marks) in enumerate(zip(world.logs, world.marks, strict=True)):
        _, returned_at = marks[0]  # the only mark of a call: its name, and the seconds
        unfinished = sorted({event.op for event in log.events if event.end > returned_at})
        message = words["unfinished"].format(words["and"].join(unfinished))
        yield expect(not unfinished, message, rank=rank, mistakes=["not_waited"])


def sends_of(world: JudgedWorld, rank: int) -> list[CommEvent]:
    """The sends of a rank, in the order in which it issued them."""
    return [event for event in world.logs[rank].events if event.op == "send"]


# -- mistakes that show as a failure ---------------------------------------------------------------------------------
def is_to_itself(failure: RunFailure) -> bool:
    """Whether a rank named itself as its peer, which the ranks' engine refuses, as does torch in its blocking send."""
    return re.search(r"to or from itself|should not be the same as the rank", failure.text) is not None


def recognise_messages(failure: RunFailure) -> Sequence[str]:
    """A `recognise_failure`: the keys of all hints that fit, by the text in which the engine describes a failure.

    Of the keys, those count that the task has a hint for.
    """
    # The engine says "rank 0 sends float32 x 4, rank 1 expects float32 x 5" where two ranks disagree about a message.
    dtypes = set(re.findall(r"\b(?:sends|expects) (\w+) x \d", failure.text))
    if failure.kind == "mismatch" and dtypes:
        return ["dtypes_differ"] if len(dtypes) > 1 else ["sizes_differ", "buffer_size"]
    if failure.type_name == "IndexError":
        return ["index_beyond_chunks"]
    if is_to_itself(failure):
        return ["sends_to_itself"]
    if failure.kind != "hang":
        return []
    is_in_send, is_in_recv = failure.is_waiting_in("send"), failure.is_waiting_in("recv")
    # Where some ranks wait in a send and others in a receive, neither came first.
    if not failure.text.startswith("every rank waits") or is_in_send == is_in_recv:
        return ["unmatched"]
    return ["sends_first" if is_in_send else "receives_first"]
