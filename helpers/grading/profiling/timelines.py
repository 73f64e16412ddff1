"""Judges 10.split and 10.exposed, in which the learner's program reads timelines of ranks.

10.split divides the time of each message into waiting for other ranks and moving data. 10.exposed finds the
communication that no compute covers. The learner's function is called in one process with drawn timelines. A mistake is
named only if its function gives every answer. straggler.py, which judges 10.straggler, is written in the same way.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `timeline_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. Behind a wrong answer `explain_…`
says how the right one follows from this case; `words["…"]` is a sentence of messages.yaml. A mistake is a wrong
solution that learners often write. Each table `WRONG_…` maps the key of its hint in hints.yaml to functions that
contain the mistake. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.profiling import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

words = LAB.messages
QUARTER = 0.25  # seconds; the times in 10.split and 10.exposed are multiples of it, so that sums are exact
Span = tuple[float, float]  # start and end, in seconds


def timeline_task(*arguments: Any, explain: Callable[..., Words], **more: Any) -> Task:
    """The Task of `question_task` with these arguments, in which each wrong answer is followed by an explanation.

    explain: from the arguments of a case and the learner's answer to how the right answer comes about.
    """
    task = answers.question_task(*arguments, **more)

    def judge(world: JudgedWorld) -> Iterator[Judgement]:
        for case, got, judgement in zip(world.inputs[0]["cases"], world.outputs[0], task.judge(world), strict=True):
            lines = [judgement.message] if judgement.ok else [judgement.message, explain(*case, got)]
            yield replace(judgement, message=Words.of("\n").join(lines))

    return replace(task, judge=judge)


# -- 10.split --------------------------------------------------------------------------------------------------------
Calls = list[dict[str, Span]]  # for each rank, a message's name to when the rank called it and when it returned
CallsWithLast = list[dict[str, tuple[float, float, float]]]  # the same, with the last call of the message on any rank
Rows = list[list[Any]]  # each row is rank, name of the message, seconds of waiting, seconds of moving
# From the times of a rank's call and return, and of the last call on any rank, to the seconds of waiting and of moving.
Split = Callable[[float, float, float], tuple[float, float]]


def make_split(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Runs of one to five ranks. The first ones are small enough to be read in a message."""
    cases = [draw_calls(rng, n, [("sum 0", "all", range(n))]) for n in (1, 2, 3)]
    groups = [("sum 0", "all", (0, 1)), ("sum 1", "all", (2, 3)), ("copy 2", "root", (0, 1, 2))]
    cases.append(draw_calls(rng, 5, groups))  # rank 4 takes part in no message
    cases.append([{"sum 0": (1.0, 2.0)}, {"sum 0": (1.0, 2.0)}])  # no rank waits
    cases.append([{"copy 0": (0.0, 0.5)}, {"copy 0": (1.0, 2.0)}])  # the root returns before the other rank calls
    for _ in range(4):
        num_ranks, messages = rng.integer(2, 5), []
        for number in range(rng.integer(3, 6)):
            members = [rank for rank in range(num_ranks) if rng.integer(0, 2)] or [0]  # two of three ranks, on average
            kind, name = rng.one_of(("all", "sum"), ("root", "copy"))
            messages.append((f"{name} {number}", kind, members))
        cases.append(draw_calls(rng, num_ranks, messages))
    return [{"cases": [[case] for case in cases]}]


def draw_calls(rng: CaseGenerator, num_ranks: int, messages: list) -> Calls:
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
    return answers.run_questions(lambda calls: as_rows(submitted(calls)), inputs, context, SPLIT)


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


def with_last_call(calls: Calls, pick: Callable = max, *, by_position: bool = False) -> CallsWithLast:
    """Each message with its last call on any rank behind its two times.

    The options are mistakes. pick: `min` for the first call instead. by_position: the first entries of all ranks are
    taken for one message, the second entries for the next one, and so on, whatever their names.
    """
    starts: dict[Any, list[float]] = {}  # when each rank called a message
    for of_rank in calls:
        for position, (name, (called, _)) in enumerate(of_rank.items()):
            starts.setdefault(position if by_position else name, []).append(called)
    picked = {message: pick(times) for message, times in starts.items()}
    return [
        {name: (*span, picked[i if by_position else name]) for i, (name, span) in enumerate(of_rank.items())}
        for of_rank in calls
    ]


def at_last_call(called: float, returned: float, last: float) -> tuple[float, float]:
    """A rank waits until the last call, or until it returns if that is earlier; then the message moves."""
    return min(last, returned) - called, returned - min(last, returned)


def split_rows(calls: CallsWithLast, split: Split = at_last_call) -> Rows:
    """The rows of an answer that splits the time of each message in this way."""
    return as_rows([{name: split(*times) for name, times in of_rank.items()} for of_rank in calls])


def right_split(calls: Calls) -> Rows:
    """The right answer, as rows."""
    return split_rows(with_last_call(calls))


def one_last_call(calls: Calls) -> Rows:
    """The mistake: the last call of any message is taken for the last call of each."""
    last = max(called for of_rank in calls for called, _ in of_rank.values())
    return split_rows([{name: (*span, last) for name, span in of_rank.items()} for of_rank in calls])


def with_strangers(calls: Calls) -> Rows:
    """The mistake: each rank has a row for each message, with 0 seconds where it does not take part."""
    heads = [(rank, name) for rank in range(len(calls)) for name in sorted(set().union(*calls))]
    rows = {(rank, name): parts for rank, name, *parts in right_split(calls)}
    return [[*head, *rows.get(head, (0.0, 0.0))] for head in heads]


# In the lambdas c and r are the times at which a rank called and returned. "moving_below_zero": where a root returns
# before the last call, r - last is negative. "late_is_waiting": the seconds by which a rank calls after the first one
# are taken for waiting.
WRONG_SPLITS: dict[str, list[Callable[[Calls], Rows]]] = {
    "matched_by_place": [lambda calls: split_rows(with_last_call(calls, by_position=True))],
    "moving_below_zero": [
        lambda calls: split_rows(with_last_call(calls), lambda c, r, last: (last - c, r - last)),
        lambda calls: split_rows(with_last_call(calls), lambda c, r, last: (last - c, max(0.0, r - last))),
    ],
    "late_is_waiting": [lambda calls: split_rows(with_last_call(calls, min), lambda c, r, first: (c - first, r - c))],
    "moving_from_call": [lambda calls: split_rows(with_last_call(calls), lambda c, r, last: (min(last, r) - c, r - c))],
    "parts_exchanged": [lambda calls: split_rows(with_last_call(calls), lambda *times: at_last_call(*times)[::-1])],
    "first_call_counts": [lambda calls: split_rows(with_last_call(calls, min))],
    "one_last_call": [one_last_call],
    "names_of_rank_0": [lambda calls: [row for row in right_split(calls) if row[1] in calls[0]]],
    "strangers_listed": [with_strangers],
}


def explain_split(calls: Calls, got: Any) -> Words:
    """The times of the first message whose parts are wrong, or which message is missing or too much."""
    right = right_split(calls)
    if not (isinstance(got, list) and all(isinstance(row, list) and len(row) == 4 for row in got)):
        return words["split_form"]
    heads, got_heads = ([row[:2] for row in rows] for rows in (right, got))
    for head in [one for one in right if one[:2] not in got_heads][:1]:
        return words["message_missing"].format(*head[:2])
    for head in [one for one in got_heads if one not in heads][:1]:
        return words["message_of_others"].format(*head)
    rank, name = next((row[:2] for row, answer in zip(right, got, strict=True) if row != answer), right[0][:2])
    called, returned, last = with_last_call(calls)[rank][name]
    times = {"called": called, "returned": returned, "last": last, "until": min(last, returned)}
    return words["split_rule"].format(rank=rank, name=name, **times)


# The arguments of timeline_task: key, signature, how a sentence names the answer, right function, wrong functions.
SPLIT = timeline_task(
    "10.split",
    "split(calls)",
    Words(en="[rank, name, waiting, moving]", zh=" [rank, 名字, 等待, 传输] "),
    right_split,
    WRONG_SPLITS,
    explain=explain_split,
    make_inputs=make_split,
    run_submission=run_split,
)


# -- 10.exposed ------------------------------------------------------------------------------------------------------
def make_exposed(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Empty lists, and spans that touch, contain or overlap each other. The first cases fit into a message.

    A case is the spans of communication and the spans of compute.
    """
    cases = [[[], []], [[(1.0, 2.0)], []], [[], [(1.0, 2.0)]], [[(1.0, 3.0)], [(2.0, 4.0)]]]
    cases += [[[(1.0, 2.0)], [(0.0, 3.0)]], [[(0.0, 4.0)], [(1.0, 2.0), (2.0, 3.0)]]]
    cases += [[[(0.0, 2.0), (2.0, 3.0)], [(1.0, 2.0)]], [[(0.0, 4.0)], [(1.0, 3.0), (2.0, 3.5)]]]
    cases += [[[(0.0, 2.0), (1.0, 3.0)], [(2.5, 5.0)]]]
    cases += [[draw_spans(rng), draw_spans(rng)] for _ in range(6)]
    return [{"cases": cases}]


def draw_spans(rng: CaseGenerator) -> list[Span]:
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
    return total_seconds(bare_spans(communication, compute))


def explain_exposed(communication: list[Span], compute: list[Span], got: Any) -> Words:
    """When communication runs alone."""
    return words["exposed_rule"].format(answers.shortened(bare_spans(communication, compute)))


def total_seconds(spans: list[Span]) -> float:
    """The lengths of all spans added up, even where they overlap."""
    return float(sum(end - start for start, end in spans))


def overlap(one: Span, other: Span) -> float:
    """The seconds that two spans have in common."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def less_all_overlaps(communication: list[Span], compute: list[Span]) -> float:
    """The mistake: where spans overlap among themselves, the same second is subtracted more than once."""
    return total_seconds(communication) - sum(overlap(m, c) for m in communication for c in compute)


# In the lambdas `sent` and `computed` are the spans of communication and of compute, m and c one span of each.
WRONG_EXPOSED: dict[str, list[Callable[[list[Span], list[Span]], float]]] = {
    "sums_subtracted": [
        lambda sent, computed: total_seconds(sent) - total_seconds(computed),
        lambda sent, computed: max(0.0, total_seconds(sent) - total_seconds(computed)),
    ],
    "touched_is_hidden": [
        lambda sent, computed: total_seconds([m for m in sent if not any(overlap(m, c) for c in computed)])
    ],
    "overlaps_counted_twice": [
        less_all_overlaps,
        lambda sent, computed: max(0.0, less_all_overlaps(sent, computed)),
        lambda sent, computed: sum(max(0.0, less_all_overlaps([m], computed)) for m in sent),
        lambda sent, computed: sum(exposed([m], computed) for m in sent),
    ],
    "compute_alone": [lambda sent, computed: exposed(computed, sent)],
    "hidden_counted": [lambda sent, computed: exposed(sent, []) - exposed(sent, computed)],
}
EXPOSED = timeline_task(
    "10.exposed",
    "exposed(communication, compute)",
    Words(en="the seconds", zh="秒数"),
    exposed,
    WRONG_EXPOSED,
    explain=explain_exposed,
    make_inputs=make_exposed,
)
