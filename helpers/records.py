"""What is predicted and what is measured, in the same types, so that one function compares them.

Timeline         spans of compute and communication on every rank
CommLog          one event for each operation of torch.distributed
MemoryBreakdown  bytes by kind at a named instant
compare          predicted beside measured beside a guess (`helpers/comparison.py`)

Times are seconds, sizes are bytes. On one Linux machine all ranks share one clock, `time.perf_counter`.
Every record is frozen, takes keywords only, checks itself and survives `to_json` and `from_json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from helpers.comparison import Comparison, compare
from helpers.units import DerivedBytes

__all__ = ["CommEvent", "CommLog", "Comparison", "DerivedBytes", "MemoryBreakdown", "Span", "Timeline", "compare"]

LANES = ("compute", "communication")
KINDS = ("forward", "backward", "input_grad", "weight_grad", "optimizer", "communication", "other")
SOURCES = ("predicted", "emulated", "recorded")
MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "temporaries")
OPS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
OPS += ("gather", "scatter", "barrier", "send", "recv")


def _check_one_of(owner: str, name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"{owner}: {name} is {given!r}, but it must be one of {', '.join(map(str, known))}")


def _check_number(owner: str, name: str, given: float) -> None:
    if not given >= 0:
        raise ValueError(f"{owner}: {name} is {given!r}, but it must be 0 or more")


def _check_order(owner: str, start: float, end: float) -> None:
    if not end >= start:
        raise ValueError(f"{owner} ends at {end!r} s, before its start at {start!r} s; are they swapped?")


def _check_items(owner: str, given: tuple, kind: type) -> None:
    wrong = next((item for item in given if not isinstance(item, kind)), None)
    if wrong is not None:
        raise ValueError(f"{owner} holds a {type(wrong).__name__}, but it must hold {kind.__name__} records only")


class _Json:
    """`to_json` and `from_json` for a frozen dataclass. `_holds`: the fields that are tuples of records."""

    _holds: ClassVar[dict[str, type]] = {}

    def to_json(self) -> str:
        """This record as JSON text. Floats survive to the last bit."""
        return json.dumps({"record": type(self).__name__, **asdict(self)})

    @classmethod
    def from_json(cls, text: str):
        """The record that `to_json` wrote. ValueError when the text holds anything else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("record", None) != cls.__name__:
            raise ValueError(f"this JSON text holds no {cls.__name__}; give the text that {cls.__name__}.to_json wrote")
        for name, kind in cls._holds.items():
            data[name] = tuple(kind(**item) for item in data[name])
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Span:
    """One thing that one rank did from `start` to `end` (seconds). `num_bytes` is the payload that it carried."""

    rank: int
    lane: str
    name: str
    kind: str
    start: float
    end: float
    num_bytes: int = 0

    def __post_init__(self) -> None:
        _check_number("Span", "rank", self.rank)
        _check_one_of("Span", "lane", self.lane, LANES)
        _check_one_of("Span", "kind", self.kind, KINDS)
        _check_order("a Span", self.start, self.end)
        _check_number("Span", "num_bytes", self.num_bytes)

    @property
    def duration(self) -> float:
        return self.end - self.start  # seconds


def covered_seconds(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans runs: overlapping spans count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((span.start, span.end) for span in spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


@dataclass(frozen=True, kw_only=True)
class Timeline(_Json):
    """Spans of every rank on one clock (seconds). `source` says whether it was predicted, emulated or recorded."""

    spans: tuple[Span, ...]
    source: str
    title: str = ""
    _holds: ClassVar = {"spans": Span}

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(self.spans))
        _check_items("Timeline", self.spans, Span)
        _check_one_of("Timeline", "source", self.source, SOURCES)

    @classmethod
    def merge(cls, timelines: Iterable[Timeline]) -> Timeline:
        """One timeline from those of several ranks. ValueError when there is none or when their sources differ."""
        parts = tuple(timelines)
        if len({part.source for part in parts}) != 1:
            raise ValueError(f"Timeline.merge got {len(parts)} timelines; give at least one, all of the same source")
        return replace(parts[0], spans=tuple(span for part in parts for span in part.spans))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a span, in order."""
        return tuple(sorted({span.rank for span in self.spans}))

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def start(self) -> float:  # seconds; 0 without spans
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:  # seconds; 0 without spans
        return max((span.end for span in self.spans), default=0.0)

    @property
    def duration(self) -> float:
        """From the earliest start to the latest end, seconds."""
        return self.end - self.start

    def for_rank(self, rank: int) -> Timeline:
        """The spans of one rank. ValueError when it has none."""
        spans = tuple(span for span in self.spans if span.rank == rank)
        if not spans:
            raise ValueError(f"rank {rank!r} has no span in this Timeline; its ranks are {list(self.ranks)}")
        return replace(self, spans=spans)

    def busy(self, rank: int, lane: str = "compute") -> float:
        """Seconds in which the rank does something in this lane; overlapping spans count once."""
        _check_one_of("Timeline.busy", "lane", lane, LANES)
        return covered_seconds(span for span in self.for_rank(rank).spans if span.lane == lane)

    def exposed_communication(self, rank: int) -> float:
        """Seconds in which the rank communicates and computes nothing: what overlap did not hide."""
        return covered_seconds(self.for_rank(rank).spans) - self.busy(rank)

    def idle(self, rank: int) -> float:
        """Seconds of the whole timeline in which the rank computes nothing; exposed communication is part of them."""
        return self.duration - self.busy(rank)

    def shifted_to_zero(self) -> Timeline:
        """The same timeline, starting at 0 s."""
        zero = self.start
        spans = (replace(span, start=span.start - zero, end=span.end - zero) for span in self.spans)
        return replace(self, spans=tuple(spans))

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare`: name -> (value, unit). The worst rank counts, since the others wait for it."""
        messages = [span for span in self.spans if span.lane == "communication"]
        return {
            "duration": (self.duration, "seconds"),
            "exposed communication": (max(map(self.exposed_communication, self.ranks), default=0.0), "seconds"),
            "idle": (max(map(self.idle, self.ranks), default=0.0), "seconds"),
            "messages": (len(messages), "count"),
            "payload": (sum(span.num_bytes for span in messages), "bytes"),
        }


@dataclass(frozen=True, kw_only=True)
class CommEvent:
    """One operation of torch.distributed on one rank, from its call (`start`) until it was done (`end`, seconds).

    payload_bytes: bytes of the tensors that this rank hands in; a broadcast or scatter counts the tensor that each
    rank gets, a recv the buffer, a barrier 0. sequence: the number of this operation in its group, from 0.
    peer: global rank, the other side of send and recv, or the root. caller: "file.py:71", outside torch.
    """

    rank: int
    op: str
    payload_bytes: int
    group: str
    group_ranks: tuple[int, ...]
    sequence: int
    caller: str
    start: float
    end: float
    dtype: str
    shape: tuple[int, ...]
    peer: int | None = None
    reduce_op: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "group_ranks", tuple(self.group_ranks))
        object.__setattr__(self, "shape", tuple(self.shape))
        _check_one_of("CommEvent", "op", self.op, OPS)
        _check_number("CommEvent", "payload_bytes", self.payload_bytes)
        _check_order("a CommEvent", self.start, self.end)
        if self.rank not in self.group_ranks:
            raise ValueError(f"CommEvent: rank {self.rank!r} is not in its group_ranks {list(self.group_ranks)}")

    def sent_bytes(self) -> float:
        """Bytes that a ring (or a tree) makes this rank send, on average over the ranks of the group.

        Source: Thakur, Rabenseifner & Gropp 2005, sections 3 and 4. n ranks, P bytes of payload.
        """
        others, share = len(self.group_ranks) - 1, 1 - 1 / len(self.group_ranks)
        factors = {"all_reduce": 2 * share, "all_gather": others, "send": 1, "recv": 0}
        return factors.get(self.op, share) * self.payload_bytes


@dataclass(frozen=True, kw_only=True)
class CommLog(_Json):
    """The operations that one or several ranks issued, in the order in which they completed."""

    events: tuple[CommEvent, ...] = ()
    _holds: ClassVar = {"events": CommEvent}

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        _check_items("CommLog", self.events, CommEvent)

    @classmethod
    def merge(cls, logs: Iterable[CommLog]) -> CommLog:
        """One log from those of several ranks, ordered by the end of each event."""
        return cls(events=tuple(sorted((event for log in logs for event in log.events), key=lambda event: event.end)))

    def for_rank(self, rank: int) -> CommLog:
        """The events of one rank; it may have none."""
        return CommLog(events=tuple(event for event in self.events if event.rank == rank))

    def _of(self, op: str | None) -> list[CommEvent]:
        _check_one_of("CommLog", "op", op, (None, *OPS))
        return [event for event in self.events if op in (None, event.op)]

    def ops(self) -> tuple[str, ...]:
        """The names of the operations that occur, in the order of their first occurrence."""
        return tuple(dict.fromkeys(event.op for event in self.events))

    def count(self, op: str | None = None) -> int:
        """How many operations, of this kind or of all."""
        return len(self._of(op))

    def payload_bytes(self, op: str | None = None) -> int:
        """Bytes handed in, of this kind or of all: measured."""
        return sum(event.payload_bytes for event in self._of(op))

    def sent_bytes(self, algorithm: str = "ring") -> DerivedBytes:
        """Bytes that the ring or tree algorithms would send, summed over the events: derived, not measured."""
        _check_one_of("CommLog.sent_bytes", "algorithm", algorithm, ("ring", "tree"))
        return DerivedBytes(round(sum(event.sent_bytes() for event in self.events)))

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare`: name -> (value, unit)."""
        rows = {"payload": (self.payload_bytes(), "bytes"), "operations": (self.count(), "count")}
        return rows | {op: (self.count(op), "count") for op in self.ops()}


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown(_Json):
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
            _check_number("MemoryBreakdown", name, getattr(self, name))

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(getattr(self, name) for name in MEMORY_KINDS)

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare`: name -> (value, unit)."""
        return {name: (getattr(self, name), "bytes") for name in (*MEMORY_KINDS, "total")}
