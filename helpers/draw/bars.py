"""Bars of bytes: predicted beside measured beside a guess, and what fills the memory of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from helpers.comparison import Comparison, Row, compare
from helpers.draw.axis import round_step
from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.units import format_bytes

_RIGHT, _BAR = 24.0, 18.0
_SIDES = ("guess", "predicted", "measured")
_WORDS = {"guess": "your guess", "predicted": "predicted", "measured": "measured"}
_LOOKS = {
    "guess": {"stroke": "ink"},
    "predicted": {"fill": "buffers", "texture": "stripes"},
    "measured": {"fill": "parameters"},
}


def bytes_scene(
    predicted: object,
    measured: object = None,
    *,
    guess: object = None,
    title: str = "Bytes, predicted and measured",
    width: float = WIDTH,
) -> Scene:
    """Horizontal bars for each quantity in bytes, on one axis from 0.

    Takes a Comparison, or what `compare` takes: two records, or dicts such as {"sent bytes": 64_189_440}.
    With `predicted` alone, only its bars are drawn. ValueError when nothing is in bytes.
    """
    rows = [row for row in _rows(predicted, measured, guess) if row.unit == "bytes" and _largest([row]) > 0]
    if not rows:
        raise ValueError("bytes_scene found no quantity in bytes; end the keys of a dict in 'bytes', or give records")
    left = min(260.0, 28 + max(text_width(row.name, 12) for row in rows))
    scale = (width - left - _RIGHT - 80) / _largest(rows)
    sides = [side for side in _SIDES if any(getattr(row, side) is not None for row in rows)]
    head, top = heading(title, [(_WORDS[side], _LOOKS[side]) for side in sides], width)
    items, y = [], top + 8
    for row in rows:
        items += _row_bars(row, sides, left, y, scale)
        y += len(sides) * _BAR + 14
    items = [*_grid(_largest(rows), left, scale, top, y - 8), *items]
    return Scene(width=width, height=y + 18, title=title, summary=_sentence(rows), items=(*head, *items))


def _rows(predicted: object, measured: object, guess: object) -> tuple[Row, ...]:
    if isinstance(predicted, Comparison):
        return predicted.rows
    if measured is not None:
        return compare(predicted, measured, guess=guess).rows
    alone = compare(predicted, predicted, guess=guess).rows
    return tuple(Row(name=r.name, unit=r.unit, predicted=r.predicted, measured=None, guess=r.guess) for r in alone)


def _largest(rows: list[Row]) -> float:
    return max(getattr(row, side) or 0 for row in rows for side in _SIDES)


def _row_bars(row: Row, sides: list[str], left: float, y: float, scale: float) -> Iterator[Rect | Label]:
    yield Label(x=left - 12, y=y + len(sides) * _BAR / 2 - 1, text=row.name, anchor="end")
    for number, side in enumerate(sides):
        value = getattr(row, side)
        if value is None:
            continue
        top = y + number * _BAR
        tooltip = f"{row.name}, {_WORDS[side]}: {value:,.0f} bytes"
        yield Rect(x=left, y=top, width=value * scale, height=_BAR - 3, radius=2, tooltip=tooltip, **_LOOKS[side])
        yield Label(x=left + value * scale + 8, y=top + (_BAR - 3) / 2, text=format_bytes(value), size=11)


def _grid(largest: float, left: float, scale: float, top: float, bottom: float) -> Iterator[Label | Line]:
    step = round_step(largest, 5)
    for number in range(int(largest / step) + 1):
        x = left + number * step * scale
        yield Line(x1=x, y1=top, x2=x, y2=bottom)
        text = re.sub(r"\.0+ ", " ", format_bytes(number * step)) if number else "0"
        yield Label(x=x, y=bottom + 10, text=text, size=11, anchor="middle", colour="muted")


def _sentence(rows: list[Row]) -> str:
    return " ".join(f"{row.name}: {', '.join(_parts(row))}." for row in rows)


def _parts(row: Row) -> Iterator[str]:
    for side in _SIDES:
        if getattr(row, side) is not None:
            yield f"{_WORDS[side]} {format_bytes(getattr(row, side))}"


def memory_scene(
    breakdowns: Mapping[str, MemoryBreakdown],
    *,
    capacity: float | None = None,
    title: str = "Where the bytes of each rank go",
    width: float = WIDTH,
) -> Scene:
    """One stacked bar for each name ("rank 0", "ZeRO-1"); a line marks `capacity` (bytes) if given.

    ValueError when there is nothing to draw.
    """
    largest = max([one.total for one in breakdowns.values()] + [capacity or 0], default=0)
    if not largest > 0:
        raise ValueError("memory_scene got no bytes to draw; give a dict such as {'rank 0': MemoryBreakdown(...)}")
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(one, kind) for one in breakdowns.values())]
    left = min(260.0, 28 + max(text_width(name, 12) for name in breakdowns))
    scale = (width - left - _RIGHT - 80) / largest
    head, top = heading(title, kinds_legend(kinds), width)
    top += 16 if capacity else 4
    items, y, height = [], top + 4, 26.0
    for name, breakdown in breakdowns.items():
        items += _stack(name, breakdown, kinds, left, y, scale, height)
        y += height + 10
    grid = _grid(largest, left, scale, top - 4, y - 2)
    limit = _capacity(capacity, left, scale, top - 4, y - 2) if capacity else []
    summary = " ".join(f"{name}: {format_bytes(one.total)}." for name, one in breakdowns.items())
    return Scene(width=width, height=y + 22, title=title, summary=summary, items=(*head, *grid, *items, *limit))


def _capacity(capacity: float, left: float, scale: float, top: float, bottom: float) -> Iterator[Label | Line]:
    x, text = left + capacity * scale, f"capacity {format_bytes(capacity)}"
    yield Line(x1=x, y1=top, x2=x, y2=bottom, colour="ink", width=2, dashed=True, tooltip=text)
    yield Label(x=x, y=top - 7, text=text, size=11, anchor="middle")


def _stack(
    name: str, breakdown: MemoryBreakdown, kinds: list[str], left: float, y: float, scale: float, height: float
) -> Iterator[Rect | Label]:
    yield Label(x=left - 12, y=y + height / 2, text=name, anchor="end")
    x = left
    for kind in kinds:
        num_bytes = getattr(breakdown, kind)
        bar, tooltip = num_bytes * scale, f"{name} · {kind} · {num_bytes:,.0f} bytes"
        if bar >= 0.5:
            yield Rect(
                x=x,
                y=y,
                width=max(bar - 1, 0.5),
                height=height,
                fill=kind,
                texture=PAINTS[kind].texture,
                tooltip=tooltip,
            )
        if text_width(format_bytes(num_bytes), 11) < bar - 8:
            yield Label(
                x=x + bar / 2, y=y + height / 2, text=format_bytes(num_bytes), size=11, anchor="middle", on=kind
            )
        x += bar
    yield Label(x=x + 8, y=y + height / 2, text=format_bytes(breakdown.total), size=12, bold=True)
