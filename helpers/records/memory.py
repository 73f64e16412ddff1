"""Bytes by kind: of one rank at an instant, and what a rank holds from when to when."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.records.checks import Json, check_number, check_one_of, check_order

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

    def summary(self) -> dict[str, tuple[float, str]]:
        """The rows of `compare`: name -> (value, unit)."""
        return {name: (getattr(self, name), "bytes") for name in (*MEMORY_KINDS, "total")}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Something that a rank holds in memory from `start` until before `end` (seconds). kind: one of MEMORY_KINDS."""

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
