"""Provides grid lines with labels, and axes of seconds and of bytes whose ticks are round numbers in one unit.

Every scene with an axis puts these lines and labels behind its bars or curves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from helpers.draw.scene import WIDTH, Label, Line, centred_label, text_width
from helpers.quantities.units import format_bytes

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def round_step(span: float, count: int = 6) -> float:
    """The round number (1, 2 or 5 times a power of ten) that divides `span` into about `count` parts."""
    raw = span / count
    power = 10 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)  # 0.999: against rounding


def ticks(end: float, count: int = 6) -> list[float]:
    """Round positions from 0 to `end`."""
    if end <= 0:
        return [0.0]
    step = round_step(end, count)
    return [number * step for number in range(int(end / step + 1e-9) + 1)]  # 1e-9: against rounding


def _texts_in_one_unit(seconds: list[float]) -> list[str]:
    """A text per tick, in the unit that suits the last one; only the last text names that unit."""
    # The largest unit that is not longer than the last tick, or else the smallest one.
    size, unit = next(((size, unit) for size, unit in _TIME_UNITS if seconds[-1] >= size), _TIME_UNITS[-1])
    return [f"{value / size:.6g}" + (f" {unit}" if value == seconds[-1] else "") for value in seconds]


def column_lines(
    marks: Iterable[tuple[float, str]], top: float, bottom: float, *, text_gap: float = 10, size: float = 11
) -> Iterator[Label | Line]:
    """A vertical grid line at each (x, text) of `marks`, with the text, if any, `text_gap` pixels below the line."""
    for x, text in marks:
        yield Line(x1=x, y1=top, x2=x, y2=bottom)
        if text:
            yield Label(x=x, y=bottom + text_gap, text=text, size=size, anchor="middle", colour="muted")


def row_lines(
    marks: Iterable[tuple[float, str]], left: float, right: float, *, text_gap: float = 6
) -> Iterator[Label | Line]:
    """A horizontal grid line at each (y, text) of `marks`, with the text `text_gap` pixels left of the line."""
    for y, text in marks:
        yield Line(x1=left, y1=y, x2=right, y2=y)
        yield Label(x=left - text_gap, y=y, text=text, size=12, anchor="end", colour="muted")


def time_axis(
    left: float, width: float, top: float, bottom: float, end: float, with_labels: bool = True
) -> Iterator[Label | Line]:
    """Vertical grid lines from `top` to `bottom` with labels below; `end` is in seconds and lies at left + width."""
    seconds = ticks(end)
    texts = _texts_in_one_unit(seconds) if with_labels else [""] * len(seconds)
    marks = ((left + value / end * width, text) for value, text in zip(seconds, texts, strict=True))
    return column_lines(marks, top, bottom + 4)


def limit_line(text: str, x: float, top: float, bottom: float) -> Iterator[Label | Line]:
    """A dashed vertical line at a device's limit, with its text above, moved to where the picture has room for it."""
    half = text_width(text, 12, bold=True) / 2
    yield Line(x1=x, y1=top - 2, x2=x, y2=bottom, colour="ink", width=2, dashed=True, tooltip=text)
    yield centred_label(min(max(x, half + 4), WIDTH - half - 4), top - 10, text, bold=True)


def bytes_tick(num_bytes: float) -> str:
    """A round number of bytes as text, without zeros after the decimal point: "40 GB", not "40.0 GB"."""
    return re.sub(r"\.0+ ", " ", format_bytes(num_bytes)) if num_bytes else "0"
