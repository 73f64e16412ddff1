"""Provides horizontal bars of named parts: parts_scene shows what a step, a device or a parameter consists of.

The parts are in any unit. Other pictures draw their bars with BarStyle, `rows_scene`, `memory_parts` and the style
MESSAGES.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.palette import PAINTS, kind_style
from helpers.draw.scene import (
    WIDTH,
    Label,
    Legend,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    dot,
    heading,
    text_width,
)
from helpers.records import MemoryBreakdown


# -- parts -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a row: `text` stands on it where it fits, `kind` is its colour, `size` its length in any unit.

    `short` stands on it where `text` does not fit. `tooltip` is shown on hover; without one, `text` is.
    """

    text: str
    kind: str
    size: float
    short: str = ""
    tooltip: str = ""


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A row of parts, with its name on the left and the text `end` on the right.

    A dashed line stands at `limit`, how much a device can hold, and a dot at `counted`, the measured sum of the parts;
    both are in the unit of the parts. Where one of several rows is the chosen one, `is_chosen` tells whether it is this
    row: only its texts are bold. None means that no row is chosen; then the text `end` of every row is bold.
    """

    name: str
    parts: Sequence[Part]
    end: str
    limit: float | None = None
    counted: float | None = None
    is_chosen: bool | None = None

    @property
    def length(self) -> float:
        """Up to where the row reaches, in the unit of the parts."""
        return max(sum(part.size for part in self.parts), self.limit or 0)


@dataclass(frozen=True, kw_only=True)
class BarStyle:
    """How rows of parts look; all sizes are in pixels.

    `height` is that of a bar, and `pitch` the distance from one row to the next. `font` is the size of names and of
    end texts, which begin `end_gap` behind the bar, and `part_font` that of the texts on parts, beside which
    `text_margin` must stay free. A part is `gap` narrower than its size, but no narrower than `thinnest`; one whose
    size is below `hidden_below` is left out. In `rows_scene`, `right` pixels stay free behind the longest bar, by
    default as many as the widest end text needs, and `above` pixels between the heading and the rows.
    """

    height: float
    pitch: float
    font: float = 12.0
    part_font: float = 11.0
    end_gap: float = 8.0
    text_margin: float = 8.0
    gap: float = 1.0
    thinnest: float = 0.5
    hidden_below: float = 0.5
    radius: float = 0.0
    right: float = 0.0
    above: float = 8.0

    def box(self, part: Part, x: float, y: float, width: float) -> Iterator[Rect]:
        """The box of a part, with its texture where that can be seen."""
        if width >= self.hidden_below:
            style = {"fill": part.kind, "texture": PAINTS[part.kind].texture if width > 4 else ""}
            style |= {"radius": self.radius, "tooltip": part.tooltip or part.text}
            yield Rect(x=x, y=y, width=max(self.thinnest, width - self.gap), height=self.height, **style)

    def parts(self, parts: Iterable[Part], x: float, y: float, scale: float) -> Iterator[Rect | Label]:
        """The parts from `x` on, with `scale` pixels per unit of their sizes, each with the longer text that fits."""
        for part in parts:
            width = part.size * scale
            yield from self.box(part, x, y, width)
            available = width - self.text_margin
            fitting = [text for text in (part.text, part.short) if text_width(text, self.part_font) < available]
            if any(fitting):
                middle = x + width / 2, y + self.height / 2
                yield centred_label(*middle, fitting[0], self.part_font, on=part.kind)
            x += width

    def rows(self, rows: Iterable[BarRow], left: float, top: float, scale: float) -> Iterator[SceneItem]:
        """The rows from `top` on, each with its name left of the bars' left edge `left`."""
        for number, row in enumerate(rows):
            y = top + number * self.pitch
            middle, is_chosen = y + self.height / 2, row.is_chosen is True  # False also where no row is chosen (None)
            yield Label(x=left - 12, y=middle, text=row.name, size=self.font, anchor="end", bold=is_chosen)
            yield from self.parts(row.parts, left, y, scale)
            if row.limit is not None:
                x = left + row.limit * scale
                yield Line(x1=x, y1=y - 4, x2=x, y2=y + self.height + 4, colour="ink", width=2, dashed=True)
            if row.counted is not None:
                yield dot(left + row.counted * scale, middle, 12, fill="ink")
            end = left + max(row.length, row.counted or 0) * scale + self.end_gap
            yield Label(x=end, y=middle, text=row.end, size=self.font, bold=row.is_chosen is not False)


def memory_parts(memory: MemoryBreakdown, kinds: Iterable[str], tooltip: Callable[[str, int], str]) -> list[Part]:
    """A part for the bytes of each kind of memory; `tooltip` is a function that gets the kind and its bytes."""
    sizes = {kind: getattr(memory, kind) for kind in kinds}
    return [Part(text="", kind=kind, size=size, tooltip=tooltip(kind, size)) for kind, size in sizes.items()]


def rows_scene(rows: Sequence[BarRow], style: BarStyle, *, title: str, legend: Legend, summary: str) -> Scene:
    """Rows of parts on one scale, as a Scene. At least one row must have a length above 0."""
    items, top = heading(title, legend)
    left = 28 + max(text_width(row.name, style.font) for row in rows)
    right = style.right or 24 + max(text_width(row.end, style.font, bold=True) for row in rows)
    scale = (WIDTH - left - right) / max(row.length for row in rows)
    items += style.rows(rows, left, top + style.above, scale)
    return Scene(height=top + style.above + len(rows) * style.pitch, title=title, summary=summary, items=items)


# Messages, each of which can be seen however few its bytes are.
MESSAGES = BarStyle(height=28, pitch=38, font=13, part_font=12, gap=3, thinnest=1, hidden_below=0, radius=3, right=84)
_PARTS = BarStyle(height=28.0, pitch=38.0, end_gap=10.0, text_margin=6.0, thinnest=0.0)


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
    bars = [BarRow(name=name, parts=parts, end=ends[name], limit=limits.get(name)) for name, parts in rows.items()]
    if not any(bar.length > 0 for bar in bars):
        raise ValueError(f"parts_scene got {dict(rows)!r}: give at least one row with a part of a size above 0")
    entries = [(word, kind_style(kind)) for kind, word in (legend or {}).items()]
    summary = " ".join(f"{name}: {ends[name]}." for name in rows)
    return rows_scene(bars, _PARTS, title=title, legend=entries, summary=summary)
