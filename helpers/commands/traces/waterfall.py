"""Where a step's time went: each instant of a rank has one name, so that the names add up to the step.

What computes hides what communicates. Of the rest, loading data counts before a message, a message that moves before
one that waits, and what is left is the host's: Python, launches, a GPU that nobody feeds.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.commands.traces.run import Run
from helpers.records import Span

PARTS = ("compute", "communication", "waiting", "data", "host")
_SENT = ("communication", "waiting")
_FIRST = ("compute", "data", "communication", "waiting")  # who names an instant that several claim


@dataclass(slots=True)
class Segment:
    """A stretch of one rank's step under one name. step: its place in `Run.steps`. late: for whom it waits.

    talks: whether a message is under way, in front or behind.
    """

    start: float
    end: float
    part: str
    step: int
    late: int | None = None
    talks: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


def segments(run: Run, rank: int, spans: Iterable[Span]) -> list[Segment]:
    """This rank's steps, cut into segments in order. spans: its own."""
    steps = run.steps[rank]
    claims: list[tuple[float, int, str, int | None]] = []  # when, begins or ends, part, for whom
    for one in spans:
        if one.lane in ("compute", "data", "communication"):
            claims += [(one.start, 1, one.lane, None), (one.end, -1, one.lane, None)]
    for one in run.messages:
        if one.rank == rank and one.last is not None and one.last > one.ready:
            claims += [(one.ready, 1, "waiting", one.late), (min(one.last, one.end), -1, "waiting", one.late)]
    for number, step in enumerate(steps):
        claims += [(step.start, 0, "begins", number), (step.end, 0, "ends", number)]
    return _swept(sorted(claims, key=lambda claim: claim[0]))


def _swept(claims: list[tuple[float, int, str, int | None]]) -> list[Segment]:
    found: list[Segment] = []
    running = dict.fromkeys(_FIRST, 0)
    waits: dict[int | None, int] = defaultdict(int)
    at, step, last = 0.0, -1, None
    for when, change, claimed, which in claims:
        if step >= 0 and when > at:
            part = next(filter(running.get, _FIRST), "host")
            late = next((rank for rank, count in waits.items() if count), None) if part == "waiting" else None
            new = (part, step, late, bool(running["communication"] or running["waiting"]))
            if last == new:
                found[-1].end = when
            else:
                found.append(Segment(at, when, *new))
            last = new
        at = when
        if not change:
            step = which if claimed == "begins" else -1 if step == which else step  # the next one may have begun
            continue
        running[claimed] += change
        if claimed == "waiting":
            waits[which] += change
    return found


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """All ranks' segments. steps: the numbers of the steps that every rank has.

    Raises ValueError, from `of`, where the ranks have no step in common.
    """

    segments: dict[int, list[Segment]]
    steps: tuple[int, ...]
    places: dict[int, dict[int, int]]  # rank -> place in Run.steps -> which of `steps`

    @classmethod
    def of(cls, run: Run) -> Waterfall:
        own: dict[int, list[Span]] = {rank: [] for rank in run.ranks}
        for span in run.timeline.spans:
            own[span.rank].append(span)
        numbers = [{step.number for step in run.steps[rank]} for rank in run.ranks]
        common = sorted(set.intersection(*numbers))
        if not common:
            raise ValueError("the ranks' traces have no step in common; record the same steps on every rank")
        places = {
            rank: {
                place: common.index(step.number) for place, step in enumerate(run.steps[rank]) if step.number in common
            }
            for rank in run.ranks
        }
        return cls(segments={rank: segments(run, rank, own[rank]) for rank in own}, steps=tuple(common), places=places)

    @functools.cached_property
    def tables(self) -> dict[int, list[dict[str, float]]]:
        """Rank -> for each step: part -> seconds."""
        found = {rank: [dict.fromkeys(PARTS, 0.0) for _ in self.steps] for rank in self.segments}
        for rank, row in self.segments.items():
            for one in row:
                if (place := self.places[rank].get(one.step)) is not None:
                    found[rank][place][one.part] += one.end - one.start
        return found

    def hidden(self) -> float:
        """Seconds per step and rank in which messages are under way and something else is done."""
        behind = sum(
            one.seconds for row in self.segments.values() for one in row if one.talks and one.part not in _SENT
        )
        return behind / len(self.segments) / len(self.steps)

    @functools.cached_property
    def waited_for(self) -> dict[int, list[float]]:
        """Rank -> for each step: seconds that all others together waited for it and did nothing else."""
        table = {rank: [0.0] * len(self.steps) for rank in self.segments}
        for rank, row in self.segments.items():
            for one in row:
                place = self.places[rank].get(one.step)
                if place is not None and one.late in table and one.late != rank:
                    table[one.late][place] += one.seconds
        return table

    def path(self) -> dict[tuple[int, str], float]:
        """The critical path through all steps: (rank, part) -> seconds per step.

        From the last end backwards: who waits hands over to the rank that it waits for, at the moment when it came.
        """
        starts = {rank: [one.start for one in row] for rank, row in self.segments.items() if row}
        if not starts:
            return {}
        rank = max(starts, key=lambda one: self.segments[one][-1].end)
        begins = min(row[0] for row in starts.values())
        found: dict[tuple[int, str], float] = defaultdict(float)
        at, handed = self.segments[rank][-1].end, {rank}
        while at > begins:
            place = bisect_left(starts[rank], at) - 1  # it began before: each turn goes further back
            if place < 0:
                break
            one = self.segments[rank][place]
            if one.part == "waiting" and one.late in starts and one.late not in handed:
                rank, at = one.late, min(at, one.end)
                handed.add(rank)
                continue
            found[rank, one.part] += min(at, one.end) - one.start
            at, handed = one.start, {rank}
        return {key: seconds / len(self.steps) for key, seconds in found.items()}
