"""Bars of bytes: predicted beside measured beside a guess."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.axis import bytes_axis
from helpers.draw.scene import WIDTH, Label, Rect, Scene, heading, text_width
from helpers.quantities.units import format_bytes
from helpers.records.comparison import Comparison, Row, compare

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
    items = [*bytes_axis(_largest(rows), left, scale, top, y - 8), *items]
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


def _sentence(rows: list[Row]) -> str:
    return " ".join(f"{row.name}: {', '.join(_parts(row))}." for row in rows)


def _parts(row: Row) -> Iterator[str]:
    for side in _SIDES:
        if getattr(row, side) is not None:
            yield f"{_WORDS[side]} {format_bytes(getattr(row, side))}"
