"""What ranks told each other: one event for each operation of torch.distributed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from helpers.quantities.units import DerivedBytes
from helpers.records.checks import Json, check_items, check_number, check_one_of, check_order

OPS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
OPS += ("gather", "scatter", "barrier", "send", "recv")


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
        check_one_of("CommEvent", "op", self.op, OPS)
        check_number("CommEvent", "payload_bytes", self.payload_bytes)
        check_order("a CommEvent", self.start, self.end)
        if self.rank not in self.group_ranks:
            raise ValueError(f"CommEvent: rank {self.rank!r} is not in its group_ranks {list(self.group_ranks)}")

    def sent_bytes(self) -> float:
        """Bytes that a ring (or a tree) makes this rank send, on average over the ranks of the group.

        Source: Thakur, Rabenseifner & Gropp 2005, sections 3 and 4. n ranks, P bytes of payload.
        """
        return ring_share(self.op, len(self.group_ranks)) * self.payload_bytes


def ring_share(op: str, num_ranks: int) -> float:
    """Of the payload, how much a ring or a tree makes a rank send, on average over the ranks. Source: as above."""
    others, share = num_ranks - 1, 1 - 1 / num_ranks
    return {"all_reduce": 2 * share, "all_gather": others, "send": 1, "recv": 0}.get(op, share)


@dataclass(frozen=True, kw_only=True)
class CommLog(Json):
    """The operations that one or several ranks issued, in the order in which they completed."""

    events: tuple[CommEvent, ...] = ()
    _holds: ClassVar = {"events": CommEvent}

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        check_items("CommLog", self.events, CommEvent)

    @classmethod
    def merge(cls, logs: Iterable[CommLog]) -> CommLog:
        """One log from those of several ranks, ordered by the end of each event."""
        return cls(events=tuple(sorted((event for log in logs for event in log.events), key=lambda event: event.end)))

    def for_rank(self, rank: int) -> CommLog:
        """The events of one rank; it may have none."""
        return CommLog(events=tuple(event for event in self.events if event.rank == rank))

    def _of(self, op: str | None) -> list[CommEvent]:
        check_one_of("CommLog", "op", op, (None, *OPS))
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
        check_one_of("CommLog.sent_bytes", "algorithm", algorithm, ("ring", "tree"))
        return DerivedBytes(round(sum(event.sent_bytes() for event in self.events)))

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare`: name -> (value, unit)."""
        rows = {"payload": (self.payload_bytes(), "bytes"), "operations": (self.count(), "count")}
        return rows | {op: (self.count(op), "count") for op in self.ops()}
