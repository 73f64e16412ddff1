"""The operations of a step, one after the other: what every prediction of traffic builds its CommLog with."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from helpers.quantities.costs import seconds
from helpers.records import CommEvent, CommLog
from helpers.specs import Link

DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64"}
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class Traffic:
    """Collects operations of one group on one rank; with a link each takes its alpha-beta seconds, in turn.

    Without a link everything happens at 0 s. Raises ValueError for a dtype_bytes that no dtype has.
    """

    def __init__(self, world_size: int, *, dtype_bytes: int = 4, link: Link | None = None, rank: int = 0) -> None:
        if dtype_bytes not in DTYPES:
            raise ValueError(f"dtype_bytes is {dtype_bytes!r}, but it must be one of {', '.join(map(str, DTYPES))}")
        if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
            raise ValueError(f"world_size is {world_size!r}, but it must be a whole number of at least 1")
        self.ranks, self.dtype_bytes, self.link, self.rank = tuple(range(world_size)), dtype_bytes, link, rank
        self.now = 0.0
        self._events: list[CommEvent] = []

    def add(
        self, op: str, shape: Sequence[int], where: str = "", *, dtype_bytes: int | None = None, reduce_op: str = "sum"
    ) -> None:
        """One operation. shape: of the tensor that this rank hands in: its part for an all_gather, else the whole.

        where: what of the model asks for it; it stands where a measured event names the caller's line.
        """
        width = self.dtype_bytes if dtype_bytes is None else dtype_bytes
        payload = prod(shape) * width
        start, self.now = self.now, self.now + self._took(op, payload)
        self._events.append(
            CommEvent(
                rank=self.rank, op=op, payload_bytes=payload, group="WORLD", group_ranks=self.ranks,
                sequence=len(self._events), caller=f"predicted: {where}" if where else "predicted", start=start,
                end=self.now, dtype=DTYPES[width], shape=tuple(shape), reduce_op=reduce_op if op in REDUCING else None,
            )
        )  # fmt: skip

    @property
    def log(self) -> CommLog:
        return CommLog(events=tuple(self._events))

    def _took(self, op: str, payload: int) -> float:
        if self.link is None:
            return 0.0
        whole = payload * len(self.ranks) if op == "all_gather" else payload  # costs count the gathered tensor
        return seconds(op, whole, len(self.ranks), self.link)


def checked_sizes(parameters: Sequence[int]) -> list[int]:
    """The same as a list of elements of each parameter. Raises ValueError for none, or what is no count of elements."""
    sizes = list(parameters)
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 0]
    if wrong or not sizes:
        given = repr(wrong[0]) if wrong else "none at all"
        raise ValueError(f"parameters: got {given}, but each is a number of elements: [p.numel() for p in …]")
    return sizes
