"""Somebody's own measurements, as a CSV of GPUs and samples per second: read, doubted aloud, fitted, ready to draw."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean

from helpers.learner.words import Words
from helpers.predict.scaling.curves import Point, points_of
from helpers.predict.scaling.laws import AmdahlFit, fit_amdahl, say

COUNTS = re.compile(r"gpus?|ranks?|world.?size|devices?|cards?|workers?|accelerators?|n|卡|显卡|进程", re.I)
RATES = re.compile(r"rate|throughput|speed|/ ?s|per.sec|samples|images|img|tokens|sequences|吞吐|每秒|速度", re.I)
SECONDS = re.compile(r"seconds|time|\bms\b|\bs\b|latency|秒数|时间|耗时", re.I)
ABOVE = 1.1  # times the ideal, which caches may pass a little


@dataclass(frozen=True, kw_only=True, repr=False)
class Measurements:
    """Sorted, each count once. notes: what was odd, a sentence each. points have no seconds of a step: it is nan."""

    gpus: tuple[int, ...]
    rates: tuple[float, ...]
    notes: tuple[Words, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        return points_of(self.gpus, self.rates, [float("nan")] * len(self.gpus))

    @property
    def speedups(self) -> tuple[float, ...]:
        return tuple(point.speedup for point in self.points)

    @property
    def fit(self) -> AmdahlFit | None:
        """Amdahl's law through them, None of fewer than three counts, through which any law goes."""
        return fit_amdahl(self.gpus, self.speedups) if len(self.gpus) > 2 else None

    def __repr__(self) -> str:
        rows = [
            say("read.row", gpus=one.gpus, rate=one.samples_per_second, speedup=one.speedup, efficiency=one.efficiency)
            for one in self.points
        ]
        return "\n".join([*rows, *[repr(self.fit)] * (self.fit is not None), *map(str, self.notes)])


def read_measurements(source: str | Path) -> Measurements:
    """A file, or its text (of two lines or more). ValueError for lines that cannot be read: all of them, by number."""
    lines = [(number, line.strip()) for number, line in enumerate(_text(source).splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line.strip(",;") and not line.startswith("#")]
    if not lines:
        raise ValueError(say("read.empty"))
    mark = next((one for one in "\t;," if one in lines[-1][1]), None)
    rows = [(number, [cell.strip() for cell in line.split(mark)]) for number, line in lines]
    columns, notes, rows = _columns(rows)
    found, wrong = [], []
    for line, cells in rows:
        if len(cells) <= max(columns):
            wrong.append(say("read.cells", line=line, value=" ".join(cells)))
            continue
        count, rate = (_number(cells[column]) for column in columns)
        if not (count >= 1 and count == int(count)):
            wrong.append(say("read.gpus", line=line, value=cells[columns[0]]))
        if not rate > 0:
            wrong.append(say("read.rate", line=line, value=cells[columns[1]]))
        found.append((line, count, rate))
    if wrong or not found:
        raise ValueError(say("read.wrong", lines=". ".join(wrong)) if wrong else say("read.empty"))
    return _sorted([(line, int(count), rate) for line, count, rate in found], notes)


def _text(source: str | Path) -> str:
    if isinstance(source, str) and ("\n" in source or not source.strip()):
        return source
    path = Path(source)
    if not path.is_file():
        raise ValueError(say("read.missing", path=path))
    return path.read_text(encoding="utf-8-sig")


def _number(cell: str) -> float:
    """nan for what is none, so that no comparison holds."""
    if not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", cell, re.I):
        return float("nan")
    return float(cell) if isfinite(float(cell)) else float("nan")


def _columns(rows: Sequence[tuple[int, list[str]]]) -> tuple[tuple[int, int], list[Words], Sequence]:
    """The columns of GPUs and rates, what is to be said about the header, and the rows below it."""
    (line, header), below = rows[0], rows[1:]
    if any(cell[:1].isdigit() or cell[:1] in "+-." for cell in header if cell):
        return (0, 1), [], rows
    rates = [place for place, cell in enumerate(header) if RATES.search(cell)]
    counts = [place for place, cell in enumerate(header) if COUNTS.search(cell) and place not in rates]
    timed = [cell for place, cell in enumerate(header) if SECONDS.search(cell) and place not in rates]
    if not rates and timed:
        raise ValueError(say("read.wrong", lines=say("read.seconds", line=line, value=timed[0])))
    if rates and counts:
        return (counts[0], rates[0]), [], below
    return (0, 1), [say["read.header"].format(line=line, value=", ".join(header))], below


def _sorted(found: list[tuple[int, int, float]], notes: list[Words]) -> Measurements:
    """In order, each count once, with a note for each line that is odd."""
    rates, lines = {}, {}
    for line, count, rate in found:
        if rates and count < max(rates) and count not in rates:
            notes.append(say["read.order"].format(line=line, gpus=count))
        rates.setdefault(count, []).append(rate)
        lines[count] = line
        if len(rates[count]) > 1:
            notes.append(say["read.twice"].format(line=line, gpus=count, rates=[f"{one:g}" for one in rates[count]]))
    counts = tuple(sorted(rates))
    if counts[0] > 1:
        notes.append(say["read.smallest"].format(line=lines[counts[0]], gpus=counts[0]))
    mean = {count: fmean(rates[count]) for count in counts}
    for count in counts[1:]:
        times, odd = mean[count] / mean[counts[0]] * counts[0] / count, {"line": lines[count], "rate": mean[count]}
        if times > ABOVE:
            notes.append(say["read.above"].format(gpus=count, times=times, **odd))
        elif mean[count] < mean[counts[0]]:
            notes.append(say["read.slower"].format(gpus=count, **odd))
    return Measurements(gpus=counts, rates=tuple(mean[count] for count in counts), notes=tuple(notes))
