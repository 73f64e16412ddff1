"""Provides two pictures of horizontal bars: bytes_scene compares numbers of bytes, parts_scene shows named parts.

`bytes_scene` puts a guess, the predicted and the measured bytes of each quantity below each other; several chapters and
explorers use it. `parts_scene` shows what a step, a device or a parameter consists of, in any unit; most chapters use
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.axis import bytes_axis
from helpers.draw.palette import kind_style
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, centred_label, heading, text_width
from helpers.quantities.units import format_bytes
from helpers.records.comparison import Comparison, Row, compare

_BYTES_BAR = 18.0  # pixels from one bar of a quantity to the next
_BYTES_RIGHT = 104.0  # pixels right of the longest bar, for its bytes
_SIDES = ("guess", "predicted", "measured")
_SIDE_NAMES = {"guess": "your guess", "predicted": "predicted", "measured": "measured"}
_SIDE_STYLES = {
    "guess": {"stroke": "ink"},
    "predicted": {"fill": "buffers", "texture": "stripes"},
    "measured": {"fill": "parameters"},
}
_PART_BAR, _PART_PITCH = 28.0, 38.0  # pixels: the height of a row of parts, and from one row to the next


# -- bytes -----------------------------------------------------------------------------------------------------------
def bytes_scene(
    predicted: object,
    measured: object = None,
    *,
    guess: object = None,
    title: str = "Bytes, predicted and measured",
    width: float = WIDTH,
) -> Scene:
    """Horizontal bars for each quantity in bytes, on one axis that begins at 0.

    Takes a Comparison, or what `compare` takes: two records, or dicts such as {"sent bytes": 64_189_440}. With
    `predicted` alone, only its bars are drawn. Raises ValueError when nothing is in bytes.
    """
    rows = [row for row in _rows(predicted, measured, guess) if row.unit == "bytes" and _largest([row]) > 0]
    if not rows:
        raise ValueError("bytes_scene found no quantity in bytes; end the keys of a dict in 'bytes', or give records")
    left = min(260.0, 28 + max(text_width(row.name, 12) for row in rows))
    scale = (width - left - _BYTES_RIGHT) / _largest(rows)
    sides = [side for side in _SIDES if any(getattr(row, side) is not None for row in rows)]
    head, top = heading(title, [(_SIDE_NAMES[side], _SIDE_STYLES[side]) for side in sides], width)
    items, y = [], top + 8
    for row in rows:
        items += _bytes_bars(row, sides, left, y, scale)
        y += len(sides) * _BYTES_BAR + 14
    items = [*bytes_axis(_largest(rows), left, scale, top, y - 8), *items]
    return Scene(width=width, height=y + 18, title=title, summary=_bytes_summary(rows), items=(*head, *items))


def _rows(predicted: object, measured: object, guess: object) -> tuple[Row, ...]:
    if isinstance(predicted, Comparison):
        return predicted.rows
    if measured is not None:
        return compare(predicted, measured, guess=guess).rows
    rows = compare(predicted, predicted, guess=guess).rows
    return tuple(
        Row(name=row.name, unit=row.unit, predicted=row.predicted, measured=None, guess=row.guess) for row in rows
    )


def _largest(rows: list[Row]) -> float:
    return max(getattr(row, side) or 0 for row in rows for side in _SIDES)


def _bytes_bars(row: Row, sides: list[str], left: float, y: float, scale: float) -> Iterator[Rect | Label]:
    yield Label(x=left - 12, y=y + len(sides) * _BYTES_BAR / 2 - 1, text=row.name, anchor="end")
    height = _BYTES_BAR - 3
    for number, side in enumerate(sides):
        value = getattr(row, side)
        if value is None:
            continue
        top = y + number * _BYTES_BAR
        tooltip = f"{row.name}, {_SIDE_NAMES[side]}: {value:,.0f} bytes"
        style = {"radius": 2, "tooltip": tooltip, **_SIDE_STYLES[side]}
        yield Rect(x=left, y=top, width=value * scale, height=height, **style)
        yield Label(x=left + value * scale + 8, y=top + height / 2, text=format_bytes(value), size=11)


def _bytes_summary(rows: list[Row]) -> str:
    return " ".join(f"{row.name}: {', '.join(_side_texts(row))}." for row in rows)


def _side_texts(row: Row) -> Iterator[str]:
    for side in _SIDES:
        if getattr(row, side) is not None:
            yield f"{_SIDE_NAMES[side]} {format_bytes(getattr(row, side))}"


# -- parts -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a row: `text` stands on it where it fits, `kind` is its colour, `size` its length in any unit."""

    text: str
    kind: str
    size: float


def parts_scene(
    rows: Mapping[str, Sequence[Part]],
    *,
    title: str,
    ends: Mapping[str, str],
    legend: Mapping[str, str] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Scene:
    """A row of parts for each name, all on one scale; `ends` maps a name to the text at the end of its row.

    `legend` maps kinds to their words. `limits` maps a name to how much the device of this row can hold, which is drawn
    as a dashed line. Raises ValueError where no part has a size above 0.
    """
    limits = limits or {}
    lengths = {name: sum(part.size for part in parts) for name, parts in rows.items()}
    longest = max([*lengths.values(), *limits.values()], default=0)
    if not longest > 0:
        raise ValueError(f"parts_scene got {dict(rows)!r}: give at least one row with a part of a size above 0")
    head, top = heading(title, [(word, kind_style(kind)) for kind, word in (legend or {}).items()], WIDTH)
    left = 28 + max(text_width(name, 12) for name in rows)
    scale = (WIDTH - left - 24 - max(text_width(ends[name], 12, bold=True) for name in rows)) / longest
    items: list[Rect | Label | Line] = [*head]
    for number, (name, parts) in enumerate(rows.items()):
        y, end = top + 8 + number * _PART_PITCH, left + max(lengths[name], limits.get(name, 0)) * scale
        items.append(Label(x=left - 12, y=y + _PART_BAR / 2, text=name, anchor="end"))
        items += _parts(parts, left, y, scale)
        if name in limits:
            x = left + limits[name] * scale
            items.append(Line(x1=x, y1=y - 4, x2=x, y2=y + _PART_BAR + 4, colour="ink", width=2, dashed=True))
        items.append(Label(x=end + 10, y=y + _PART_BAR / 2, text=ends[name], bold=True))
    summary = " ".join(f"{name}: {ends[name]}." for name in rows)
    height = top + 8 + len(rows) * _PART_PITCH
    return Scene(width=WIDTH, height=height, title=title, summary=summary, items=tuple(items))


def _parts(parts: Sequence[Part], x: float, y: float, scale: float) -> Iterator[Rect | Label]:
    for part in parts:
        width = part.size * scale
        if width >= 1:
            style = {**kind_style(part.kind), "tooltip": part.text}
            yield Rect(x=x, y=y, width=width - 1, height=_PART_BAR, **style)
        if part.text and text_width(part.text, 11) < width - 6:
            yield centred_label(x + width / 2, y + _PART_BAR / 2, part.text, 11, on=part.kind)
        x += width
