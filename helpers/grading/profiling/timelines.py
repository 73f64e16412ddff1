"""Judges 10.split, 10.exposed and 10.straggler, in which the learner's program reads timelines of ranks.

10.split divides the time of each message into waiting for other ranks and moving data. 10.exposed finds the
communication that no compute covers. 10.straggler names the rank for which the others wait, and why. The learner's
function is called in one process with drawn timelines. A mistake is named only if its function gives every answer.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. A mistake is a wrong solution that
learners often write. Each table `WRONG_…` maps the key of its hint in hints.yaml to functions that contain the mistake.
`Words` is a text in English and Chinese.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.task import RankContext
from helpers.learner.words import Words

QUARTER = 0.25  # seconds; the times in 10.split and 10.exposed are multiples of it, so that sums are exact
Span = tuple[float, float]  # start and end, in seconds

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


# In the lambdas c and r are the times at which a rank called and returned. "moving_below_zero": where a root returns
# before the last call, r - last is negative. "late_is_waiting": the seconds by which a rank calls after the first one
# are taken for waiting.
WRONG_SPLITS: dict[str, list[Callable[[Calls], Rows]]] = {
    "matched_by_place": [lambda calls: split_rows(with_last_call(calls, by_position=True))],
    "moving_below_zero": [lambda calls: split_rows(with_last_call(calls), lambda c, r, last: (last - c, r - last))],
    "late_is_waiting": [lambda calls: split_rows(with_last_call(calls, min), lambda c, r, first: (c - first, r - c))],
    "moving_from_call": [lambda calls: split_rows(with_last_call(calls), lambda c, r, last: (min(last, r) - c, r - c))],
}
# The arguments of question_task: key, signature, how a sentence names the answer, right function, wrong functions.
SPLIT = answers.question_task(
    "10.split",
    "split(calls)",
    Words(en="[rank, name, waiting, moving]", zh=" [rank, 名字, 等待, 传输] "),
    right_split,
    WRONG_SPLITS,
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


def exposed(communication: list[Span], compute: list[Span]) -> float:
    """Seconds in which some communication runs and no compute."""
    # All starts and ends, in order; between two neighbours nothing begins or ends.
    edges = sorted({edge for span in [*communication, *compute] for edge in span})
    bare = [(a, b) for a, b in pairwise(edges) if is_covered(communication, a, b) and not is_covered(compute, a, b)]
    return total_seconds(bare)


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
}
EXPOSED = answers.question_task(
    "10.exposed",
    "exposed(communication, compute)",
    Words(en="the seconds", zh="秒数"),
    exposed,
    WRONG_EXPOSED,
    make_inputs=make_exposed,
)

# -- 10.straggler: timelines -----------------------------------------------------------------------------------------
# Why a rank may be slow: it waits for its data, computes for long, or has a slow link to the others.
CAUSES = ("data", "compute", "link")
GRAIN = 1 / 64  # seconds; every time in 10.straggler is a multiple of it, so that sums are exact
USUAL_SECONDS = {"data": 0.5, "compute": 2.0, "link": 1.0}  # in a step
MIN_SHARE = 0.1  # of the run; if the other ranks wait for less than this, no rank is a straggler
SIDE_DIVISOR = 4  # on a slow rank each other cause takes the extra seconds of the main cause divided by this
# lane ("data", "compute" or "communication"), start, end; "communication" runs from a rank's call to its return
LanePiece = tuple[str, float, float]
Timelines = list[list[list[LanePiece]]]  # by rank and step
ExtraSeconds = Callable[[int, str, int], float]  # from a rank, a cause and a step to seconds beyond the usual ones


def make_straggler(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each cause in every step, data and compute also in one step of ten, no straggler, and one rank alone.

    The first run is short enough to be read in a message.
    """
    # Two ranks for one step, in which rank 1 computes 4 s longer; then one rank for three steps.
    cases = [draw_timelines(rng, 2, 1, slow_in_all_steps(1, "compute", 4.0)), draw_timelines(rng, 1, 3, no_extra)]
    for cause in CAUSES:
        num_ranks = rng.integer(3, 5)
        num_steps, slow_rank = rng.integer(6, 9), rng.integer(0, num_ranks - 1)
        cases.append(draw_timelines(rng, num_ranks, num_steps, slow_in_all_steps(slow_rank, cause, 2.0)))
    for cause in CAUSES[:2]:
        num_ranks = rng.integer(3, 5)
        cases.append(draw_timelines(rng, num_ranks, 10, slow_in_one_step(rng, num_ranks, cause)))
    cases.append(draw_timelines(rng, rng.integer(2, 4), 8, no_extra))
    cases.append(draw_timelines(rng, 4, 8, slow_without_effect(rng.integer(0, 3))))
    return [{"cases": [[case] for case in cases]}]


def no_extra(rank: int, cause: str, step: int) -> float:
    """No rank is slow."""
    return 0.0


def slow_in_all_steps(slow_rank: int, main: str, seconds: float) -> ExtraSeconds:
    """One rank takes these extra seconds in every step, for the cause `main`.

    The other causes take a quarter of them on this rank, so an answer has to look for the largest excess.
    """

    def extra(rank: int, cause: str, step: int) -> float:
        if rank != slow_rank:
            return 0.0
        return seconds if cause == main else seconds / SIDE_DIVISOR

    return extra


def slow_in_one_step(rng: CaseGenerator, num_ranks: int, main: str) -> ExtraSeconds:
    """One rank is very slow in one step, and the next rank a little slow in all steps.

    The straggler is the first one, since the others wait for it longer in total. The rank that calls last in most steps
    is the other one, which a wrong answer names.
    """
    slow_rank, slow_step = rng.integer(0, num_ranks - 1), rng.integer(2, 8)

    def extra(rank: int, cause: str, step: int) -> float:
        if rank == slow_rank and step == slow_step:
            return 9.0 if cause == main else 0.0
        is_little_slow = rank == (slow_rank + 1) % num_ranks and cause == "compute"
        return 6 * GRAIN if is_little_slow else 0.0  # more than the jitter, which is at most 4 * GRAIN

    return extra


def slow_without_effect(slow_rank: int) -> ExtraSeconds:
    """A rank that computes 0.25 s longer and gets its data 0.25 s sooner, so no other rank waits for it."""
    seconds = {"data": -0.25, "compute": 0.25}
    return lambda rank, cause, step: seconds.get(cause, 0.0) if rank == slow_rank else 0.0


def draw_timelines(rng: CaseGenerator, num_ranks: int, num_steps: int, extra: ExtraSeconds) -> Timelines:
    """The timelines of a run, in which each rank takes the usual seconds and the extra ones.

    All ranks begin at 0. In each step compute takes a few GRAINs longer by rank (jitter), so that only one rank calls
    last. The pieces of a step are in random order.
    """
    now, timelines = [0.0] * num_ranks, [[] for _ in range(num_ranks)]
    for step in range(num_steps):
        pieces = [[] for _ in range(num_ranks)]
        for rank, jitter in enumerate(shuffled(rng, range(num_ranks))):
            data, compute = (USUAL_SECONDS[cause] + extra(rank, cause, step) for cause in CAUSES[:2])
            # Compute comes in two pieces, like forward and backward.
            for lane, seconds in (("data", data), ("compute", compute / 2), ("compute", compute / 2 + GRAIN * jitter)):
                pieces[rank].append((lane, now[rank], now[rank] + seconds))
                now[rank] += seconds
        last = max(now)
        for rank, called in enumerate(now):
            now[rank] = last + USUAL_SECONDS["link"] + extra(rank, "link", step)
            pieces[rank].append(("communication", called, now[rank]))
            timelines[rank].append(shuffled(rng, pieces[rank]))
    return timelines


def shuffled(rng: CaseGenerator, values: Sequence[Any]) -> list[Any]:
    """The values in random order: each gets a random key, and the keys are sorted."""
    keys = [rng.integer(0, 10**6) for _ in values]
    return [values[i] for i in sorted(range(len(values)), key=keys.__getitem__)]


# -- 10.straggler: the right rule, and known mistakes ----------------------------------------------------------------
@dataclass(frozen=True)
class WaitStatistics:
    """What a run's timelines say; each list has one item per rank."""

    run_seconds: float  # from the first start to the last end
    charged: list[float]  # seconds that other ranks waited because this rank called last
    times_last: list[float]  # in how many steps it called last
    waited: list[float]  # seconds that it waited itself
    by_cause: list[dict[str, float]]  # its seconds per cause; "link" counts from the last call of all ranks
    with_waiting: list[dict[str, float]]  # the same, but "link" counts from the rank's own call, with the waiting in it


def wait_statistics(timelines: Timelines) -> WaitStatistics:
    """Adds up the waiting and the causes over all steps of a run. In each step the ranks wait for the last call."""
    n = len(timelines)
    # All pieces of all ranks and steps.
    spans = [span for of_rank in timelines for step in of_rank for span in step]
    run_seconds = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    charged, times_last, waited = ([0.0] * n for _ in range(3))
    by_cause, with_waiting = ([dict.fromkeys(CAUSES, 0.0) for _ in range(n)] for _ in range(2))
    for step in zip(*timelines, strict=True):  # for each rank its pieces of the step
        calls = [next(start for lane, start, _ in pieces if lane == "communication") for pieces in step]
        last = max(calls)
        slow_rank = calls.index(last)
        times_last[slow_rank] += 1
        for rank, pieces in enumerate(step):
            charged[slow_rank] += last - calls[rank]
            waited[rank] += last - calls[rank]
            for lane, start, end in pieces:
                cause = lane if lane in CAUSES else "link"
                by_cause[rank][cause] += end - (last if cause == "link" else start)
                with_waiting[rank][cause] += end - start
    return WaitStatistics(run_seconds, charged, times_last, waited, by_cause, with_waiting)


def share_waited(found: WaitStatistics) -> float:
    """The share of the run that another rank, on average, spends waiting for the rank that is waited for most."""
    return max(found.charged) / (found.run_seconds * max(1, len(found.charged) - 1))


def excess(seconds: list[dict[str, float]], rank: int) -> dict[str, float]:
    """For each cause by how many seconds this rank is above the median of the others.

    seconds: for each rank its seconds per cause.
    """
    others = [one for other, one in enumerate(seconds) if other != rank]
    return {cause: seconds[rank][cause] - statistics.median(one[cause] for one in others) for cause in CAUSES}


def straggler(
    timelines: Timelines, *, rank_by: str = "charged", cause_by: str = "excess", always: bool = False
) -> list[Any] | None:
    """The straggler and its cause, None if there is none. The options are what known mistakes do instead.

    rank_by: the field of WaitStatistics whose largest value names the rank. cause_by: "excess", "largest" for the
    longest part of the rank's time, "with_waiting" for the excess with waiting in it. always: name a rank in any case.
    """
    found = wait_statistics(timelines)
    if len(timelines) == 1 or (share_waited(found) <= MIN_SHARE and not always):
        return None
    values = getattr(found, rank_by)
    rank = values.index(max(values))
    if cause_by == "largest":
        seconds = found.by_cause[rank]
    else:
        seconds = excess(found.with_waiting if cause_by == "with_waiting" else found.by_cause, rank)
    return [rank, max(seconds, key=seconds.get)]


WRONG_STRAGGLERS: dict[str, list[Callable[[Timelines], Any]]] = {
    "waiting_rank_named": [lambda timelines: straggler(timelines, rank_by="waited")],
    "times_counted": [lambda timelines: straggler(timelines, rank_by="times_last")],
    "waiting_in_link": [lambda timelines: straggler(timelines, cause_by="with_waiting")],
    "longest_part": [lambda timelines: straggler(timelines, cause_by="largest")],
    "somebody_always": [lambda timelines: straggler(timelines, always=True)],
}
STRAGGLER = answers.question_task(
    "10.straggler",
    "straggler(timelines)",
    Words(en="the straggler and its cause", zh="掉队者及原因"),
    straggler,
    WRONG_STRAGGLERS,
    make_inputs=make_straggler,
)
