"""Judges 10.straggler: the learner's program names the rank for which the others wait, and why.

Its function is called in one process with drawn timelines. How to read it: timelines.py, whose judges are built alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.grading.kit.answers import question_task
from helpers.grading.profiling import LAB
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words

words = LAB.messages

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


def make_straggler(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
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


def slow_in_one_step(rng: NumberGenerator, num_ranks: int, main: str) -> ExtraSeconds:
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


def at_limit(rng: NumberGenerator) -> Timelines:
    """Two ranks, one step of 10 s, and 1 s charged to rank 1, which is a tenth and therefore not too much.

    Rank 0 begins after rank 1 and returns before it, so the run is longer than the timeline of rank 0.
    """
    rank_0 = [("data", 0.5, 1.0), ("compute", 1.0, 7.0), ("communication", 7.0, 9.5)]
    rank_1 = [("data", 0.0, 0.5), ("compute", 0.5, 8.0), ("communication", 8.0, 10.0)]
    return [[shuffled(rng, rank_0)], [shuffled(rng, rank_1)]]


def above_limit(rng: NumberGenerator) -> Timelines:
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
    rng: NumberGenerator, num_ranks: int, num_steps: int, extra: ExtraSeconds, *, is_data_split: bool = False
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


def shuffled(rng: NumberGenerator, values: Sequence[Any]) -> list[Any]:
    """The values in random order."""
    return [values[i] for i in rng.permutation(len(values))]


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
    needs_torch=False,
)
