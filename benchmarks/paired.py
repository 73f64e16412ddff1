"""Compare two pieces of work honestly on a noisy machine, and save what came out as a Markdown table.

Two timings taken minutes apart differ by 15 % on an idle laptop. So A and B are run in turn, A B A B, each pair
gives one ratio, and what is quoted is the median of the ratios with its 95 % bootstrap interval
(Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3: the percentile interval).
Standard library only; a benchmark file imports it with `from benchmarks.paired import paired_ratio, write_table`.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
RESAMPLES = 2000
Work = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """Time of A over time of B: the median of paired ratios, its 95 % interval, and the median seconds of each."""

    median: float
    low: float
    high: float
    a_seconds: float
    b_seconds: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def paired_ratio(a: Work, b: Work, *, pairs: int = 15, warmup: int = 2) -> Ratio:
    """Time `a` and `b` in interleaved pairs and return time(a) / time(b).

    `a` and `b` take no argument and do the same amount of work on each call. A callable that measures its own
    time (for example on a rank) returns those seconds as a positive float; otherwise the call itself is timed.
    Every second pair runs B first, so that a slow drift of the machine favours neither.
    Raises ValueError if `pairs` < 3 (no interval can be given) or `warmup` < 0.
    """
    if pairs < 3:
        raise ValueError(f"pairs={pairs}: an interval needs at least 3 pairs; pass pairs=15 or more")
    if warmup < 0:
        raise ValueError(f"warmup={warmup}: the number of unmeasured pairs cannot be negative; pass 0 or more")
    for _ in range(warmup):
        a(), b()
    timed = [_one_pair(a, b, b_first=index % 2 == 1) for index in range(pairs)]
    return ratio_of([pair[0] for pair in timed], [pair[1] for pair in timed])


def ratio_of(a_seconds: Sequence[float], b_seconds: Sequence[float]) -> Ratio:
    """The Ratio of timings in seconds that were already taken in pairs: a_seconds[i] belongs to b_seconds[i].

    Raises ValueError if the two sequences are empty, differ in length or hold a time that is not positive.
    """
    if not a_seconds or len(a_seconds) != len(b_seconds):
        raise ValueError(f"{len(a_seconds)} timings of A and {len(b_seconds)} of B: give the same number, at least one")
    if min(*a_seconds, *b_seconds) <= 0:
        raise ValueError("a timing is zero or negative; repeat the work inside the callable until the clock sees it")
    ratios = [a / b for a, b in zip(a_seconds, b_seconds, strict=True)]
    low, high = bootstrap_interval(ratios)
    return Ratio(statistics.median(ratios), low, high, statistics.median(a_seconds), statistics.median(b_seconds))


def bootstrap_interval(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the median of `values`; the same values give the same interval."""
    generator = random.Random(seed)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


def write_table(name: str, rows: Sequence[Mapping[str, object]], command: str) -> Path:
    """Write `rows` as benchmarks/results/<name>.md and return its path.

    Each row maps a column's title to its value; the first row's titles are the columns. A Ratio prints as
    "1.02 (0.98 to 1.07)", a float with three significant digits: put units in the titles. `command` is what
    a reader types to repeat the measurement. The machine, the versions and the commit are written below the table.
    Raises ValueError if there is no row, if titles differ between rows, or if `name` is not a plain file name.
    """
    if not rows:
        raise ValueError(f"table {name!r} has no row; measure something before writing it")
    if Path(name).name != name or name.endswith(".md"):
        raise ValueError(f"name={name!r}: give a plain file name without folder or ending, for example 'ranks'")
    columns = list(rows[0])
    if odd := [list(row) for row in rows if list(row) != columns]:
        raise ValueError(f"a row of table {name!r} has columns {odd[0]}, the first row {columns}; make them equal")
    lines = [_line(columns), _line("---" for _ in columns)]
    lines += [_line(_cell(row[column]) for column in columns) for row in rows]
    path = RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([f"# {name}", "", *lines, "", _footer(command, rows), ""]), encoding="utf-8")
    return path


def machine() -> str:
    """One line that says what ran: cores usable by this process, architecture, Python and torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        torch = f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "no torch"
    return f"{cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, {torch}"


def commit() -> str:
    """The short hash of the commit that is checked out, with a + if files were changed since; "unknown" without git."""
    command = ["git", "describe", "--always", "--exclude", "*", "--dirty=+"]
    described = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def _one_pair(a: Work, b: Work, *, b_first: bool) -> tuple[float, float]:
    if b_first:
        b_seconds = _seconds(b)
        return _seconds(a), b_seconds
    return _seconds(a), _seconds(b)


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    result = work()
    elapsed = time.perf_counter() - start
    return result if isinstance(result, float) else elapsed


def _cell(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _line(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def _footer(command: str, rows: Sequence[Mapping[str, object]]) -> str:
    made = f"Made by `{command}` on {machine()}, as of commit {commit()}."
    if not any(isinstance(value, Ratio) for row in rows for value in row.values()):
        return made
    return f"{made}\nRatios are the median of interleaved pairs with its 95 % interval."
