"""Records how many values of a tensor lie in each power of two, which decides what a number format keeps of them.

The pictures of mixed precision draw this histogram, and helpers/predict/precision.py computes from it which values
survive in bf16, fp16 or fp8.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.records.checks import Json, check_number


@dataclass(frozen=True, kw_only=True)
class Magnitudes(Json):
    """A histogram of values by power of two: counts[i] of them have 2**(lowest + i) <= |value| < 2**(lowest + i + 1).

    The sign is not recorded. `zeros` and `not_finite` (inf, NaN) have no power of two and are counted separately.
    `name` says what the values are. Raises ValueError for a count below 0.
    """

    name: str = "values"
    lowest: int = 0
    counts: tuple[int, ...] = ()
    zeros: int = 0
    not_finite: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))  # JSON knows lists only
        for name, count in (("zeros", self.zeros), ("not_finite", self.not_finite)):
            check_number("Magnitudes", name, count)
        for count in self.counts:
            check_number("Magnitudes", "a count", count)

    @property
    def counted(self) -> int:
        """The number of values with a power of two: those that are finite and not 0."""
        return sum(self.counts)

    @property
    def total(self) -> int:
        """The number of all values, zeros, inf and NaN among them."""
        return self.counted + self.zeros + self.not_finite

    @property
    def highest(self) -> int:
        """The exponent of the upper limit: every counted value lies below 2**highest."""
        return self.lowest + len(self.counts)

    def bins(self) -> tuple[tuple[int, float], ...]:
        """(power of two, share of the counted values) of each bin, for example to draw the histogram."""
        return tuple((self.lowest + i, count / self.counted) for i, count in enumerate(self.counts))
