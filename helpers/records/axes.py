"""What one rank sends over each axis of a mesh: the same record, whether it was logged or predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from helpers.records.comms import CommEvent, CommLog, ring_share
from helpers.specs.mesh import ORDER, Mesh

SCALARS = "scalars"  # the loss, the norm, the scaler's three flags: no axis's, and of no size


class AxisOp(NamedTuple):
    """All operations of one kind over groups of `num_ranks` on one axis. payload_bytes: as in a CommEvent."""

    axis: str
    op: str
    num_ranks: int
    payload_bytes: int

    @property
    def sent_bytes(self) -> float:
        """What a ring makes this rank send over links."""
        return ring_share(self.op, self.num_ranks) * self.payload_bytes


@dataclass(frozen=True, kw_only=True)
class AxisTraffic:
    """Sums by axis and operation, of one rank. Axes: tp, dp, pp, …; `scalars` for what is one number or three.

    Equal where every kind of operation on every axis has the same bytes. A group of one rank sends nothing: left out.
    """

    ops: tuple[AxisOp, ...] = ()

    @classmethod
    def of(cls, ops: Iterable[AxisOp]) -> AxisTraffic:
        """Added up, in one order."""
        sums: dict[tuple[str, str, int], int] = {}
        for axis, op, num_ranks, payload in ops:
            sums[axis, op, num_ranks] = sums.get((axis, op, num_ranks), 0) + payload
        return cls(ops=tuple(AxisOp(*key, payload) for key, payload in sorted(sums.items()) if payload and key[2] > 1))

    def payload_bytes(self, axis: str | None = None) -> int:
        """Bytes handed to operations on an axis, or on all but `scalars`; what is only received does not count."""
        return sum(each.payload_bytes for each in self._of(axis) if each.op != "recv")

    def sent_bytes(self, axis: str | None = None) -> float:
        """Bytes that a ring makes this rank send over links, on an axis, or on all but `scalars`."""
        return sum(each.sent_bytes for each in self._of(axis))

    def by_axis(self) -> Mapping[str, int]:
        """Payload by axis: {"tp": 4096, "dp": 1024}."""
        return {axis: self.payload_bytes(axis) for axis in dict.fromkeys(each.axis for each in self.ops)}

    def _of(self, axis: str | None) -> list[AxisOp]:
        return [each for each in self.ops if each.axis == axis or (axis is None and each.axis != SCALARS)]


def traffic_by_axis(log: CommLog, mesh: Mesh) -> AxisTraffic:
    """A rank's log, which knows groups, by the axes of the mesh along which those lie; of several axes, all names.

    A message counts on its whole axis, be its group the two ranks alone, as NCCL needs it, or all of the axis.
    """
    axes = {ranks: axes_along(mesh, ranks) for ranks in {event.group_ranks for event in log.events}}
    return AxisTraffic.of(_axis_op(event, axes[event.group_ranks], mesh) for event in log.events)


def _axis_op(event: CommEvent, axes: str, mesh: Mesh) -> AxisOp:
    num_ranks = len(event.group_ranks)
    if event.op in ("send", "recv") and axes:
        num_ranks = prod(getattr(mesh, axis) for axis in axes.split(" x "))
    return AxisOp(SCALARS if _is_scalar(event) else axes, event.op, num_ranks, event.payload_bytes)


def _is_scalar(event: CommEvent) -> bool:
    return event.shape == () or (event.shape == (3,) and (event.reduce_op or "").lower() == "max")


def axes_along(mesh: Mesh, ranks: Iterable[int]) -> str:
    """The axes of the mesh on which these ranks differ: "tp", or "dp x pp"."""
    places = [mesh.coordinates(rank) for rank in ranks]
    return " x ".join(axis for axis in reversed(ORDER) if len({place[axis] for place in places}) > 1)
