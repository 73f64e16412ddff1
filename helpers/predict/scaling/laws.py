"""How much faster with more GPUs: speed-up, efficiency, and two laws of it.

s: the share of the work on one GPU that does not get faster. n: GPUs.
    S(n) = 1 / (s + (1 - s) / n)         the same work: strong scaling; Amdahl 1967, doi.org/10.1145/1465482.1465560
    S(n) = n - s (n - 1)                 work that grows with n: weak scaling, s measured on n; Gustafson 1988,
                                         doi.org/10.1145/42411.42415
    s = (1/S - 1/n) / (1 - 1/n)          from one measurement; Karp and Flatt 1990, doi.org/10.1145/78607.78614
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from helpers.learner.words import book
from helpers.specs.checks import check_count, check_positive

say = book("scaling")
# An outlier is off by so many times the others' spread (1 % at least), and by a tenth; rows that it takes to name one.
OUTLIER, FLOOR, FAR, FEWEST = 4.0, 0.01, 0.1, 5


def speedup(gpus: Sequence[int], rates: Sequence[float]) -> tuple[float, ...]:
    """Of measured samples per second. The smallest count passes for perfect: without a row of 1, say so."""
    check_rows("speedup", gpus, rates)
    first, rate = min(zip(gpus, rates, strict=True))
    return tuple(first * each / rate for each in rates)


def efficiency(gpus: Sequence[int], speedups: Sequence[float]) -> tuple[float, ...]:
    """Speed-up per GPU: 1 is perfect."""
    check_rows("efficiency", gpus, speedups)
    return tuple(each / count for count, each in zip(gpus, speedups, strict=True))


def amdahl(gpus: int, serial: float) -> float:
    """Speed-up of the same work on more GPUs."""
    _check(gpus, serial)
    return 1 / (serial + (1 - serial) / gpus)


def gustafson(gpus: int, serial: float) -> float:
    """Speed-up of work that grows with the GPUs; serial: the share of the time on all of them that does not grow."""
    _check(gpus, serial)
    return gpus - serial * (gpus - 1)


def serial_share(gpus: int, speedup: float) -> float:
    """Karp and Flatt's serial share. Where it grows with the GPUs, what is lost is no serial part but an overhead."""
    check_rows("serial_share", (gpus,), (speedup,))
    if gpus == 1:
        raise ValueError("serial_share: 1 GPU has no speed-up to judge; measure on 2 or more")
    return (1 / speedup - 1 / gpus) / (1 - 1 / gpus)


@dataclass(frozen=True, kw_only=True, repr=False)
class AmdahlFit:
    """Amdahl's law through measurements: 1/S = fixed + shared / n.

    residues: measured over fitted, less one. outlier: the count that was left out of the fit, None without one.
    """

    gpus: tuple[int, ...]
    fixed: float
    shared: float
    residues: tuple[float, ...]
    outlier: int | None = None

    @property
    def serial(self) -> float:
        """The share of the work on one GPU that does not get faster."""
        return self.fixed / (self.fixed + self.shared)

    @property
    def largest(self) -> float:
        """The speed-up that no number of GPUs passes."""
        return 1 / self.fixed if self.fixed else inf

    def speedup(self, gpus: int) -> float:
        _check(gpus)
        return 1 / (self.fixed + self.shared / gpus)

    def __repr__(self) -> str:
        off = dict(zip(self.gpus, self.residues, strict=True))
        most = max(abs(one) for count, one in off.items() if count != self.outlier)
        found = say("amdahl" if self.fixed else "perfect", serial=self.serial, largest=self.largest, off=most)
        return found + (say("left_out", n=self.outlier, off=off[self.outlier]) if self.outlier else "")


def fit_amdahl(gpus: Sequence[int], speedups: Sequence[float]) -> AmdahlFit:
    """Least squares on relative errors; of 5 rows or more, one that the others' law misses by far is left out."""
    check_rows("fit_amdahl", gpus, speedups, at_least=2)
    counts, found = np.array(gpus, float), np.array(speedups, float)

    def fitted(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(fixed, shared), none below 0, and every row's residue."""
        rows = np.stack([found, found / counts], axis=1)  # each over 1/S: a perfect fit gives 1
        best = np.linalg.lstsq(rows[keep], np.ones(keep.sum()), rcond=None)[0]
        if best.min() < 0:
            only = int(best.argmax())
            one = rows[keep, only]
            best = np.eye(2)[only] * (one.sum() / (one @ one))
        return best, rows @ best - 1

    everything = np.ones(len(counts), bool)
    best, outlier = fitted(everything), None
    if len(counts) >= FEWEST:
        tries = []
        for place in range(len(counts)):
            without = fitted(everything & (np.arange(len(counts)) != place))
            spread = max(FLOOR, float(np.sqrt(np.mean(np.delete(without[1], place) ** 2))))
            tries.append((abs(without[1][place]) / spread, place, without))
        far, place, without = max(tries, key=lambda one: one[0])
        if far > OUTLIER and abs(without[1][place]) > FAR:
            best, outlier = without, int(gpus[place])
    return AmdahlFit(
        gpus=tuple(gpus), fixed=float(best[0][0]), shared=float(best[0][1]),
        residues=tuple(map(float, best[1])), outlier=outlier,
    )  # fmt: skip


def check_rows(owner: str, gpus: Sequence[int], values: Sequence[float], at_least: int = 1) -> None:
    """ValueError unless each count is there once, with a number above 0."""
    if len(gpus) != len(values) or len(gpus) < at_least:
        raise ValueError(f"{owner}: {len(gpus)} counts of GPUs and {len(values)} values; give {at_least} or more pairs")
    if len(set(gpus)) < len(gpus):
        raise ValueError(f"{owner}: the counts {', '.join(map(str, gpus))} name one twice; give the mean of its values")
    for count, value in zip(gpus, values, strict=True):
        check_count(owner, "a count of GPUs", count)
        check_positive(owner, f"the value of {count} GPUs", value)
        if value == inf:
            raise ValueError(f"{owner}: the value of {count} GPUs is infinite; measure it again")


def _check(gpus: int, serial: float = 0.0) -> None:
    check_count("the law", "gpus", gpus)
    if not 0 <= serial <= 1:
        raise ValueError(f"the law: serial is {serial!r}, but it is a share, from 0 to 1 (5 % is 0.05)")
