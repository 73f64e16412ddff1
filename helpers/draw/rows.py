"""Provides rows of labelled bars on one scale: `rows_scene` draws them, and `parts_scene` is its short form.

A row has a name on the left, parts side by side, each as long as its size, and a text at the end. The unit is the
caller's: bytes, seconds, shares. `parts_scene` takes a dict of parts and one of end texts; most chapters use it. A
scene that needs more (an offset, a limit, a measured dot, an axis of bytes) makes BarRows and calls `rows_scene`. A
picture with other things between its rows takes `BarStyle.rows` or `BarStyle.parts`, and places them itself.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.axis import bytes_tick, column_lines, limit_line, ticks
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

EXCESS = {"stroke": "ink", "stroke_width": 2.5}  # the frame around the part of a bar that lies beyond the limit


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
    """A row of parts, with its name on the left and the text `end` on the right. All numbers are in the parts' unit.

    The parts begin at `start`. A dashed line stands at `limit`, how much a device can hold, and a dot at `counted`, the
    measured sum of the parts. `interval` is drawn as a line with a stroke at each end. `over` says below the text `end`
    by how much the parts exceed the picture's limit; what lies beyond the limit is then framed. Where one of several
    rows is the chosen one, `is_chosen` tells whether it is this row: only its texts are bold. None means that no row is
    chosen; then the text `end` of every row is bold. `frame` is the tooltip of a frame around the row, and `broken` the
    one of two strokes that say that the bar goes on, not to scale; "" is for neither.
    """

    name: str
    parts: Sequence[Part]
    end: str
    start: float = 0.0
    limit: float | None = None
    counted: float | None = None
    interval: tuple[float, float] | None = None
    over: str = ""
    is_chosen: bool | None = None
    frame: str = ""
    broken: str = ""

    @property
    def total(self) -> float:
        """Where the last part ends."""
        return self.start + sum(part.size for part in self.parts)

    @property
    def length(self) -> float:
        """Up to where the row reaches."""
        return max(self.total, self.limit or 0, self.interval[1] if self.interval else 0)


@dataclass(frozen=True, kw_only=True)
class BarStyle:
    """How rows of parts look; all sizes are in pixels.

    `height` is that of a bar, and `pitch` the distance from one row to the next. `font` is the size of names and of
    end texts, which begin `end_gap` behind the bar, and `part_font` that of the texts on parts, beside which
    `text_margin` must stay free. A part is `gap` narrower than its size, but no narrower than `thinnest`; one whose
    size is below `hidden_below` is left out. With `has_background`, a pale bar of full length lies behind each row, and
    the end texts stand behind it. In `rows_scene`, `right` pixels stay free behind the longest bar, by default as many
    as the widest end text needs, and `above` pixels between the heading and the rows.
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
    has_background: bool = False

    def box(self, part: Part, x: float, y: float, width: float) -> Iterator[Rect]:
        """The box of a part, with its texture where that can be seen."""
        if width >= self.hidden_below:
            texture = PAINTS[part.kind].texture if part.kind in PAINTS and width > 4 else ""
            style = {"fill": part.kind, "texture": texture, "radius": self.radius, "tooltip": part.tooltip or part.text}
            yield Rect(x=x, y=y, width=max(self.thinnest, width - self.gap), height=self.height, **style)

    def parts(
        self, parts: Iterable[Part], x: float, y: float, scale: float, line: float | None = None
    ) -> Iterator[Rect | Label]:
        """The parts from `x` on, with `scale` pixels per unit of their sizes, each with the longer text that fits.

        `line` is the x of a vertical line that must not cross a text.
        """
        for part in parts:
            width = part.size * scale
            yield from self.box(part, x, y, width)
            left, right = x, x + width
            if line is not None and left < line < right:  # the text stands on the longer side of the line
                left, right = (left, line) if line - left > right - line else (line, right)
            available = right - left - self.text_margin
            fitting = [text for text in (part.text, part.short) if text_width(text, self.part_font) < available]
            if any(fitting):
                yield centred_label((left + right) / 2, y + self.height / 2, fitting[0], self.part_font, on=part.kind)
            x += width

    def rows(
        self, rows: Sequence[BarRow], left: float, top: float, scale: float, limit: float | None = None
    ) -> Iterator[SceneItem]:
        """The rows from `top` on, each with its name left of the bars' left edge `left`.

        `limit`, in the parts' unit, is where the caller draws a line through all rows.
        """
        longest = max(row.length for row in rows)
        for number, row in enumerate(rows):
            y = top + number * self.pitch
            middle, is_chosen = y + self.height / 2, row.is_chosen is True  # False also where no row is chosen (None)
            if row.frame:
                box = {"x": 8, "y": y - 4, "width": WIDTH - 16, "height": self.height + 8, "radius": 4}
                yield Rect(**box, stroke="ink", stroke_width=2, tooltip=row.frame)
            yield Label(x=left - 12, y=middle, text=row.name, size=self.font, anchor="end", bold=is_chosen)
            if self.has_background:
                yield Rect(x=left, y=y, width=longest * scale, height=self.height, fill="panel")
            line = limit if row.limit is None else row.limit
            line_x = None if line is None else left + line * scale
            yield from self.parts(row.parts, left + row.start * scale, y, scale, line_x)
            yield from self._marks(row, left, y, scale, line_x)
            reached = longest if self.has_background else max(row.length, row.counted or 0)
            yield from self._end(row, left + reached * scale + (12 if row.broken else 0), middle, line_x)

    def _marks(self, row: BarRow, left: float, y: float, scale: float, line: float | None) -> Iterator[SceneItem]:
        """What stands on a bar: its own limit, the frame of what is over, strokes, a dot, an interval."""
        middle, bar_end = y + self.height / 2, left + row.total * scale
        if row.limit is not None:
            yield Line(x1=line, y1=y - 4, x2=line, y2=y + self.height + 4, colour="ink", width=2, dashed=True)
        if row.over:
            box = {"x": line, "y": y - 2, "width": bar_end - line, "height": self.height + 4, "radius": 2}
            yield Rect(**box, tooltip=f"{row.name}: {row.over}", **EXCESS)
        for x in (bar_end + 2, bar_end + 7) if row.broken else ():
            yield Line(x1=x - 2, y1=y + self.height, x2=x + 2, y2=y, colour="ink", width=1.6, tooltip=row.broken)
        if row.counted is not None:
            yield dot(left + row.counted * scale, middle, 12, fill="ink")
        if row.interval:
            start, end = (left + value * scale for value in row.interval)
            yield Line(x1=start, y1=middle, x2=end, y2=middle, colour="ink", width=2)
            for x in (start, end):
                yield Line(x1=x, y1=middle - 5, x2=x, y2=middle + 5, colour="ink", width=2)

    def _end(self, row: BarRow, bar_end: float, middle: float, line: float | None) -> Iterator[Label]:
        """The text at the end of the row, moved beyond a line that would cross it."""
        x = bar_end + self.end_gap
        if line is not None and bar_end <= line <= x + text_width(row.end, self.font, bold=True):
            x = line + self.end_gap
        y, is_bold = middle - (7 if row.over else 0), row.is_chosen is not False
        yield Label(x=x, y=y, text=row.end, size=self.font, bold=is_bold)
        if row.over:
            yield Label(x=x, y=middle + 8, text=row.over, size=11)


def memory_parts(
    memory: MemoryBreakdown,
    kinds: Iterable[str],
    tooltip: Callable[[str, int], str],
    text: Callable[[int], str] = lambda size: "",
) -> list[Part]:
    """A part for the bytes of each kind of memory; `tooltip` gets the kind and its bytes, and `text` the bytes."""
    sizes = {kind: getattr(memory, kind) for kind in kinds}
    return [Part(text=text(size), kind=kind, size=size, tooltip=tooltip(kind, size)) for kind, size in sizes.items()]


BARS = BarStyle(height=28, pitch=38, end_gap=10, text_margin=6, thinnest=0)
# Messages, each of which can be seen however few its bytes are.
MESSAGES = BarStyle(height=28, pitch=38, font=13, part_font=12, gap=3, thinnest=1, hidden_below=0, radius=3, right=84)


def rows_scene(
    rows: Sequence[BarRow],
    style: BarStyle = BARS,
    *,
    title: str,
    summary: str,
    legend: Legend = (),
    limit: tuple[float, str] | None = None,
    has_bytes_axis: bool = False,
    columns: Iterable[tuple[float, str]] = (),
    axis_title: str = "",
    ends_title: str = "",
) -> Scene:
    """Rows of parts on one scale, as a Scene.

    limit: how much every row can hold, in the parts' unit, and the text above the line there. has_bytes_axis: the unit
    is bytes, and an axis stands below the rows. columns: another axis, as values that have a grid line and their texts,
    with axis_title below. ends_title: what stands below the end texts. Raises ValueError without a row.
    """
    if not rows:
        raise ValueError(f"the picture {title!r} got no row to draw; give at least one")
    longest = max([row.length for row in rows] + [limit[0] if limit else 0]) or 1.0  # for no size any scale will do
    items, top = heading(title, legend)
    top += style.above + (18 if limit else 0)
    left = 28 + max(text_width(row.name, style.font, bold=row.is_chosen is True) for row in rows)
    right = style.right or 24 + max(text_width(row.end, style.font, bold=True) for row in rows)
    scale, bottom = (WIDTH - left - right) / longest, top + len(rows) * style.pitch
    if has_bytes_axis:
        columns = [(num_bytes, bytes_tick(num_bytes)) for num_bytes in ticks(longest, 5)]
    columns = [(left + value * scale, text) for value, text in columns]
    items += column_lines(columns, top - 6, bottom - 2)
    items += style.rows(rows, left, top, scale, limit[0] if limit else None)
    if limit:
        items += limit_line(limit[1], left + limit[0] * scale, top - 6, bottom - 2)
    if ends_title:
        items.append(Label(x=WIDTH - 14, y=bottom + 8, text=ends_title, size=11, anchor="end", colour="muted"))
    if axis_title:
        items.append(centred_label((left + WIDTH - right) / 2, bottom + 26, axis_title, colour="muted"))
    height = bottom + (22 if columns else 0) + (18 if axis_title else 0)
    return Scene(height=height, title=title, summary=summary, items=items)


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
    as a dashed line. Raises ValueError without a row.
    """
    limits = limits or {}
    bars = [BarRow(name=name, parts=parts, end=ends[name], limit=limits.get(name)) for name, parts in rows.items()]
    entries = [(word, kind_style(kind)) for kind, word in (legend or {}).items()]
    return rows_scene(bars, title=title, legend=entries, summary=" ".join(f"{name}: {ends[name]}." for name in rows))
