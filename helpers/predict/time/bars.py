"""Provides the result of the step-time model: a step as bars, which say what takes how long and what limits it.

step.py makes them, and draw/waterfall.py draws them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Bar(NamedTuple):
    """One term of the step. binds: what limits it: "tensor cores", "memory", "NVLink", "network", "host", "waiting"."""

    name: str
    seconds: float
    binds: str


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The waterfall of a step: its bars add up to its seconds.

    factor: the 80 % interval goes from seconds / factor to seconds * factor.
    """

    bars: tuple[Bar, ...]
    factor: float = 1.0

    @cached_property
    def seconds(self) -> float:
        """Seconds of the step."""
        return sum(bar.seconds for bar in self.bars)

    @property
    def interval(self) -> tuple[float, float]:
        """The 80 % interval of the seconds: (low, high)."""
        return self.seconds / self.factor, self.seconds * self.factor

    @property
    def binds(self) -> str:
        """The bottleneck to which most seconds of the step belong."""
        return max(self.by_bottleneck, key=self.by_bottleneck.get)

    @cached_property
    def by_bottleneck(self) -> dict[str, float]:
        """Seconds of the step by bottleneck: tensor cores, memory, NVLink, network, host or waiting."""
        total: dict[str, float] = defaultdict(float)
        for bar in self.bars:
            total[bar.binds] += bar.seconds
        return dict(total)
