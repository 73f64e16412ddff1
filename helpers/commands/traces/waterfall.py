"""Divides each step of a rank into compute, communication, waiting, data loading and host time, and finds stragglers.

Each instant of a rank belongs to one part, so the parts add up to the step. Communication that runs while the rank
computes counts as compute, because it is hidden. Of the rest, loading data comes before a message, a message that
moves bytes before one that waits, and what remains is the host's: Python, kernel launches, a GPU without work. A
straggler is a rank that the others wait for. `Waterfall` and `find_straggler` are what `explain.py` and the explorer of
chapter 10 read.
"""

from __future__ import annotations

import functools
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from helpers.commands.traces.run import TraceRun
from helpers.records import Span

PARTS = ("compute", "communication", "waiting", "data", "host")
_MESSAGE_PARTS = ("communication", "waiting")
_PRIORITY = ("compute", "data", "communication", "waiting")  # the first of these that runs owns an instant
CAUSES = ("compute", "data", "communication", "host")  # of a straggler; communication: its link is slow
# Shares of a step. The loss of a step is the time that one rank costs the others in it: see `find_straggler`.
MIN_EXCESS = 0.04  # a rank is a straggler in all steps if its median loss is at least this share
MIN_EXCESS_SELDOM = 0.15  # a rank is a straggler in some steps if it loses at least this share in a slow one
MIN_MATCHED = 0.9  # of the time of messages: with less of it matched, nothing is said of a link
SLOW_SHARE = 0.5  # of the loss in a slow step, not of the step: a step that loses more than this counts as slow


@dataclass(slots=True)
class Segment:
    """A stretch of one rank's step that belongs to one part.

    step: an index into `TraceRun.steps` of this rank. late_rank: the rank that it waits for.
    has_message: whether a message is in flight, exposed or hidden.
    """

    start: float
    end: float
    part: str
    step: int
    late_rank: int | None = None
    has_message: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


def segments(run: TraceRun, rank: int, spans: Iterable[Span]) -> list[Segment]:
    """This rank's steps, cut into segments in order of time. spans: those of this rank."""
    steps = run.steps[rank]
    # (when, change of the number of running spans, part, for whom the rank waits), and where a step begins or ends
    # (when, 0, "begins" or "ends", index of the step)
    events: list[tuple[float, int, str, int | None]] = []
    for span in spans:
        if span.lane in ("compute", "data", "communication"):
            events += [(span.start, 1, span.lane, None), (span.end, -1, span.lane, None)]
    for message in run.messages:
        if message.rank == rank and message.last_ready is not None and message.last_ready > message.ready:
            end, late_rank = min(message.last_ready, message.end), message.late_rank
            events += [(message.ready, 1, "waiting", late_rank), (end, -1, "waiting", late_rank)]
    for index, step in enumerate(steps):
        events += [(step.start, 0, "begins", index), (step.end, 0, "ends", index)]
    return _sweep(sorted(events, key=lambda event: event[0]))


def _sweep(events: list[tuple[float, int, str, int | None]]) -> list[Segment]:
    """Goes through the events in order of time and makes a segment whenever the part changes.

    at: up to which time segments are made. step: the index of the present step, -1 between two steps.
    last: all of the last segment but its times. which: the rank that is waited for, or the index of the step.
    """
    found: list[Segment] = []
    running = dict.fromkeys(_PRIORITY, 0)  # part -> how many of its spans are running
    waits: dict[int | None, int] = defaultdict(int)  # rank -> how many messages wait for it
    at, step, last = 0.0, -1, None
    for when, change, part, which in events:
        if step >= 0 and when > at:
            owner = next(filter(running.get, _PRIORITY), "host")
            late_rank = next((rank for rank, count in waits.items() if count), None) if owner == "waiting" else None
            new = (owner, step, late_rank, bool(running["communication"] or running["waiting"]))
            if last == new:
                found[-1].end = when
            else:
                found.append(Segment(at, when, *new))
            last = new
        at = when
        if not change:
            if part == "begins":
                step = which
            elif step == which:  # otherwise the next step has begun already
                step = -1
            continue
        running[part] += change
        if part == "waiting":
            waits[which] += change
    return found


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """The segments of all ranks. segments: rank -> its segments. steps: the numbers of the steps that every rank has.

    indices: rank -> index into `TraceRun.steps` -> index into `steps`; steps that some rank lacks have none.
    matched: which share of the messages' time is of messages whose part on the other ranks was found; 1 without any.
    """

    segments: dict[int, list[Segment]]
    steps: tuple[int, ...]
    indices: dict[int, dict[int, int]]
    matched: float = 1.0

    @classmethod
    def of(cls, run: TraceRun) -> Waterfall:
        """The waterfall of a run. Raises ValueError where the ranks have no step in common."""
        spans: dict[int, list[Span]] = {rank: [] for rank in run.ranks}
        for span in run.timeline.spans:
            spans[span.rank].append(span)
        numbers = [{step.number for step in run.steps[rank]} for rank in run.ranks]
        common = sorted(set.intersection(*numbers))
        if not common:
            raise ValueError("the ranks' traces have no step in common; record the same steps on every rank")
        indices = {
            rank: {i: common.index(step.number) for i, step in enumerate(run.steps[rank]) if step.number in common}
            for rank in run.ranks
        }
        found = {rank: segments(run, rank, spans[rank]) for rank in spans}
        seconds = {is_matched: 0.0 for is_matched in (True, False)}
        for message in run.messages:
            seconds[message.last_ready is not None] += message.end - message.ready
        matched = seconds[True] / sum(seconds.values()) if any(seconds.values()) else 1.0
        return cls(segments=found, steps=tuple(common), indices=indices, matched=matched)

    @property
    def causes(self) -> tuple[str, ...]:
        """The parts that may be a straggler's fault. Communication is one only where most messages were matched."""
        return tuple(part for part in CAUSES if part != "communication" or self.matched >= MIN_MATCHED)

    @functools.cached_property
    def tables(self) -> dict[int, list[dict[str, float]]]:
        """Rank -> for each step: part -> seconds."""
        found = {rank: [dict.fromkeys(PARTS, 0.0) for _ in self.steps] for rank in self.segments}
        for rank, row in self.segments.items():
            for segment in row:
                if (index := self.indices[rank].get(segment.step)) is not None:
                    found[rank][index][segment.part] += segment.seconds
        return found

    def hidden(self) -> float:
        """Seconds per step and rank in which a message is in flight behind compute or data loading."""
        behind = (s for row in self.segments.values() for s in row if s.has_message and s.part not in _MESSAGE_PARTS)
        hidden = sum(segment.seconds for segment in behind)
        return hidden / len(self.segments) / len(self.steps)

    @functools.cached_property
    def waited_for(self) -> dict[int, list[float]]:
        """Rank -> for each step: the seconds that all other ranks together only waited for it."""
        table = {rank: [0.0] * len(self.steps) for rank in self.segments}
        for rank, row in self.segments.items():
            for segment in row:
                index = self.indices[rank].get(segment.step)
                if index is not None and segment.late_rank in table and segment.late_rank != rank:
                    table[segment.late_rank][index] += segment.seconds
        return table

    def critical_path(self) -> dict[tuple[int, str], float]:
        """The critical path through all steps: (rank, part) -> seconds per step.

        It is followed backwards from the last end. From a segment that waits, the path goes over to the rank for which
        it waits, at the moment at which that rank arrived. at: the time at which the path is. visited: the ranks over
        which it has gone without a step back in time; it returns to none of them, so that it cannot go in a circle.
        """
        starts = {rank: [segment.start for segment in row] for rank, row in self.segments.items() if row}
        if not starts:
            return {}
        rank = max(starts, key=lambda one: self.segments[one][-1].end)
        first = min(row[0] for row in starts.values())
        found: dict[tuple[int, str], float] = defaultdict(float)
        at, visited = self.segments[rank][-1].end, {rank}
        while at > first:
            index = bisect_left(starts[rank], at) - 1  # the segment began before `at`, so each turn goes further back
            if index < 0:
                break
            segment = self.segments[rank][index]
            if segment.part == "waiting" and segment.late_rank in starts and segment.late_rank not in visited:
                rank, at = segment.late_rank, min(at, segment.end)
                visited.add(rank)
                continue
            found[rank, segment.part] += min(at, segment.end) - segment.start
            at, visited = segment.start, {rank}
        return {key: seconds / len(self.steps) for key, seconds in found.items()}


# -- stragglers ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank that the others wait for. cause: one of CAUSES, the part of its step that is too long.

    seconds: that each other rank waits for it per slow step. share: of all waiting in the run, from 0 to 1.
    steps: the numbers of the slow steps. is_seldom: whether only some steps are slow.
    period: the number of steps from one slow step to the next, None where it is not always the same.
    excess: part -> seconds by which it is longer than on the other ranks, per slow step.
    """

    rank: int
    cause: str
    seconds: float
    share: float
    steps: tuple[int, ...]
    is_seldom: bool
    period: int | None
    excess: Mapping[str, float]


def find_straggler(waterfall: Waterfall) -> Straggler | None:
    """The straggler; None where no rank stands out, or where there is only one rank.

    Two things must come together: one part of the rank's step is longer than the others', and the others wait for the
    rank longer than it waits itself. The loss of a step is the smaller of the two. Communication is a cause only where
    most messages met their other side, since otherwise it contains waiting. If the median over the steps is
    large enough, the rank is always late. Otherwise one slow step in ten is enough.
    """
    tables, waited_for = waterfall.tables, waterfall.waited_for
    num_others = len(tables) - 1
    if not num_others:
        return None
    length = statistics.median(sum(step.values()) for row in tables.values() for step in row)  # seconds of a step
    longer = {(rank, part): excess_of(tables, rank, part) for rank in tables for part in CAUSES}
    net_waits = {
        rank: [seconds / num_others - step["waiting"] for seconds, step in zip(waited_for[rank], row, strict=True)]
        for rank, row in tables.items()
    }
    of_causes = {key: row for key, row in longer.items() if key[1] in waterfall.causes}
    losses = {key: list(map(min, excess, net_waits[key[0]])) for key, excess in of_causes.items()}
    medians = {key: min(statistics.median(longer[key]), statistics.median(net_waits[key[0]])) for key in losses}
    rank, cause = key = max(medians, key=medians.get)
    slow, is_seldom = range(len(losses[key])), False
    if medians[key] < MIN_EXCESS * length:
        rank, cause = key = max(losses, key=lambda one: _loss_in_slow_step(losses[one]))
        loss = _loss_in_slow_step(losses[key])
        if loss < MIN_EXCESS_SELDOM * length or len(losses[key]) < 3:  # in one or two steps, "some" means nothing
            return None
        slow, is_seldom = [index for index, seconds in enumerate(losses[key]) if seconds > SLOW_SHARE * loss], True
    total = sum(map(sum, waited_for.values()))
    distances = {after - before for before, after in zip(slow, slow[1:], strict=False)}  # of neighbours
    waits = [waited_for[rank][index] for index in slow]
    return Straggler(
        rank=rank, cause=cause, seconds=statistics.fmean(wait / num_others for wait in waits), share=sum(waits) / total,
        steps=tuple(waterfall.steps[index] for index in slow),
        is_seldom=is_seldom, period=distances.pop() if is_seldom and len(distances) == 1 else None,
        excess={part: statistics.median(longer[rank, part][index] for index in slow) for part in CAUSES},
    )  # fmt: skip


def _loss_in_slow_step(losses: Sequence[float]) -> float:
    """The loss that a slow step shows if one step in ten is slow: of 20 steps the second highest, of 30 the third."""
    return sorted(losses, reverse=True)[max(0, len(losses) // 10 - 1)]


def excess_of(tables: Mapping[int, list[dict[str, float]]], rank: int, part: str) -> list[float]:
    """By how many seconds this rank's part is longer than the median of the other ranks', for each step."""
    others = [
        statistics.median(step[part] for step in steps)
        for steps in zip(*(row for one, row in tables.items() if one != rank), strict=True)
    ]
    return [step[part] - other for step, other in zip(tables[rank], others, strict=True)]
