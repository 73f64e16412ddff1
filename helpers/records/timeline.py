"""Records what every rank does and when, in lanes, and what it holds in memory meanwhile.

A `Timeline` is predicted (predict/time), emulated, or recorded from a real run; one function draws all three. Every
timeline has the lanes compute and communication. A profile adds waiting for other ranks, what the host does, and the
loading of data. `MemoryBreakdown` has the bytes of one rank by kind at one instant.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from helpers.quantities.units import format_seconds
from helpers.records.checks import Json, check_items, check_number, check_one_of, check_order

MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "temporaries")


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown(Json):
    """Bytes of one rank by kind at a named instant, such as "after backward"."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    buffers: int = 0
    temporaries: int = 0
    instant: str = ""

    def __post_init__(self) -> None:
        for name in MEMORY_KINDS:
            check_number("MemoryBreakdown", name, getattr(self, name))

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(getattr(self, name) for name in MEMORY_KINDS)

    @property
    def dominant(self) -> str:
        """The kind with most bytes, such as "activations"; of equal ones the first in MEMORY_KINDS."""
        return max(MEMORY_KINDS, key=lambda kind: getattr(self, kind))

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare` (comparison.py), the table of predicted and measured values: name -> (value, unit)."""
        return {name: (getattr(self, name), "bytes") for name in (*MEMORY_KINDS, "total")}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Bytes that a rank holds in memory from `start` until just before `end` (seconds). kind: one of MEMORY_KINDS."""

    rank: int
    name: str
    kind: str
    num_bytes: int
    start: float
    end: float

    def __post_init__(self) -> None:
        check_number("Holding", "rank", self.rank)
        check_one_of("Holding", "kind", self.kind, MEMORY_KINDS)
        check_number("Holding", "num_bytes", self.num_bytes)
        check_order("a Holding", self.start, self.end)


LANES = ("compute", "communication", "waiting", "host", "data")  # as they are drawn, from the top
# input_grad and weight_grad are the two parts of a backward that a pipeline schedule splits: the gradient of the input,
# for which the stage before waits, and the gradients of the weights, which may come later.
KINDS = ("forward", "backward", "input_grad", "weight_grad", "optimizer", "communication", "waiting", "data", "other")
SOURCES = ("predicted", "emulated", "recorded")


@dataclass(frozen=True, kw_only=True)
class Span:
    """One thing that one rank did from `start` to `end` (seconds); `num_bytes` is the payload of a message.

    lane: one of LANES. kind: one of KINDS, by which it is coloured.
    """

    rank: int
    lane: str
    name: str
    kind: str
    start: float
    end: float
    num_bytes: int = 0

    def __post_init__(self) -> None:
        check_number("Span", "rank", self.rank)
        check_one_of("Span", "lane", self.lane, LANES)
        check_one_of("Span", "kind", self.kind, KINDS)
        check_order("a Span", self.start, self.end)
        check_number("Span", "num_bytes", self.num_bytes)

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start

    @classmethod
    def unchecked(
        cls, rank: int, lane: str, name: str, kind: str, start: float, end: float, num_bytes: int = 0
    ) -> Span:
        """A Span without the checks, for a simulator that makes hundreds of thousands of spans.

        It fills the instance's `__dict__` directly, because the frozen dataclass's `__init__` takes most of the time.
        """
        span = cls.__new__(cls)
        values = span.__dict__
        values["rank"], values["lane"], values["name"], values["kind"] = rank, lane, name, kind
        values["start"], values["end"], values["num_bytes"] = start, end, num_bytes
        return span


@contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Pause garbage collection while hundreds of thousands of spans are made and none is freed.

    It would take a fifth to a half of the time. As a decorator, it pauses the collector while the function runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def covered_seconds(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans runs: overlapping spans count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((span.start, span.end) for span in spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


@dataclass(frozen=True, kw_only=True)
class Timeline(Json):
    """Spans of every rank on one clock (seconds). `source` says whether it was predicted, emulated or recorded.

    held: what the ranks hold in memory and when; empty where memory was not recorded. A holding does not lengthen the
    timeline: its duration is that of the spans.
    """

    spans: tuple[Span, ...]
    source: str
    title: str = ""
    held: tuple[Holding, ...] = ()
    _nested_records: ClassVar = {"spans": Span, "held": Holding}  # for Json's `from_json`, and the checks below

    def __post_init__(self) -> None:
        for name, kind in self._nested_records.items():
            object.__setattr__(self, name, tuple(getattr(self, name)))  # frozen; JSON and callers may have a list
            check_items("Timeline", getattr(self, name), kind)
        check_one_of("Timeline", "source", self.source, SOURCES)

    @classmethod
    def merge(cls, timelines: Iterable[Timeline]) -> Timeline:
        """One timeline from several, such as one per rank. ValueError for none, or where their sources differ."""
        parts = tuple(timelines)
        if len({part.source for part in parts}) != 1:
            raise ValueError(f"Timeline.merge got {len(parts)} timelines; give at least one, all of the same source")
        spans = tuple(span for part in parts for span in part.spans)
        return replace(parts[0], spans=spans, held=tuple(holding for part in parts for holding in part.held))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a span, in order."""
        return tuple(sorted({span.rank for span in self.spans}))

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes compute and communication, and every other lane that has a span, in the order of LANES."""
        used = {"compute", "communication", *(span.lane for span in self.spans)}
        return tuple(lane for lane in LANES if lane in used)

    @property
    def start(self) -> float:
        """The earliest start of a span in seconds, 0 without spans."""
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:
        """The latest end of a span in seconds, 0 without spans."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def duration(self) -> float:
        """Seconds from the earliest start to the latest end."""
        return self.end - self.start

    def for_rank(self, rank: int) -> Timeline:
        """The spans and holdings of one rank. ValueError where it has no span."""
        spans = tuple(span for span in self.spans if span.rank == rank)
        if not spans:
            raise ValueError(f"rank {rank!r} has no span in this Timeline; its ranks are {list(self.ranks)}")
        return replace(self, spans=spans, held=tuple(holding for holding in self.held if holding.rank == rank))

    def _lasts(self, item: Span | Holding, instant: float) -> bool:
        """Whether the item covers the instant. It ends just before its `end`, except at the end of the timeline."""
        return item.start <= instant < item.end or instant == item.end == self.end

    def at(self, rank: int, instant: float) -> tuple[Span, ...]:
        """The spans that run on this rank at an instant (seconds). ValueError when the rank has no span at all."""
        return tuple(span for span in self.for_rank(rank).spans if self._lasts(span, instant))

    def holds(self, rank: int, instant: float) -> MemoryBreakdown:
        """What this rank holds at an instant (seconds), by kind. ValueError when the rank has no span at all."""
        sums = dict.fromkeys(MEMORY_KINDS, 0)
        for holding in self.for_rank(rank).held:
            if self._lasts(holding, instant):
                sums[holding.kind] += holding.num_bytes
        return MemoryBreakdown(**sums, instant=f"at {format_seconds(instant)}")

    def busy(self, rank: int, lane: str = "compute") -> float:
        """Seconds in which the rank has a span in this lane; overlapping spans count once."""
        check_one_of("Timeline.busy", "lane", lane, LANES)
        return covered_seconds(span for span in self.for_rank(rank).spans if span.lane == lane)

    def exposed_communication(self, rank: int) -> float:
        """Seconds in which the rank communicates and computes nothing: what overlap did not hide."""
        spans = (span for span in self.for_rank(rank).spans if span.lane in ("compute", "communication"))
        return covered_seconds(spans) - self.busy(rank)

    def idle(self, rank: int) -> float:
        """Seconds of the whole timeline in which the rank computes nothing; exposed communication is part of them."""
        return self.duration - self.busy(rank)

    @property
    def bubble_fraction(self) -> float:
        """The share of the time in which a rank computes nothing: 1 - mean over ranks(busy) / the longest rank's time.

        A rank's time goes from its first to its last compute span. For equal stages this is the bubble rate of Qi et
        al. 2023, which is (p - 1) / (m + p - 1) for 1F1B with p stages and m micro-batches. Megatron's (p - 1) / m is
        `bubble_over_ideal`.
        """
        rows = self._compute_by_rank()
        longest = max((max(s.end for s in row) - min(s.start for s in row) for row in rows), default=0.0)
        if not longest:
            return 0.0
        mean_busy = sum(map(covered_seconds, rows)) / len(rows)
        return 1 - mean_busy / longest

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over the time that a rank computes: (p - 1) / m for 1F1B (Narayanan et al. 2021, section 2.2.1).

        Measured on the whole timeline, so with equal stages and no sends it is bubble / (1 - bubble).
        """
        rows = self._compute_by_rank()
        busy = sum(map(covered_seconds, rows)) / max(1, len(rows))
        return self.duration / busy - 1 if busy else 0.0

    def _compute_by_rank(self) -> list[list[Span]]:
        """The compute spans of each rank that has one."""
        rows: dict[int, list[Span]] = {}
        for span in self.spans:
            if span.lane == "compute":
                rows.setdefault(span.rank, []).append(span)
        return list(rows.values())

    def shifted_to_zero(self) -> Timeline:
        """The same timeline, starting at 0 s."""
        zero = self.start

        def moved(items: tuple) -> tuple:
            return tuple(replace(item, start=item.start - zero, end=item.end - zero) for item in items)

        return replace(self, spans=moved(self.spans), held=moved(self.held))

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare`: name -> (value, unit). The worst rank counts, because the others wait for it."""
        messages = [span for span in self.spans if span.lane == "communication"]
        return {
            "duration": (self.duration, "seconds"),
            "exposed communication": (max(map(self.exposed_communication, self.ranks), default=0.0), "seconds"),
            "idle": (max(map(self.idle, self.ranks), default=0.0), "seconds"),
            "messages": (len(messages), "count"),
            "payload": (sum(span.num_bytes for span in messages), "bytes"),
        }
