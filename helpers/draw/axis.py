"""Provides axes of seconds and of bytes whose ticks are round numbers in one unit.

The scenes of timelines, pipelines, memory and message bars put these grid lines and labels behind their bars.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from helpers.draw.scene import Label, Line
from helpers.quantities.units import format_bytes

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def round_step(span: float, count: int = 6) -> float:
    """The round number (1, 2 or 5 times a power of ten) that divides `span` into about `count` parts."""
    raw = span / count
    power = 10 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)


def ticks(end: float, count: int = 6) -> list[float]:
    """Round positions from 0 to `end`."""
    if end <= 0:
        return [0.0]
    step = round_step(end, count)
    return [number * step for number in range(int(end / step + 1e-9) + 1)]


def _texts_in_one_unit(seconds: list[float]) -> list[str]:
    """A text per tick, in the unit that suits the last one; only the last text names that unit."""
    size, unit = next(((size, unit) for size, unit in _TIME_UNITS if seconds[-1] >= size), _TIME_UNITS[-1])
    return [f"{value / size:.6g}" + (f" {unit}" if value == seconds[-1] else "") for value in seconds]


def time_axis(
    left: float, width: float, top: float, bottom: float, end: float, with_labels: bool
) -> list[Label | Line]:
    """Vertical grid lines from `top` to `bottom` with labels below; `end` is in seconds and lies at left + width."""
    marks = ticks(end)
    items: list[Label | Line] = []
    for seconds, text in zip(marks, _texts_in_one_unit(marks), strict=True):
        x = left + (seconds / end * width if end else 0)
        items.append(Line(x1=x, y1=top, x2=x, y2=bottom + 4))
        if with_labels:
            items.append(Label(x=x, y=bottom + 14, text=text, size=11, anchor="middle", colour="muted"))
    return items


def bytes_axis(largest: float, left: float, scale: float, top: float, bottom: float) -> Iterator[Label | Line]:
    """Vertical grid lines from 0 to `largest` bytes, at `scale` pixels per byte, with labels below them."""
    step = round_step(largest, 5)
    for number in range(int(largest / step) + 1):
        x = left + number * step * scale
        yield Line(x1=x, y1=top, x2=x, y2=bottom)
        yield Label(x=x, y=bottom + 10, text=bytes_tick(number * step), size=11, anchor="middle", colour="muted")


def bytes_tick(num_bytes: float) -> str:
    """A round number of bytes as text, without zeros after the decimal point: "40 GB", not "40.0 GB"."""
    return re.sub(r"\.0+ ", " ", format_bytes(num_bytes)) if num_bytes else "0"
