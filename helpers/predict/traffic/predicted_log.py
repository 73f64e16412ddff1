"""Builds a predicted CommLog from operations, one after the other. Every prediction of traffic uses it.

A CommLog has one CommEvent per operation of torch.distributed, so a predicted log compares with a measured one.
`checked_sizes` stands here for the predictions that start from a list of parameter sizes, such as those of ZeRO: they
check the list with it before they add operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from helpers.quantities.costs import check_world_size
from helpers.records import CommEvent, CommLog

DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64"}  # bytes of an element -> the dtype that stands for it
REDUCING = ("all_reduce", "reduce", "reduce_scatter")  # the operations that have a reduce_op


class PredictedLog:
    """Collects the operations of one group on one rank.

    No times are predicted, so all operations happen at 0 s. Raises ValueError for a dtype_bytes that no dtype has, or a
    world_size below 1.
    """

    def __init__(self, world_size: int, *, dtype_bytes: int = 4) -> None:
        if dtype_bytes not in DTYPES:
            raise ValueError(f"dtype_bytes is {dtype_bytes!r}, but it must be one of {', '.join(map(str, DTYPES))}")
        check_world_size(world_size)
        self.ranks, self.dtype_bytes = tuple(range(world_size)), dtype_bytes
        self._events: list[CommEvent] = []

    def add(
        self, op: str, shape: Sequence[int], where: str = "", *, dtype_bytes: int | None = None, reduce_op: str = "sum"
    ) -> None:
        """Add one operation.

        shape: of the tensor that this rank passes in, which is its shard for an all_gather and the full tensor for the
        other operations. where: the part of the model that needs the operation; the event has it in `caller`, where a
        measured event has a line of code.
        """
        width = self.dtype_bytes if dtype_bytes is None else dtype_bytes
        self._events.append(
            CommEvent(
                rank=0, op=op, payload_bytes=prod(shape) * width, group="WORLD", group_ranks=self.ranks,
                sequence=len(self._events), caller=f"predicted: {where}" if where else "predicted", start=0.0,
                end=0.0, dtype=DTYPES[width], shape=tuple(shape), reduce_op=reduce_op if op in REDUCING else None,
            )
        )  # fmt: skip

    @property
    def log(self) -> CommLog:
        """All operations so far."""
        return CommLog(events=tuple(self._events))


def checked_sizes(parameters: Sequence[int]) -> list[int]:
    """The elements of each parameter as a list. ValueError for no parameter, or something that is not a count."""
    sizes = list(parameters)
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 0]
    if wrong or not sizes:
        given = repr(wrong[0]) if wrong else "none at all"
        raise ValueError(f"parameters: got {given}, but each is a number of elements: [p.numel() for p in …]")
    return sizes
