"""Judges 10.split, 10.exposed and 10.straggler, in which the learner's program reads timelines of ranks.

10.split divides the time of each message into waiting for other ranks and moving data. 10.exposed finds the
communication that no compute covers. 10.straggler names the rank for which the others wait, and why. The learner's
function is called in one process with drawn timelines.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `question_task` builds the Task, which calls the learner's
function with each case and compares the answers with those of the right function. Below the sentence about a wrong
answer, `rule_of_…` says how the right one follows from this case; `words["…"]` is a sentence of messages.yaml. `Words`
is a text in English and Chinese.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.answers import question_task, run_questions
from helpers.grading.kit.model_tools import shortened
from helpers.grading.profiling import LAB
from helpers.grading.task import RankContext
from helpers.learner.words import Words

words = LAB.messages
QUARTER = 0.25  # seconds; the times in 10.split and 10.exposed are multiples of it, so that sums are exact
Span = tuple[float, float]  # start and end, in seconds

# -- 10.split --------------------------------------------------------------------------------------------------------
Calls = list[dict[str, Span]]  # for each rank, a message's name to when the rank called it and when it returned
Rows = list[list[Any]]  # each row is rank, name of the message, seconds of waiting, seconds of moving


def make_split(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
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
    """Each cause in every step, data and compute also in one step of ten, no straggler, one rank alone, and runs in
    which a wrong limit, a mean or a forgotten piece shows.

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
    # The seconds of all ranks are more than a tenth of the run, but not of four times the run; then the other way round
    # for the longest of the four waits.
    cases.append(draw_timelines(rng, 5, 8, slow_in_all_steps(rng.integer(0, 4), "data", 6 * GRAIN)))
    cases.append(draw_timelines(rng, 5, 8, slow_in_all_steps(rng.integer(0, 4), "data", 0.75)))
    slow_rank = rng.integer(0, 3)
    cases += [draw_timelines(rng, 4, 8, slow_in_two_parts(slow_rank, seconds)) for seconds in (0.0, 9.0)]
    cases.append(draw_timelines(rng, 5, 10, slow_in_turn))
    cases.append(draw_timelines(rng, 4, 8, slow_link_now_and_then(rng.integer(0, 3))))
    cases.append(draw_timelines(rng, 5, 8, slow_pair(*shuffled(rng, range(5))[:2])))
    cases += [at_limit(rng), shuffled(rng, above_limit(rng))]
    cases.append(draw_timelines(rng, 5, 8, slow_beside_two(shuffled(rng, range(5))[:3]), is_data_split=True))
    cases = [cases[0], *(later(timelines, rng.integer(200, 300)) for timelines in cases[1:])]
    return [{"cases": [[case] for case in cases]}]


def later(timelines: Timelines, seconds: float) -> Timelines:
    """The same run, begun so much later on the clock."""
    return [[[(lane, a + seconds, b + seconds) for lane, a, b in step] for step in of_rank] for of_rank in timelines]


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


def slow_in_two_parts(slow_rank: int, seconds: float) -> ExtraSeconds:
    """One rank computes longer in every step, and its data takes almost as much longer, so half of its compute is less.

    In step 1 the next rank computes so many seconds longer, which moves the mean of the others and not their median.
    """
    longer = {"compute": 1.5, "data": 1.3125}

    def extra(rank: int, cause: str, step: int) -> float:
        is_next = rank == (slow_rank + 1) % 4 and cause == "compute" and step == 1
        return longer.get(cause, 0.0) if rank == slow_rank else seconds * is_next

    return extra


def slow_in_turn(rank: int, cause: str, step: int) -> float:
    """Each of five ranks is slow in every fifth step, so all together are charged much, and none of them too much."""
    return 0.875 if cause == "compute" and step % 5 == rank else 0.0


def slow_link_now_and_then(slow_rank: int) -> ExtraSeconds:
    """One rank computes longer in every second step, and its link is still slower in the others, where it calls early.

    Over all steps the link costs more seconds, and over the steps in which the rank calls last compute does.
    """
    in_odd_steps, in_even_steps = {"compute": 1.5}, {"compute": -0.25, "link": 3.0}

    def extra(rank: int, cause: str, step: int) -> float:
        return (in_odd_steps if step % 2 else in_even_steps).get(cause, 0.0) if rank == slow_rank else 0.0

    return extra


def slow_pair(slowest: int, second: int) -> ExtraSeconds:
    """Two ranks compute longer, one of them a little more, so without the slowest one the others would wait as well."""
    seconds = {slowest: 2.0, second: 1.75}
    return lambda rank, cause, step: seconds.get(rank, 0.0) if cause == "compute" else 0.0


def slow_beside_two(ranks: Sequence[int]) -> ExtraSeconds:
    """The first of these three ranks is slow in all three parts, and mostly in data by the median of four other ranks.

    The other two are slow in every second step, in turn. So over the whole run one of the two middle ranks has no extra
    seconds and the other has many, and their mean counts. In each step alone the median of the others is small.
    """
    longer = {"data": 1.5, "compute": 1.125, "link": 1.625}
    others_longer = {"data": 1.0, "compute": 0.0, "link": 2.0}

    def extra(rank: int, cause: str, step: int) -> float:
        if rank == ranks[0]:
            return longer[cause]
        return others_longer[cause] if rank == ranks[1 + step % 2] else 0.0

    return extra


def at_limit(rng: CaseGenerator) -> Timelines:
    """Two ranks, one step of 10 s, and 1 s charged to rank 1, which is a tenth and therefore not too much.

    Rank 0 begins after rank 1 and returns before it, so the run is longer than the timeline of rank 0.
    """
    rank_0 = [("data", 0.5, 1.0), ("compute", 1.0, 7.0), ("communication", 7.0, 9.5)]
    rank_1 = [("data", 0.0, 0.5), ("compute", 0.5, 8.0), ("communication", 8.0, 10.0)]
    return [[shuffled(rng, rank_0)], [shuffled(rng, rank_1)]]


def above_limit(rng: CaseGenerator) -> Timelines:
    """Three ranks and two steps of 5 s. The last rank is charged 2 GRAINs more than a tenth, all of it in step 0."""

    def step(start: float, called: float) -> list[LanePiece]:
        times = ("data", start, start + 0.5), ("compute", start + 0.5, called), ("communication", called, start + 5.0)
        return shuffled(rng, times)

    first_calls, second_calls = (3.0, 3.0, 4.0 + GRAIN), (3.0, 3.0 + GRAIN, 3.0)
    return [
        [step(0.0, first), step(5.0, 5.0 + second)] for first, second in zip(first_calls, second_calls, strict=True)
    ]


def slow_without_effect(slow_rank: int) -> ExtraSeconds:
    """A rank that computes 0.25 s longer and gets its data 0.25 s sooner, so no other rank waits for it."""
    seconds = {"data": -0.25, "compute": 0.25}
    return lambda rank, cause, step: seconds.get(cause, 0.0) if rank == slow_rank else 0.0


def draw_timelines(
    rng: CaseGenerator, num_ranks: int, num_steps: int, extra: ExtraSeconds, *, is_data_split: bool = False
) -> Timelines:
    """The timelines of a run, in which each rank takes the usual seconds and the extra ones.

    is_data_split: whether the data of a step comes in two pieces, as compute always does.

    All ranks begin at 0. In each step compute takes a few GRAINs longer by rank (jitter), so that only one rank calls
    last. The pieces of a step are in random order.
    """
    now, timelines = [0.0] * num_ranks, [[] for _ in range(num_ranks)]
    for step in range(num_steps):
        pieces = [[] for _ in range(num_ranks)]
        for rank, jitter in enumerate(shuffled(rng, range(num_ranks))):
            data, compute = (USUAL_SECONDS[cause] + extra(rank, cause, step) for cause in CAUSES[:2])
            # Compute comes in two pieces, like forward and backward.
            pair = ("compute", compute / 2), ("compute", compute / 2 + GRAIN * jitter)
            for lane, seconds in (*[("data", data / 2)] * 2, *pair) if is_data_split else (("data", data), *pair):
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


# -- 10.straggler: the right rule ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WaitStatistics:
    """What a run's timelines say; each list has one item per rank."""

    limit: float  # the seconds up to which no rank is a straggler
    charged: list[float]  # seconds that other ranks waited because this rank called last
    by_cause: list[dict[str, float]]  # its seconds per cause; "link" counts from the last call of all ranks


def wait_statistics(timelines: Timelines) -> WaitStatistics:
    """Adds up the waiting and the causes over all steps of a run. In each step the ranks wait for the last call."""
    n = len(timelines)
    # All pieces of all ranks and steps.
    spans = [span for of_rank in timelines for step in of_rank for span in step]
    run_seconds = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    charged, by_cause = [0.0] * n, [dict.fromkeys(CAUSES, 0.0) for _ in range(n)]
    for step in zip(*timelines, strict=True):  # for each rank its pieces of the step
        calls = [start for pieces in step for lane, start, _ in pieces if lane == "communication"]
        last = max(calls)
        charged[calls.index(last)] += sum(last - call for call in calls)
        for rank, pieces in enumerate(step):
            for lane, start, end in pieces:
                cause, begin = (lane, start) if lane in CAUSES else ("link", last)
                by_cause[rank][cause] += end - begin
    return WaitStatistics(MIN_SHARE * (n - 1) * run_seconds, charged, by_cause)


def excess(seconds: list[dict[str, float]], rank: int) -> dict[str, float]:
    """For each cause by how many seconds this rank is above the median of the others.

    seconds: for each rank its seconds per cause.
    """
    others = [one for other, one in enumerate(seconds) if other != rank]
    return {cause: seconds[rank][cause] - statistics.median(one[cause] for one in others) for cause in CAUSES}


def straggler(timelines: Timelines) -> list[Any] | None:
    """The straggler and its cause, None if there is none."""
    found = wait_statistics(timelines)
    rank = found.charged.index(max(found.charged))
    if found.charged[rank] <= found.limit:
        return None
    above = excess(found.by_cause, rank)
    return [rank, max(above, key=above.get)]


def rule_of_straggler(case: Sequence[Any], answer: Any) -> Words:
    """The seconds that are charged, the limit, and by how much the parts of the rank with most seconds are above."""
    (timelines,) = case
    if len(timelines) == 1:
        return words["alone_rule"]
    found = wait_statistics(timelines)
    rank = found.charged.index(max(found.charged))
    text = words["limit_rule"].format([f"{seconds:.4g} s" for seconds in found.charged], f"{found.limit:.4g}")
    if found.charged[rank] <= found.limit:
        return text
    parts = [f"{cause} {seconds:.4g} s" for cause, seconds in excess(found.by_cause, rank).items()]
    return Words.of("\n").join([text, words["cause_rule"].format(rank, parts)])


STRAGGLER = question_task(
    "10.straggler",
    "straggler(timelines)",
    Words(en="the straggler and its cause", zh="掉队者及原因"),
    straggler,
    rules=[rule_of_straggler],
    make_inputs=make_straggler,
)
