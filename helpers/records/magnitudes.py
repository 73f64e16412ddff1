"""How large numbers are, by power of two: what a number format keeps of them follows from this alone."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.records.checks import Json, check_number


@dataclass(frozen=True, kw_only=True)
class Magnitudes(Json):
    """counts[i]: how many values have 2**(lowest + i) <= |value| < 2**(lowest + i + 1). The sign is not kept.

    zeros and not_finite (inf, NaN) have no power of two and are counted apart. name: what the values are.
    ValueError for a count below 0.
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
        """Values with a power of two: finite and not 0."""
        return sum(self.counts)

    @property
    def total(self) -> int:
        """All values."""
        return self.counted + self.zeros + self.not_finite

    @property
    def highest(self) -> int:
        """Every counted value lies below 2**highest."""
        return self.lowest + len(self.counts)

    def bins(self) -> tuple[tuple[int, float], ...]:
        """(power, share) of each bin, among the counted values: the histogram of `number_formats_scene`."""
        return tuple((self.lowest + i, count / self.counted) for i, count in enumerate(self.counts))
