"""One clock for all ranks: offset and drift of each, from the collectives at which they met.

Nobody leaves an all-reduce before the last rank has come, and all leave it at about the same moment. So the ends of one
collective, as two clocks show them, differ by what the clocks differ. That gives a line (offset and drift) by least
squares through medians, which a late wake-up here and there does not move. And it gives bounds: on no rank may a
collective end before another rank's start. Cristian 1989 bounds a clock by a round trip in the same way.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from helpers.commands.traces.messages import TOGETHER, Message

BINS = 12  # medians through which a line is laid
FOR_DRIFT = 2.0  # seconds of trace that a drift needs: 20 millionths of it are 0.04 ms
SURE = 3.0  # standard errors that a drift must be away from none
TRUSTED = 1e-4  # seconds by which ends and starts of one machine's ranks may cross: what a profiler's clock is off


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How far a rank's clock is ahead of the first rank's: offset + drift * (t - at), in seconds of its own clock.

    spread: half of what the meetings leave open, seconds; None for the first rank. meetings: how many told.
    """

    rank: int
    offset: float = 0.0
    drift: float = 0.0
    at: float = 0.0
    spread: float | None = None
    meetings: int = 0

    def true(self, seconds: float) -> float:
        """An instant of this rank's clock on the first rank's."""
        return seconds - self.offset - self.drift * (seconds - self.at)


def clocks(ranks: Sequence[int], meetings: Iterable[list[Message]], *, hosts: Sequence[str]) -> dict[int, Clock]:
    """A clock for each rank. hosts: of the ranks; those of one machine share a clock, if their messages agree with it.

    A rank that met no other one keeps its own clock, with 0 meetings.
    """
    met: dict[tuple[int, int], list[tuple[Message, Message]]] = defaultdict(list)
    for meeting in meetings:
        if meeting[0].op in TOGETHER:
            for one in meeting:
                for other in meeting:
                    met[one.rank, other.rank].append((one, other))
    named = dict(zip(ranks, hosts, strict=True))
    found = {ranks[0]: Clock(rank=ranks[0])}
    for rank in sorted(ranks[1:], key=lambda rank: -len(met[ranks[0], rank])):
        known = max(found, key=lambda other: len(met[other, rank]))  # the first rank, where they met
        if parts := met[known, rank]:
            same = bool(named[known]) and named[known] == named[rank]
            found[rank] = _after(found[known], _ahead(rank, parts, same))
    return {rank: found.get(rank, Clock(rank=rank)) for rank in ranks}


def _ahead(rank: int, parts: list[tuple[Message, Message]], same_host: bool) -> Clock:
    """How far the second one's clock is ahead of the first one's."""
    at = statistics.fmean(other.end for _, other in parts)
    if same_host:
        lowest, highest = _bounds(parts, 0.0, at)
        if lowest <= TRUSTED and highest >= -TRUSTED:
            return Clock(rank=rank, at=at, spread=max(0.0, highest - lowest) / 2, meetings=len(parts))
    took = [min(one.end - one.ready, other.end - other.ready) for one, other in parts]
    usual = statistics.median(took)
    quick = [(other.end, other.end - one.end) for (one, other), own in zip(parts, took, strict=True) if own <= usual]
    offset, drift = _line(sorted(quick), at)
    lowest, highest = _bounds(parts, drift, at)
    if lowest <= highest:
        offset = min(max(offset, lowest), highest)
    return Clock(
        rank=rank, offset=offset, drift=drift, at=at, spread=abs(highest - lowest) / 2, meetings=len(parts)
    )  # fmt: skip


def _bounds(parts: list[tuple[Message, Message]], drift: float, at: float) -> tuple[float, float]:
    """Between which offsets no part ends before another one's start."""
    lowest = max(other.ready - one.end - drift * (other.ready - at) for one, other in parts)
    highest = min(other.end - one.ready - drift * (other.end - at) for one, other in parts)
    return lowest, highest


def _line(points: list[tuple[float, float]], at: float) -> tuple[float, float]:
    """Height at `at`, and slope, of the line through the medians of neighbouring points."""
    size = max(1, -(-len(points) // BINS))
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    middles = [tuple(map(statistics.median, zip(*one, strict=True))) for one in bins]
    if len(middles) < 3 or points[-1][0] - points[0][0] < FOR_DRIFT:
        return statistics.median(height for _, height in points), 0.0
    xs, ys = zip(*middles, strict=True)
    slope, height = statistics.linear_regression(xs, ys)
    rest = math.sqrt(sum((y - height - slope * x) ** 2 for x, y in middles) / (len(middles) - 2))
    if abs(slope) < SURE * rest / (statistics.pstdev(xs) * math.sqrt(len(xs))):
        return statistics.median(height for _, height in points), 0.0
    return height + slope * at, slope


def _after(known: Clock, own: Clock) -> Clock:
    """Ahead of a clock that is itself ahead of the first rank's."""
    offset = own.offset + known.offset + known.drift * (own.at - own.offset - known.at)
    spread = (known.spread or 0.0) + own.spread
    return replace(own, offset=offset, drift=own.drift + known.drift, spread=spread)
