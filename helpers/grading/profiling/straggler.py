"""10.straggler: whom the others wait for, and whether its data, its compute or its link is to blame."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.profiling import LAB
from helpers.learner.words import Words

CAUSES = ("data", "compute", "link")
GRAIN = 1 / 64  # seconds: every time is a multiple, so that sums are exact
USUAL = {"data": 0.5, "compute": 2.0, "link": 1.0}  # seconds per step
NOBODY = 0.1  # of the run
Piece = tuple[str, float, float]
Timelines = list[list[list[Piece]]]
Extra = Callable[[int, str, int], float]  # rank, cause, step -> seconds beyond the usual ones


# -- runs ------------------------------------------------------------------------------------------------------------
def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each cause, in every step and in one of ten; nobody; one rank alone. The first run is short enough to be read."""
    cases = [run_of(rng, 2, 1, always(1, "compute", 4.0)), run_of(rng, 1, 3, no_extra)]
    for cause in CAUSES:
        ranks = rng.integer(3, 5)
        cases.append(run_of(rng, ranks, rng.integer(6, 9), always(rng.integer(0, ranks - 1), cause, 2.0)))
    for cause in CAUSES[:2]:
        ranks = rng.integer(3, 5)
        cases.append(run_of(rng, ranks, 10, seldom(rng, ranks, cause)))
    cases += [run_of(rng, rng.integer(2, 4), 8, no_extra), run_of(rng, 4, 8, shifted(rng.integer(0, 3)))]
    return [{"cases": [[case] for case in cases]}]


def no_extra(rank: int, cause: str, step: int) -> float:
    return 0.0


def always(late: int, main: str, seconds: float) -> Extra:
    """Its other parts are a little longer as well, so that the longest excess has to be looked for."""
    return lambda rank, cause, step: (seconds if cause == main else seconds / 4) * (rank == late)


def seldom(rng: CaseGenerator, ranks: int, main: str) -> Extra:
    """One rank in one step, for long; its neighbour in most steps, for an instant."""
    late, slow = rng.integer(0, ranks - 1), rng.integer(2, 8)

    def extra(rank: int, cause: str, step: int) -> float:
        if rank == late and step == slow:
            return 9.0 if cause == main else 0.0
        return 6 * GRAIN if rank == (late + 1) % ranks and cause == "compute" else 0.0

    return extra


def shifted(odd: int) -> Extra:
    """A rank that computes longer, and whose data come as much sooner: nobody waits for it."""
    return lambda rank, cause, step: {"data": -0.25, "compute": 0.25}.get(cause, 0.0) * (rank == odd)


def run_of(rng: CaseGenerator, ranks: int, steps: int, extra: Extra) -> Timelines:
    """All ranks begin together, and in each step the jitter of each is another: no two call last at one instant."""
    now, timelines = [0.0] * ranks, [[] for _ in range(ranks)]
    for step in range(steps):
        pieces = [[] for _ in range(ranks)]
        for rank, jitter in enumerate(shuffled(rng, range(ranks))):
            data, compute = (USUAL[cause] + extra(rank, cause, step) for cause in CAUSES[:2])
            for lane, seconds in (("data", data), ("compute", compute / 2), ("compute", compute / 2 + GRAIN * jitter)):
                pieces[rank].append((lane, now[rank], now[rank] + seconds))
                now[rank] += seconds
        last = max(now)
        for rank, called in enumerate(now):
            now[rank] = last + USUAL["link"] + extra(rank, "link", step)
            pieces[rank].append(("communication", called, now[rank]))
            timelines[rank].append(shuffled(rng, pieces[rank]))
    return timelines


def shuffled(rng: CaseGenerator, several: Sequence[Any]) -> list[Any]:
    keys = [rng.integer(0, 10**6) for _ in several]
    return [several[place] for place in sorted(range(len(several)), key=keys.__getitem__)]


# -- the rule, and what people do instead ----------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Read:
    """Of each rank: charged, seconds that others waited for it; times, how often it called last; waited, seconds that
    it waited; own, its seconds by cause; whole, the same, but with a link's waiting. length: of the run."""

    length: float
    charged: list[float]
    times: list[float]
    waited: list[float]
    own: list[dict[str, float]]
    whole: list[dict[str, float]]


def read(timelines: Timelines) -> Read:
    n = len(timelines)
    spans = [span for own in timelines for step in own for span in step]
    length = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    charged, times, waited = ([0.0] * n for _ in range(3))
    own, whole = ([dict.fromkeys(CAUSES, 0.0) for _ in range(n)] for _ in range(2))
    for step in zip(*timelines, strict=True):
        calls = [next(start for lane, start, _ in pieces if lane == "communication") for pieces in step]
        last = max(calls)
        late = calls.index(last)
        times[late] += 1
        for rank, pieces in enumerate(step):
            charged[late] += last - calls[rank]
            waited[rank] += last - calls[rank]
            for lane, start, end in pieces:
                cause = lane if lane in CAUSES else "link"
                own[rank][cause] += end - (last if cause == "link" else start)
                whole[rank][cause] += end - start
    return Read(length=length, charged=charged, times=times, waited=waited, own=own, whole=whole)


def share(found: Read) -> float:
    """Of the run: the seconds that each other rank waits for the one that is waited for most."""
    return max(found.charged) / (found.length * max(1, len(found.charged) - 1))


def beyond(seconds: list[dict[str, float]], rank: int) -> dict[str, float]:
    others = [one for other, one in enumerate(seconds) if other != rank]
    return {cause: seconds[rank][cause] - statistics.median(one[cause] for one in others) for cause in CAUSES}


def named(timelines: Timelines, *, by: str = "charged", cause: str = "beyond", always: bool = False) -> Any:
    """by: the field of Read of which the largest names the rank. cause: "beyond", "largest" or "whole". always: no rank
    is too harmless to be named."""
    found = read(timelines)
    if len(timelines) == 1 or share(found) <= NOBODY and not always:
        return None
    values = getattr(found, by)
    rank = values.index(max(values))
    seconds = {"beyond": lambda: beyond(found.own, rank), "whole": lambda: beyond(found.whole, rank)}
    parts = seconds.get(cause, lambda: found.own[rank])()
    return [rank, max(parts, key=parts.get)]


WRONG: dict[str, list[Callable[[Timelines], Any]]] = {
    "waiting_rank_named": [lambda timelines: named(timelines, by="waited")],
    "times_counted": [lambda timelines: named(timelines, by="times")],
    "waiting_in_link": [lambda timelines: named(timelines, cause="whole")],
    "longest_part": [lambda timelines: named(timelines, cause="largest")],
    "somebody_always": [lambda timelines: named(timelines, always=True)],
}
ANSWER = Words(en="the straggler and its cause", zh="掉队者及原因")
TASK = answers.question_task(
    "10.straggler", "straggler(timelines)", ANSWER, named, WRONG, make_inputs=make_inputs, hints=LAB.hints(*WRONG)
)
