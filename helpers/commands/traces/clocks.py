"""Estimates how far each rank's clock is ahead of the first rank's, from the collectives that both took part in.

No rank leaves an all-reduce before the last rank has arrived, and all leave it at about the same moment. So the
difference between the ends of one collective, as two clocks show them, is the difference of the clocks. A straight line
through these differences gives offset and drift. It is fitted to medians, so that a rank which sometimes wakes up late
does not move it. There are bounds as well: a collective ends on no rank before it has started on every other. Cristian
(1989) bounds a clock by a round trip in the same way. A part is what one rank did in a collective, from `ready` to
`end` on its own clock.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from helpers.commands.traces.messages import ALL_ARRIVE, TracedMessage

NUM_BINS = 12  # medians through which the line is fitted
# Length of trace. In 2 s a usual drift of 20 millionths is 0.04 ms, too little to be told from late wake-ups.
MIN_SECONDS_FOR_DRIFT = 2.0
MIN_STANDARD_ERRORS = 3.0  # by which a drift must differ from zero to be believed
SAME_CLOCK_TOLERANCE = 1e-4  # seconds by which a collective may seem to end before it starts if two ranks share a clock
Parts = list[TracedMessage]  # the parts of all ranks in one collective
Pairs = list[tuple[TracedMessage, TracedMessage]]  # the parts of two ranks in the same collectives


@dataclass(frozen=True, kw_only=True)
class RankClock:
    """How far a rank's clock is ahead of the first rank's: offset + drift * (t - at), at time t of its own clock.

    All times are in seconds. drift: seconds per second. spread: half the width of the interval that the bounds leave,
    which says how exact the offset is; None for the first rank.
    num_collectives: from how many collectives the estimate comes.
    """

    rank: int
    offset: float = 0.0
    drift: float = 0.0
    at: float = 0.0
    spread: float | None = None
    num_collectives: int = 0

    def to_first_clock(self, seconds: float) -> float:
        """A time of this rank's clock as the first rank's clock shows it."""
        return seconds - self.offset - self.drift * (seconds - self.at)


def estimate_clocks(
    ranks: Sequence[int], collectives: Iterable[Parts], *, hosts: Sequence[str]
) -> dict[int, RankClock]:
    """A clock for each rank. hosts: their machines; ranks of one machine share a clock if their messages agree with it.

    A rank that shares no collective with another one keeps its own clock, from 0 collectives.
    """
    pairs: dict[tuple[int, int], Pairs] = defaultdict(list)
    for parts in collectives:
        if parts[0].op in ALL_ARRIVE:
            for one in parts:
                for other in parts:
                    pairs[one.rank, other.rank].append((one, other))
    host_of = dict(zip(ranks, hosts, strict=True))
    found = {ranks[0]: RankClock(rank=ranks[0])}
    # The ranks that share most collectives with the first rank come first, so that they can be references for the rest.
    for rank in sorted(ranks[1:], key=lambda rank: -len(pairs[ranks[0], rank])):
        # The rank with a clock that shares most collectives with this one; of several, the one that was found first.
        reference = max(found, key=lambda other: len(pairs[other, rank]))
        if shared := pairs[reference, rank]:
            same_host = bool(host_of[reference]) and host_of[reference] == host_of[rank]
            found[rank] = _added(found[reference], _relative_clock(rank, shared, same_host))
    return {rank: found.get(rank, RankClock(rank=rank)) for rank in ranks}


def _relative_clock(rank: int, pairs: Pairs, same_host: bool) -> RankClock:
    """How far the clock of the second rank in each pair, `rank`, is ahead of the first one's.

    same_host: whether both run on one machine. Then the offset is 0, unless the messages contradict it.
    """
    at = statistics.fmean(other.end for _, other in pairs)
    if same_host:
        lowest, highest = _offset_bounds(pairs, 0.0, at)
        if lowest <= SAME_CLOCK_TOLERANCE and highest >= -SAME_CLOCK_TOLERANCE:
            return RankClock(rank=rank, at=at, spread=max(0.0, highest - lowest) / 2, num_collectives=len(pairs))
    # Only the quicker half of the collectives is used: in a slow one, some rank may have left late.
    durations = [min(one.end - one.ready, other.end - other.ready) for one, other in pairs]
    median = statistics.median(durations)
    points = [(b.end, b.end - a.end) for (a, b), seconds in zip(pairs, durations, strict=True) if seconds <= median]
    offset, drift = _fit_line(sorted(points), at)
    lowest, highest = _offset_bounds(pairs, drift, at)
    if lowest <= highest:  # otherwise the bounds contradict each other, and only the line counts
        offset = min(max(offset, lowest), highest)
    spread = abs(highest - lowest) / 2
    return RankClock(rank=rank, offset=offset, drift=drift, at=at, spread=spread, num_collectives=len(pairs))


def _offset_bounds(pairs: Pairs, drift: float, at: float) -> tuple[float, float]:
    """The smallest and largest offset with which no rank's part ends before the other rank's part starts."""
    lowest = max(other.ready - one.end - drift * (other.ready - at) for one, other in pairs)
    highest = min(other.end - one.ready - drift * (other.end - at) for one, other in pairs)
    return lowest, highest


def _fit_line(points: list[tuple[float, float]], at: float) -> tuple[float, float]:
    """The height at `at` and the slope of a line through the medians of neighbouring points.

    points: (the time at which a collective ended, the difference of the two clocks there), in order of time.
    The slope is 0 if the points span too short a time, or if it differs from 0 by no more than chance explains.
    """
    size = max(1, math.ceil(len(points) / NUM_BINS))  # points of which each median is taken
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    medians = [tuple(map(statistics.median, zip(*one, strict=True))) for one in bins]
    if len(medians) < 3 or points[-1][0] - points[0][0] < MIN_SECONDS_FOR_DRIFT:
        return statistics.median(height for _, height in points), 0.0
    xs, ys = zip(*medians, strict=True)
    slope, height = statistics.linear_regression(xs, ys)
    # The standard deviation of the medians from the line; below, divided by the spread of the xs, the slope's error.
    deviation = math.sqrt(sum((y - height - slope * x) ** 2 for x, y in medians) / (len(medians) - 2))
    if abs(slope) < MIN_STANDARD_ERRORS * deviation / (statistics.pstdev(xs) * math.sqrt(len(xs))):
        return statistics.median(height for _, height in points), 0.0
    return height + slope * at, slope


def _added(reference: RankClock, relative: RankClock) -> RankClock:
    """The clock that is ahead of `reference` by `relative`, as a clock that is ahead of the first rank's.

    Both drifts have to be counted from one moment, `relative.at`, which is `relative.at - relative.offset` on the clock
    of `reference`.
    """
    offset = relative.offset + reference.offset + reference.drift * (relative.at - relative.offset - reference.at)
    spread = (reference.spread or 0.0) + relative.spread
    return replace(relative, offset=offset, drift=relative.drift + reference.drift, spread=spread)
