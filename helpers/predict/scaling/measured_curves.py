"""Reads a measured scaling curve from a CSV file, fits it, and explains which parts of a curve's loss come from what.

`read_measurements` reads GPUs and samples per second as a learner has them, notes what is odd, and fits Amdahl's law.
`explain_curve` explains the loss of a curve of ResNet-152. With the speed-up S on n GPUs, n/S is the GPU-seconds of a
sample over those of one GPU, and it is 1 where nothing is lost. What it exceeds 1 by is the loss, in four parts:
    batch        predicted, nothing fitted: n GPUs with 1/n of a fixed batch are less busy; 0 where the batch grows
    gradients    share * ring: how much of the seconds of a ring all-reduce no compute covers; the share is at most 1
    stragglers   sigma * expected maximum of n normal numbers: a step ends with its slowest GPU
    input        a constant * (n - 1): a source, such as a disk, that serves all GPUs and slows down by as much for each
A mix is one choice of (share, sigma, constant) on a grid, and the best one has the least sum of squared relative
errors. Other mixes may fit as well, so each part has a range, low to high: the mixes in it miss no measured number by
more than its printed digits, or by more than the best mix misses its worst number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, floor, isfinite
from pathlib import Path
from statistics import NormalDist, fmean

from helpers.learner.words import Words
from helpers.predict.scaling.laws import AmdahlFit, Point, check_rows, fit_amdahl, points_of, words
from helpers.predict.time.convolutions import RESNET_152, resnet_step
from helpers.quantities.costs import seconds as cost_seconds
from helpers.quantities.units import format_seconds
from helpers.records.checks import check_one_of
from helpers.specs import GPUS, Cluster, Link
from helpers.specs.checks import check_count, check_divides

# Patterns of the headings of a column with counts of GPUs, with samples per second, and with seconds. They are searched
# anywhere in a heading, and the n of the first one is found in many, so columns of rates are recognised first.
COUNTS = re.compile(r"gpus?|ranks?|world.?size|devices?|cards?|workers?|accelerators?|n|卡|显卡|进程", re.I)
RATES = re.compile(r"rate|throughput|speed|/ ?s|per.sec|samples|images|img|tokens|sequences|吞吐|每秒|速度", re.I)
SECONDS = re.compile(r"seconds|time|\bms\b|\bs\b|latency|秒数|时间|耗时", re.I)
# A rate above this many times the ideal speed-up is noted as odd, because caches exceed the ideal only a little.
ABOVE = 1.1


@dataclass(frozen=True, kw_only=True, repr=False)
class Measurements:
    """Samples per second at each count of GPUs, sorted, each count once. notes: one sentence per oddity in the file.

    The seconds of a step are unknown, so they are nan in `points`.
    """

    gpus: tuple[int, ...]
    rates: tuple[float, ...]
    notes: tuple[Words, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        """The measurements as points of a curve."""
        return points_of(self.gpus, self.rates, [float("nan")] * len(self.gpus))

    @property
    def speedups(self) -> tuple[float, ...]:
        """The speed-up at each count of GPUs."""
        return tuple(point.speedup for point in self.points)

    @property
    def fit(self) -> AmdahlFit | None:
        """Amdahl's law fitted to them, None with fewer than three counts, which any law fits."""
        return fit_amdahl(self.gpus, self.speedups) if len(self.gpus) > 2 else None

    def __repr__(self) -> str:
        rows = [
            words(
                "read.row", gpus=point.gpus, rate=point.samples_per_second, speedup=point.speedup,
                efficiency=point.efficiency,
            )
            for point in self.points
        ]  # fmt: skip
        fitted = [] if self.fit is None else [repr(self.fit)]
        return "\n".join([*rows, *fitted, *map(str, self.notes)])


def read_measurements(source: str | Path) -> Measurements:
    """The measurements of a CSV file, or of its text (two lines or more).

    Raises ValueError that lists all lines that cannot be read, by number.
    """
    lines = [(number, line.strip()) for number, line in enumerate(_text(source).splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line.strip(",;") and not line.startswith("#")]
    if not lines:
        raise ValueError(words("read.empty"))
    delimiter = next((character for character in "\t;," if character in lines[-1][1]), None)  # None: white space
    rows = [(number, [cell.strip() for cell in line.split(delimiter)]) for number, line in lines]
    columns, notes, rows = _columns(rows)
    readings, wrong = [], []  # (line, GPUs, rate) of good lines; sentences about the others
    for line, cells in rows:
        if len(cells) <= max(columns):
            wrong.append(words("read.cells", line=line, value=" ".join(cells)))
            continue
        count, rate = (_number(cells[column]) for column in columns)
        if not (count >= 1 and count == int(count)):
            wrong.append(words("read.gpus", line=line, value=cells[columns[0]]))
        if not rate > 0:
            wrong.append(words("read.rate", line=line, value=cells[columns[1]]))
        readings.append((line, count, rate))
    if wrong or not readings:
        raise ValueError(words("read.wrong", lines=". ".join(wrong)) if wrong else words("read.empty"))
    return _sorted([(line, int(count), rate) for line, count, rate in readings], notes)


def _text(source: str | Path) -> str:
    """The text itself, or that of the file with this name."""
    if isinstance(source, str) and ("\n" in source or not source.strip()):
        return source
    path = Path(source)
    if not path.is_file():
        raise ValueError(words("read.missing", path=path))
    return path.read_text(encoding="utf-8-sig")


def _number(cell: str) -> float:
    """The number in a cell; nan for anything else, with which every comparison is false."""
    if not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", cell, re.I):
        return float("nan")
    return float(cell) if isfinite(float(cell)) else float("nan")


def _columns(rows: Sequence[tuple[int, list[str]]]) -> tuple[tuple[int, int], list[Words], Sequence]:
    """The positions of the columns of GPUs and of rates, notes about the header, and the rows below it.

    A row is a line's number and its cells. A note is a text in all languages (`Words`), from `words[key].format(…)`.
    """
    (line, header), below = rows[0], rows[1:]
    starts_of_cells = [cell[0] for cell in header if cell]
    if any(start.isdigit() or start in "+-." for start in starts_of_cells):  # a number, so there is no header
        return (0, 1), [], rows
    rates = [column for column, cell in enumerate(header) if RATES.search(cell)]
    counts = [column for column, cell in enumerate(header) if COUNTS.search(cell) and column not in rates]
    timed = [cell for column, cell in enumerate(header) if SECONDS.search(cell) and column not in rates]
    if not rates and timed:
        raise ValueError(words("read.wrong", lines=words("read.seconds", line=line, value=timed[0])))
    if rates and counts:
        return (counts[0], rates[0]), [], below
    return (0, 1), [words["read.header"].format(line=line, value=", ".join(header))], below


def _sorted(readings: list[tuple[int, int, float]], notes: list[Words]) -> Measurements:
    """The readings (line, GPUs, rate) by count, with the mean rate of each count, and a note for each odd line."""
    rates, lines = {}, {}  # by count: all its rates, and the last line that has it
    for line, count, rate in readings:
        if rates and count < max(rates) and count not in rates:
            notes.append(words["read.order"].format(line=line, gpus=count))
        rates.setdefault(count, []).append(rate)
        lines[count] = line
        if len(rates[count]) > 1:
            notes.append(words["read.twice"].format(line=line, gpus=count, rates=[f"{one:g}" for one in rates[count]]))
    counts = tuple(sorted(rates))
    if counts[0] > 1:
        notes.append(words["read.smallest"].format(line=lines[counts[0]], gpus=counts[0]))
    mean = {count: fmean(rates[count]) for count in counts}
    for count in counts[1:]:
        times = mean[count] / mean[counts[0]] * counts[0] / count  # of the ideal speed-up
        where = {"line": lines[count], "rate": mean[count]}
        if times > ABOVE:
            notes.append(words["read.above"].format(gpus=count, times=times, **where))
        elif mean[count] < mean[counts[0]]:
            notes.append(words["read.slower"].format(gpus=count, **where))
    return Measurements(gpus=counts, rates=tuple(mean[count] for count in counts), notes=tuple(notes))


# A published table of speed-ups, which chapter "sources" explains, and the network that its GPUs have.
SOURCES_GPUS, SOURCES_SPEEDUPS = (1, 2, 4, 8, 16), (1.0, 1.8, 3.5, 6.2, 11.0)
HDR = Link.from_gigabits(200, latency=5e-6, name="InfiniBand HDR")
GRID = 61  # how many values of each of (share, sigma, constant) are tried


@lru_cache
def expected_maximum(n: int) -> float:
    """The expected maximum of n standard normal numbers: the integral of 1 - F^n above 0 minus that of F^n below 0.

    F is the distribution function of one number, so F^n is that of the maximum.
    """
    check_count("expected_maximum", "n", n)
    below, width = NormalDist().cdf, 0.01
    middles = [(i + 0.5) * width for i in range(900)]  # beyond 9 standard deviations nothing is left
    return width * sum(1 - below(x) ** n - below(-x) ** n for x in middles)


@dataclass(frozen=True, kw_only=True)
class CurvePart:
    """One part of a curve's loss, by its name in the docstring of this file: "batch", "gradients" and so on.

    lost: the loss at each count of GPUs, where 1 is the seconds of a step on one GPU. low, high: the range of the loss
    at the largest count, over all mixes that fit as well as the best one.
    """

    name: str
    lost: tuple[float, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, repr=False)
class CurveFit:
    """A measured curve with the parts of its loss.

    measured, fitted: speed-ups at each count of GPUs. step: seconds of a step on one GPU. ring: seconds of the
    gradients' all-reduce at each count. ring_alone: speed-ups if only this all-reduce were lost and no compute hid it.
    parts: batch, gradients, stragglers, input, in this order.
    """

    gpus: tuple[int, ...]
    measured: tuple[float, ...]
    fitted: tuple[float, ...]
    step: float
    ring: tuple[float, ...]
    ring_alone: tuple[float, ...]
    parts: tuple[CurvePart, ...]

    @property
    def residues(self) -> tuple[float, ...]:
        """Measured over fitted, minus one, at each count of GPUs."""
        return tuple(measured / fitted - 1 for measured, fitted in zip(self.measured, self.fitted, strict=True))

    @property
    def exposed(self) -> float:
        """The share of the all-reduce's seconds that no compute hides."""
        gradients, whole_ring = self.parts[1].lost[-1], self.gpus[-1] / self.ring_alone[-1] - 1
        return gradients / whole_ring

    def __repr__(self) -> str:
        ring, most = format_seconds(self.ring[-1]), self.gpus[-1]
        lines = [
            words("curve.ring", n=most, ring=ring, step=format_seconds(self.step), alone=self.ring_alone[-1]),
            words("curve.lost", n=most, found=self.measured[-1], lost=most / self.measured[-1] - 1),
        ]
        shown = self.parts if self.parts[0].lost[-1] else self.parts[1:]  # a batch that grows costs nothing
        for part in shown:
            values = {"lost": part.lost[-1], "low": part.low, "high": part.high, "exposed": self.exposed}
            lines.append(words(f"curve.{part.name}", **values))
        lines.append(words("curve.residue", off=max(map(abs, self.residues)), rows=len(self.gpus)))
        return "\n".join(lines)


def explain_curve(
    gpus: Sequence[int] = SOURCES_GPUS, speedups: Sequence[float] = SOURCES_SPEEDUPS, *, images: int = 64,
    kind: str = "weak", link: Link = HDR, half_digit: float = 0.05,
) -> CurveFit:  # fmt: skip
    """The parts of a scaling curve of ResNet-152 on A100 that begins with 1 GPU.

    images: of a step on one GPU. kind: with "weak" scaling each GPU gets as many, with "strong" the GPUs share them.
    Every ring runs over `link`, as if each GPU were a node, which is the most that communication can cost. Images and
    kind are guesses where a table does not say them, so try others. half_digit: how far rounding may have changed a
    speed-up, 0.05 where one digit after the point is printed.
    """
    check_rows("explain_curve", gpus, speedups, at_least=4)
    check_one_of("explain_curve", "kind", kind, ("strong", "weak"))
    if list(gpus) != sorted(gpus) or gpus[0] != 1 or not 0 <= half_digit < min(speedups):
        raise ValueError(
            f"explain_curve: counts {list(gpus)} and half_digit={half_digit!r}; order the counts, from 1 GPU on, "
            "and give 0.05 where one digit is printed"
        )
    step, ring, busy, rings = _costs(gpus, images, kind, link)  # busy, rings: GPU-seconds per sample of step, ring
    stragglers = [each * expected_maximum(n) for each, n in zip(busy, gpus, strict=True)]
    rows = [rings, stragglers, [n - 1 for n in gpus]]  # the loss by each part at each count if its factor is 1
    wanted = [n / measured for n, measured in zip(gpus, speedups, strict=True)]
    best, ranges = _mixes(busy, rows, wanted, [half_digit / measured for measured in speedups])
    batch = tuple(each - 1 for each in busy)  # predicted, so it has no range
    parts = [CurvePart(name="batch", lost=batch, low=batch[-1], high=batch[-1])]
    for name, factor, row, (low, high) in zip(("gradients", "stragglers", "input"), best, rows, ranges, strict=True):
        parts.append(CurvePart(name=name, lost=tuple(factor * one for one in row), low=low, high=high))
    total = [1 + sum(lost) for lost in zip(*(part.lost for part in parts), strict=True)]
    return CurveFit(
        gpus=tuple(gpus), measured=tuple(map(float, speedups)), parts=tuple(parts), step=step, ring=tuple(ring),
        fitted=tuple(n / each for n, each in zip(gpus, total, strict=True)),
        ring_alone=tuple(n / (1 + each) for n, each in zip(gpus, rings, strict=True)),
    )  # fmt: skip


def _costs(
    gpus: Sequence[int], images: int, kind: str, link: Link
) -> tuple[float, list[float], list[float], list[float]]:
    """Seconds of a step on one GPU; seconds of the ring at each count; and GPU-seconds per sample of step and ring.

    The GPU-seconds are given over those of a step on one GPU, so the third value begins with 1.
    """
    divisors = list(gpus) if kind == "strong" else [1] * len(gpus)  # by which the images of a step are divided
    check_divides("explain_curve", "GPUs", max(divisors), "images", images)
    one_gpu = Cluster(gpu=GPUS["A100"], gpus_per_node=1, num_nodes=1, intra=link, inter=link)
    steps = [resnet_step(RESNET_152, images // n, one_gpu).seconds for n in divisors]
    ring = [cost_seconds("all_reduce", 4 * RESNET_152.num_params, n, link) for n in gpus]

    def per_sample(seconds: list[float]) -> list[float]:
        """The GPU-seconds of a sample over those of a step on one GPU."""
        return [each * n / steps[0] for each, n in zip(seconds, divisors, strict=True)]

    return steps[0], ring, per_sample(steps), per_sample(ring)


def _mixes(
    busy: list[float], rows: list[list[float]], wanted: list[float], digits: list[float]
) -> tuple[list[float], list[tuple[float, float]]]:
    """The best mix on a grid, and the (low, high) loss of each part among all mixes that fit as well.

    busy: 1 plus the loss by the batch. rows: the loss by each part for a factor of 1. wanted: n/S as measured. digits:
    the relative error of rounding. All have one entry per count; low and high are at the largest count.
    """
    # The ring counts at most once. Each other factor goes up to 1.2 times what would explain the whole loss alone, or a
    # loss of 1 %, so that the grid is not a single point.
    largest = max(wanted[-1] - 1, 0.01) * 1.2
    steps = [end / (GRID - 1) for end in (1.0, largest / rows[1][-1], largest / rows[2][-1])]
    slopes = [input_row / target for input_row, target in zip(rows[2], wanted, strict=True)]
    # (position of the share, of sigma) -> the relative errors for an input constant of 0. The constant adds to each
    # error in proportion to it, so the best constant, and the range of those that fit, need no search.
    errors = {
        (i, j): [
            (one + i * steps[0] * ring + j * steps[1] * straggler) / target - 1
            for one, ring, straggler, target in zip(busy, rows[0], rows[1], wanted, strict=True)
        ]
        for i, j in product(range(GRID), repeat=2)
    }

    def with_constant(mix: tuple[int, int, int]) -> list[float]:
        """The relative errors of the mix at these positions of the grid."""
        return [error + mix[2] * steps[2] * slope for error, slope in zip(errors[mix[:2]], slopes, strict=True)]

    candidates = []
    for pair, without in errors.items():
        # The sum of squares is a parabola of the constant, so the best one on the grid is next to its lowest point.
        products = sum(error * slope for error, slope in zip(without, slopes, strict=True))
        lowest = -products / sum(slope**2 for slope in slopes) / steps[2]
        candidates += [(*pair, min(max(round_to(lowest), 0), GRID - 1)) for round_to in (floor, ceil)]
    best = min(candidates, key=lambda mix: sum(error**2 for error in with_constant(mix)))
    allowed = [max(rounding, *map(abs, with_constant(best))) for rounding in digits]
    fitting = _fitting_mixes(errors, [slope * steps[2] for slope in slopes], allowed)
    at_largest = [step * row[-1] for step, row in zip(steps, rows, strict=True)]  # the loss by one grid step
    columns = zip(zip(*fitting, strict=True), at_largest, strict=True)  # the positions of all mixes, part by part
    ranges = [(min(positions) * one, max(positions) * one) for positions, one in columns]
    return [i * step for i, step in zip(best, steps, strict=True)], ranges


def _fitting_mixes(
    errors: dict[tuple[int, int], list[float]], growth: list[float], allowed: list[float]
) -> list[tuple[int, int, int]]:
    """The first and the last position of the input constant with which each (share, sigma) misses no more than allowed.

    errors: by the positions of share and sigma, without a constant, at each count. growth: by how much one grid step of
    the constant changes the error at each count; 0 at one GPU.
    """
    fitting = []
    for pair, without in errors.items():
        low, high = 0.0, GRID - 1.0
        for error, step, most in zip(without, growth, allowed, strict=True):
            if step:
                low, high = max(low, (-most - error) / step), min(high, (most - error) / step)
            elif abs(error) > most:
                high = -1.0
        low, high = ceil(low - 1e-9), floor(high + 1e-9)  # the best mix lies on the edge
        fitting += [(*pair, low), (*pair, high)] if low <= high else []
    return fitting
