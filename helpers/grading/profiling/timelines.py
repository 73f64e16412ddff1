"""Judges 10.split and 10.exposed, in which the learner's program reads timelines of ranks.

10.split divides the time of each message into waiting for other ranks and moving data. 10.exposed finds the
communication that no compute covers. The learner's function is called in one process with drawn timelines.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. Below the sentence about a wrong
answer, `rule_of_…` says how the right one follows from this case; `words["…"]` is a sentence of messages.yaml. `Words`
is a text in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from helpers.grading.kit.answers import question_task, run_questions
from helpers.grading.plain_data import shortened
from helpers.grading.profiling import LAB
from helpers.grading.task import NumberGenerator, RankContext
from helpers.learner.words import Words

words = LAB.messages
QUARTER = 0.25  # seconds; the times in 10.split and 10.exposed are multiples of it, so that sums are exact
Span = tuple[float, float]  # start and end, in seconds

# -- 10.split --------------------------------------------------------------------------------------------------------
Calls = list[dict[str, Span]]  # for each rank, a message's name to when the rank called it and when it returned
Rows = list[list[Any]]  # each row is rank, name of the message, seconds of waiting, seconds of moving


def make_split(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Runs of one to five ranks. The first ones are small enough to be read in a message."""
    cases = [draw_calls(rng, n, [("sum 0", "all", range(n))]) for n in (1, 2, 3)]
    groups = [("sum 0", "all", (0, 2)), ("sum 1", "all", (3, 4)), ("copy 2", "root", (0, 2, 3))]
    cases.append(draw_calls(rng, 5, groups))  # rank 1 takes part in no message, and others come behind it
    cases.append([{"sum 0": (1.0, 2.0)}, {"sum 0": (1.0, 2.0)}])  # no rank waits
    # Two ranks return before the last rank calls, and rank 0 is neither of them.
    cases.append([{"copy 0": (1.0, 2.0)}, {"copy 0": (0.0, 0.5)}, {"copy 0": (0.25, 0.75)}])
    for _ in range(4):
        num_ranks, messages = rng.integer(2, 5), []
        for number in range(rng.integer(3, 6)):
            members = [rank for rank in range(num_ranks) if rng.integer(0, 2)] or [0]  # two of three ranks, on average
            kind, name = rng.one_of(("all", "sum"), ("root", "copy"))
            messages.append((f"{name} {number}", kind, members))
        cases.append(draw_calls(rng, num_ranks, messages))
    return [{"cases": [[case] for case in cases]}]


def draw_calls(rng: NumberGenerator, num_ranks: int, messages: list) -> Calls:
    """Times of these messages, each (name, kind, ranks that take part). The names of a rank are in any order.

    In a message of kind "all" every rank waits for the last call, as in an all-reduce ("sum 0"). In one of kind "root"
    the first rank sends to the others and does not wait for them, as in a broadcast ("copy 0").
    """
    clocks, calls = [QUARTER * rng.integer(0, 8) for _ in range(num_ranks)], [{} for _ in range(num_ranks)]
    for name, kind, members in messages:
        # When each rank calls: after the message before and some compute.
        called = {rank: clocks[rank] + QUARTER * rng.integer(0, 12) for rank in members}
        last = max(called.values())
        for rank, at in called.items():
            is_root = kind == "root" and rank == members[0]
            clocks[rank] = (at if is_root else last) + QUARTER * rng.integer(1, 6)
            calls[rank] = {name: (at, clocks[rank])} | calls[rank]
    # Each message gets a random key to sort by, which shuffles the messages of a rank.
    return [dict(sorted(of_rank.items(), key=lambda _: rng.integer(0, 99))) for of_rank in calls]


def run_split(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The learner's answer to each case, as rows. `run_questions` calls a function with every case of the inputs."""
    # SPLIT is the Task, which an error names.
    return run_questions(lambda calls: as_rows(submitted(calls)), inputs, context, SPLIT)


def as_rows(answer: Any) -> Any:
    """A list of dicts as sorted rows, so that a message can show the first one that differs; anything else as it is."""
    if not (isinstance(answer, list | tuple) and all(isinstance(of_rank, Mapping) for of_rank in answer)):
        return answer
    return [
        [rank, name, *as_list(of_rank[name])]
        for rank, of_rank in enumerate(answer)
        for name in sorted(of_rank, key=str)
    ]


def as_list(value: Any) -> list[Any]:
    """A pair of times as a list; an answer that is no pair as a list of one item."""
    return list(value) if isinstance(value, list | tuple) else [value]


def last_calls(calls: Calls) -> dict[str, float]:
    """When each message was called last on any rank."""
    last: dict[str, float] = {}
    for of_rank in calls:
        for name, (called, _) in of_rank.items():
            last[name] = max(called, last.get(name, called))
    return last


def right_split(calls: Calls) -> Rows:
    """A rank waits until the last call, or until it returns if that is earlier; then the message moves."""
    last = last_calls(calls)

    def parts(name: str, called: float, returned: float) -> tuple[float, float]:
        until = min(last[name], returned)
        return until - called, returned - until

    return as_rows([{name: parts(name, *span) for name, span in of_rank.items()} for of_rank in calls])


def rule_of_split(case: Sequence[Any], answer: Any) -> Words:
    """The times of the first message whose parts are wrong, or which message is missing or too much."""
    (calls,), right = case, right_split(*case)
    if not (isinstance(answer, list) and all(isinstance(row, list) and len(row) == 4 for row in answer)):
        return words["split_form"]
    heads, answer_heads = ([row[:2] for row in rows] for rows in (right, answer))
    for head in [one for one in heads if one not in answer_heads][:1]:
        return words["message_missing"].format(*head)
    for head in [one for one in answer_heads if one not in heads][:1]:
        return words["message_of_others"].format(*head)
    rank, name = next((row[:2] for row, got in zip(right, answer, strict=True) if row != got), heads[0])
    (called, returned), last = calls[rank][name], last_calls(calls)[name]
    times = {"called": called, "returned": returned, "last": last, "until": min(last, returned)}
    return words["split_rule"].format(rank=rank, name=name, **times)


SPLIT = question_task(
    "10.split",
    "split(calls)",
    Words(en="[rank, name, waiting, moving]", zh=" [rank, 名字, 等待, 传输] "),
    right_split,
    rules=[rule_of_split],
    make_inputs=make_split,
    run_submission=run_split,
    must_not_change=("calls",),
    needs_torch=False,
)


# -- 10.exposed ------------------------------------------------------------------------------------------------------
def make_exposed(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Empty lists, and spans that touch, contain or overlap each other. The first cases fit into a message.

    A case is the spans of communication and the spans of compute.
    """
    cases = [[[], []], [[(1.0, 2.0)], []], [[], [(1.0, 2.0)]], [[(1.0, 3.0)], [(2.0, 4.0)]]]
    cases += [[[(1.0, 2.0)], [(0.0, 3.0)]], [[(0.0, 4.0)], [(1.0, 2.0), (2.0, 3.0)]]]
    cases += [[[(0.0, 2.0), (2.0, 3.0)], [(1.0, 2.0)]], [[(0.0, 4.0)], [(1.0, 3.0), (2.0, 3.5)]]]
    cases += [[[(0.0, 2.0), (1.0, 3.0)], [(2.5, 5.0)]]]
    cases += [[draw_spans(rng), draw_spans(rng)] for _ in range(6)]
    return [{"cases": cases}]


def draw_spans(rng: NumberGenerator) -> list[Span]:
    """One to five spans of any length, which may overlap."""
    starts = [QUARTER * rng.integer(0, 40) for _ in range(rng.integer(1, 5))]
    return [(start, start + QUARTER * rng.integer(1, 12)) for start in starts]


def is_covered(spans: list[Span], start: float, end: float) -> bool:
    """Whether one of the spans holds all of the time from start to end."""
    return any(a <= start and end <= b for a, b in spans)


def bare_spans(communication: list[Span], compute: list[Span]) -> list[Span]:
    """The times in which some communication runs and no compute."""
    # All starts and ends, in order; between two neighbours nothing begins or ends.
    edges = sorted({edge for span in [*communication, *compute] for edge in span})
    return [(a, b) for a, b in pairwise(edges) if is_covered(communication, a, b) and not is_covered(compute, a, b)]


def exposed(communication: list[Span], compute: list[Span]) -> float:
    """Seconds in which some communication runs and no compute."""
    return float(sum(end - start for start, end in bare_spans(communication, compute)))


def rule_of_exposed(case: Sequence[Any], answer: Any) -> Words:
    """When communication runs alone."""
    return words["exposed_rule"].format(shortened(bare_spans(*case)))


EXPOSED = question_task(
    "10.exposed",
    "exposed(communication, compute)",
    Words(en="the seconds", zh="秒数"),
    exposed,
    rules=[rule_of_exposed],
    make_inputs=make_exposed,
    needs_torch=False,
)
