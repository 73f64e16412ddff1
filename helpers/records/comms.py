"""Records what ranks communicated: one event per operation of torch.distributed, and its sums by mesh axis.

`CommLog` is a list of events, measured by observe or predicted by predict/traffic. `AxisTraffic` is one rank's traffic
added up by axis and operation, so that a prediction and a log can be compared. A mesh numbers the ranks of a job along
axes, one for each kind of parallelism (tp, dp, pp, ...). Payload is what a rank passes to an operation; what a ring
then sends for it may be more or less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from helpers.quantities.units import DerivedBytes
from helpers.records.checks import Json, check_items, check_number, check_one_of, check_order

if TYPE_CHECKING:
    from helpers.specs.mesh import Mesh

OPS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all")
OPS += ("gather", "scatter", "barrier", "send", "recv")


@dataclass(frozen=True, kw_only=True)
class CommEvent:
    """One operation of torch.distributed on one rank, from its call (`start`) until it was done (`end`), in seconds.

    payload_bytes: bytes of the tensors that this rank passes to the operation. A broadcast or scatter counts the tensor
    that each rank gets, a recv counts its buffer, and a barrier counts 0. sequence: the number of this operation in its
    group, from 0. peer: the global rank at the other end of a send or recv, or the root of a collective. caller: the
    line outside torch that issued the operation, such as "file.py:71".
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
        # The dataclass is frozen, hence object.__setattr__; from_json and callers may pass a list.
        object.__setattr__(self, "group_ranks", tuple(self.group_ranks))
        object.__setattr__(self, "shape", tuple(self.shape))
        check_one_of("CommEvent", "op", self.op, OPS)
        check_number("CommEvent", "payload_bytes", self.payload_bytes)
        check_order("a CommEvent", self.start, self.end)
        if self.rank not in self.group_ranks:
            raise ValueError(f"CommEvent: rank {self.rank!r} is not in its group_ranks {list(self.group_ranks)}")

    def sent_bytes(self) -> float:
        """Bytes that a ring (or a tree) makes this rank send, on average over the ranks of the group."""
        return ring_share(self.op, len(self.group_ranks)) * self.payload_bytes


def ring_share(op: str, num_ranks: int) -> float:
    """Bytes that a ring or a tree makes a rank send, over the bytes of the payload, on average over the ranks.

    Source: Thakur, Rabenseifner & Gropp 2005, sections 3 and 4.
    """
    others, share = num_ranks - 1, 1 - 1 / num_ranks  # the payload of an all_gather is one rank's shard alone
    return {"all_reduce": 2 * share, "all_gather": others, "send": 1, "recv": 0}.get(op, share)


@dataclass(frozen=True, kw_only=True)
class CommLog(Json):
    """The operations that one or several ranks issued, in the order in which they completed."""

    events: tuple[CommEvent, ...] = ()
    _nested_records: ClassVar = {"events": CommEvent}  # for Json's `from_json`

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))  # frozen; callers may pass a list
        check_items("CommLog", self.events, CommEvent)

    @classmethod
    def merge(cls, logs: Iterable[CommLog]) -> CommLog:
        """One log from those of several ranks, ordered by the end of each event."""
        return cls(events=tuple(sorted((event for log in logs for event in log.events), key=lambda event: event.end)))

    def for_rank(self, rank: int) -> CommLog:
        """The events of one rank; it may have none."""
        return CommLog(events=tuple(event for event in self.events if event.rank == rank))

    def _of(self, op: str | None) -> list[CommEvent]:
        """The events of one operation, or all events for None."""
        check_one_of("CommLog", "op", op, (None, *OPS))
        return [event for event in self.events if op in (None, event.op)]

    def ops(self) -> tuple[str, ...]:
        """The names of the operations that occur, in the order of their first occurrence."""
        return tuple(dict.fromkeys(event.op for event in self.events))

    def count(self, op: str | None = None) -> int:
        """The number of operations of this kind, or of all kinds."""
        return len(self._of(op))

    def payload_bytes(self, op: str | None = None) -> int:
        """Bytes passed to the operations of this kind, or of all kinds, as they were recorded."""
        return sum(event.payload_bytes for event in self._of(op))

    def sent_bytes(self, algorithm: str = "ring") -> DerivedBytes:
        """Bytes that the ring or tree algorithms would send, summed over the events: derived, not measured.

        On average over the ranks, a ring and a tree send the same, so `algorithm` is only checked.
        """
        check_one_of("CommLog.sent_bytes", "algorithm", algorithm, ("ring", "tree"))
        return DerivedBytes(round(sum(event.sent_bytes() for event in self.events)))

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare` (comparison.py), the table of predicted and measured values: name -> (value, unit)."""
        rows = {"payload": (self.payload_bytes(), "bytes"), "operations": (self.count(), "count")}
        return rows | {op: (self.count(op), "count") for op in self.ops()}


# The name under which the loss, the norm and the loss scaler's three flags are counted. They belong to no axis, and
# their bytes do not grow with the model.
SCALARS = "scalars"


class AxisOp(NamedTuple):
    """All operations of one kind in groups of `num_ranks` ranks on one axis. payload_bytes is their sum."""

    axis: str
    op: str
    num_ranks: int
    payload_bytes: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that a ring makes this rank send."""
        return ring_share(self.op, self.num_ranks) * self.payload_bytes


@dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """The traffic of one rank, added up by axis (tp, dp, pp, ...) and operation.

    The axis `scalars` has the operations on one number or three, whatever their group. Two records are equal where
    every kind of operation has the same bytes on every axis. Groups of one rank send nothing and are left out.
    """

    ops: tuple[AxisOp, ...] = ()

    @classmethod
    def of(cls, ops: Iterable[AxisOp]) -> AxisTraffic:
        """The record of these operations: those of one axis, kind and group size are added up, and all are sorted.

        Sums of 0 bytes and groups of one rank are left out, because they send nothing.
        """
        sums: dict[tuple[str, str, int], int] = {}
        for axis, op, num_ranks, payload in ops:
            sums[axis, op, num_ranks] = sums.get((axis, op, num_ranks), 0) + payload
        return cls(ops=tuple(AxisOp(*key, payload) for key, payload in sorted(sums.items()) if payload and key[2] > 1))

    def payload_bytes(self, axis: str | None = None) -> int:
        """Bytes passed to operations on an axis, or on all axes but `scalars`.

        A recv does not count, because the bytes that it gets count as the peer's send.
        """
        return sum(each.payload_bytes for each in self._of(axis) if each.op != "recv")

    def sent_bytes(self, axis: str | None = None) -> float:
        """Bytes that a ring makes this rank send on an axis, or on all axes but `scalars`."""
        return sum(each.sent_bytes for each in self._of(axis))

    def by_axis(self) -> Mapping[str, int]:
        """Payload bytes by axis, such as {"tp": 4096, "dp": 1024}."""
        return {axis: self.payload_bytes(axis) for axis in dict.fromkeys(each.axis for each in self.ops)}

    def _of(self, axis: str | None) -> list[AxisOp]:
        """The operations on an axis, or for None those on all axes but `scalars`."""
        return [each for each in self.ops if each.axis == axis or (axis is None and each.axis != SCALARS)]


def traffic_by_axis(log: CommLog, mesh: Mesh) -> AxisTraffic:
    """One rank's log added up by mesh axis. A group that spans several axes is named after all of them ("dp x pp").

    A send or recv counts as traffic of its full axis, whether its group has the two ranks alone or the whole axis.
    """
    axes = {ranks: axes_along(mesh, ranks) for ranks in {event.group_ranks for event in log.events}}
    return AxisTraffic.of(_axis_op(event, axes[event.group_ranks], mesh) for event in log.events)


def _axis_op(event: CommEvent, axes: str, mesh: Mesh) -> AxisOp:
    """An event as an operation on the axes along which its group lies, such as "dp x pp"."""
    num_ranks = len(event.group_ranks)
    if event.op in ("send", "recv") and axes:
        num_ranks = prod(getattr(mesh, axis) for axis in axes.split(" x "))
    return AxisOp(SCALARS if _is_scalar(event) else axes, event.op, num_ranks, event.payload_bytes)


def _is_scalar(event: CommEvent) -> bool:
    """Whether the event sends the loss or the norm (one number), or the loss scaler's three flags (their maximum)."""
    return event.shape == () or (event.shape == (3,) and (event.reduce_op or "").lower() == "max")


def axes_along(mesh: Mesh, ranks: Iterable[int]) -> str:
    """The axes of the mesh on which these ranks differ: "tp", or "dp x pp"."""
    positions = [mesh.coordinates(rank) for rank in ranks]  # each by axis, in the order pp, dp, cp, ep, tp
    differs = {axis: len({position[axis] for position in positions}) > 1 for axis in positions[0]}
    return " x ".join(axis for axis in differs if differs[axis] and axis != "ep")  # ep is a part of dp x cp
