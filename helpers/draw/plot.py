"""Provides `curves_scene`, a plot of up to four curves on linear or logarithmic axes, with marks, dots and gaps.

Chapters 01, 03, 04 and 06 to 12 and two labs use it. An axis is an Axis with its ticks, or a name alone for an axis
that begins at 0 and has round ticks.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from helpers.draw.axis import column_lines, round_step, row_lines, ticks
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    dot,
    polyline,
    text_width,
    title_label,
)
from helpers.learner.words import book

words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
Points = Sequence[tuple[float, float]]
COLOURS = ("parameters", "gradients", "sign", "optimizer")  # one per curve; the curve's name also stands at its end
_TOP = 52.0  # pixels above the plot
_LEFT, _HEIGHT, _BELOW = 64.0, 250.0, 46.0  # pixels: left of the plot, its height, and the room below it
_TICK = "{:,.6g}"  # how numbers at the axes are written
_ABOVE_MARK, _BELOW_MARK = -33, 10  # pixels from a marked point to the top of its words, above or below the point


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a plot. `name` includes the unit; the axis goes from the first of `ticks` to the last, or to `end`."""

    name: str
    ticks: Sequence[float]
    log: bool = False
    end: float | None = None

    def place(self, value: float) -> float:
        """The position of a value: 0 at the beginning of the axis, 1 at its end."""
        scaled = math.log if self.log else float
        first, last = scaled(self.ticks[0]), scaled(self.ticks[-1] if self.end is None else self.end)
        return (scaled(value) - first) / (last - first)

    @classmethod
    def around(cls, name: str, values: Iterable[float]) -> Axis:
        """An axis with round ticks, the first at or below the least value and the last at or above the greatest."""
        values = [*values]
        step = round_step(max(values) - min(values), 5)
        first, last = math.floor(min(values) / step + 1e-9), math.ceil(max(values) / step - 1e-9)  # 1e-9: rounding
        return cls(name=name, ticks=[number * step for number in range(first, last + 1)])


class Mark(NamedTuple):
    """A point to ring, with words beside it.

    `lower` is how many pixels the top of the words lies below the point, negative for above; None is the default of the
    picture. `on_left` puts the words on the left of the point even where there is room on the right.
    """

    x: float
    y: float
    words: str
    lower: float | None = None
    on_left: bool = False


@dataclass(frozen=True, kw_only=True)
class _Plot:
    """Where values of both axes lie in the picture; `right` is the right edge of the plot in pixels."""

    x: Axis
    y: Axis
    right: float

    @property
    def bottom(self) -> float:
        """The y of the horizontal axis."""
        return _TOP + _HEIGHT

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point of the plot, given as values on both axes, lies in the picture."""
        x, y = self.x.place(point[0]), self.y.place(point[1])
        return _LEFT + x * (self.right - _LEFT), _TOP + (1 - y) * _HEIGHT

    def curve_ends(self, curves: Mapping[str, Points]) -> Iterator[tuple[str, float]]:
        """Each name and the y where it stands beside its curve's end, at least 16 below the name above it."""
        lowest = -math.inf  # the y of the name above
        for y, name in sorted((self.at(points[-1])[1], name) for name, points in curves.items()):
            lowest = max(y, lowest + 16)
            yield name, lowest


def curves_scene(
    curves: Mapping[str, Points],
    *,
    x: Axis | str,
    y: Axis | str,
    title: str,
    marks: Sequence[Mark | tuple[float, float, str]] = (),
    dots: bool | Collection[str] | Mapping[str, Points] = False,
    marks_below: bool = False,
    paints: Mapping[str, str] | None = None,
    dashed: Collection[str] = (),
    gaps: Sequence[tuple[float, float, str]] = (),
) -> Scene:
    """A Scene of curves, each given as a name and its points.

    x and y: an Axis, or the name of one that begins at 0 and goes as far as the curves and dots do.
    marks: points to ring, each (x, y, words). marks_below puts the words below the point, where a rising curve
    leaves room. dots: True for a dot on every point, the names of the curves that get dots, or a dict from the name of
    a curve to points of its own, such as measured ones, which get its colour.
    paints: maps the beginning of a curve's name, such as "dp" of "dp 4", to the curve's colour in several pictures.
    dashed: names of dashed curves. gaps: (from, to, words) on the x axis, hatched. Raises ValueError for no curve, for
    too many, or for dots of a name that has no curve.
    """
    measured, dotted = (dots, ()) if isinstance(dots, Mapping) else ({}, curves if dots is True else dots or ())
    _check(curves, measured)
    points = [point for of_name in (*curves.values(), *measured.values()) for point in of_name]
    right = WIDTH - 40 - max(text_width(name, 13, bold=True) for name in curves)
    x, y = _axis(x, max(x for x, _ in points)), _axis(y, 1.06 * max(y for _, y in points))  # 6 % free at the top
    plot = _Plot(x=x, y=y, right=right)
    items: list[SceneItem] = [title_label(title), *_grid(plot)]
    items += (item for gap in gaps for item in _gap(*gap, plot))
    colours = _colours(curves, paints or {})
    for name in curves:
        items += _curve(curves[name], plot, colours[name], dashed=name in dashed, has_dots=name in dotted)
        items += _measured_dots(name, measured.get(name, ()), plot, colours[name])
    items += _names_at_ends(curves, plot, colours)
    for mark in marks:
        items += _mark(Mark(*mark), plot, default_lower=_BELOW_MARK if marks_below else _ABOVE_MARK)
    summary = _summary(curves, [text for _, _, text, *_ in (*marks, *gaps)])
    return Scene(height=plot.bottom + _BELOW, title=title, summary=summary, items=items)


def _check(curves: Mapping[str, Points], measured: Mapping[str, Points]) -> None:
    """Raises ValueError for what `curves_scene` cannot draw."""
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"curves_scene got {len(curves)} curves; it draws 1 to {len(COLOURS)}")
    unknown = [name for name in measured if name not in curves]
    if unknown:
        got = f"dots of {', '.join(unknown)}, but curves of {', '.join(curves)}"
        raise ValueError(f"curves_scene got {got}: use the same names")


def _curve(points: Points, plot: _Plot, colour: str, *, dashed: bool, has_dots: bool) -> Iterator[SceneItem]:
    """A curve, with a dot on every point if it is to have dots."""
    placed = [plot.at(point) for point in points]
    yield from polyline(placed, colour=colour, width=3, dashed=dashed)
    if has_dots:
        yield from (dot(*point, 10, fill="ink") for point in placed)


def _measured_dots(name: str, points: Points, plot: _Plot, colour: str) -> Iterator[Rect]:
    """A dot with an outline at each measured point of a curve."""
    for point in points:
        yield dot(*plot.at(point), 10, fill=colour, stroke="ink", tooltip=f"{name}: {point[1]:.3g}")


def _axis(axis: Axis | str, largest: float) -> Axis:
    """The axis itself; or, for a name, an axis from 0 to the largest value."""
    return axis if isinstance(axis, Axis) else Axis(name=axis, ticks=ticks(largest, 5), end=largest)


def _names_at_ends(curves: Mapping[str, Points], plot: _Plot, colours: Mapping[str, str]) -> Iterator[SceneItem]:
    """The name of each curve to the right of its last point, behind a square in its colour."""
    for name, end_y in plot.curve_ends(curves):
        yield Rect(x=plot.right + 10, y=end_y - 5, width=10, height=10, radius=2, fill=colours[name])
        yield Label(x=plot.right + 26, y=end_y, text=name, size=13, bold=True)


def _summary(curves: Mapping[str, Points], texts: list[str]) -> str:
    """Where each curve begins and ends, and the texts of marks and gaps."""
    sentences = [
        words("curves.row", name=name, first=_point_text(*points[0]), last=_point_text(*points[-1]))
        for name, points in curves.items()
    ]
    return " ".join([*sentences, *(words("curves.mark", text=text) for text in texts)])


def _colours(curves: Mapping[str, Points], paints: Mapping[str, str]) -> dict[str, str]:
    """The colour of each curve: that of `paints` for the beginning of its name, or else the next one of COLOURS."""
    defaults = dict(zip(curves, COLOURS, strict=False))  # there are at least as many colours as curves
    return {
        name: next((paints[start] for start in paints if name.startswith(start)), default)
        for name, default in defaults.items()
    }


def _point_text(x: float, y: float) -> str:
    """A point as text: its y, and its x in parentheses."""
    return f"{_TICK.format(y)} ({_TICK.format(x)})"


def _grid(plot: _Plot) -> Iterator[Label | Line]:
    """Lines and numbers at the ticks of both axes, and the names of the axes."""
    columns = [(plot.at((tick, plot.y.ticks[0]))[0], _TICK.format(tick)) for tick in plot.x.ticks]
    rows = [(plot.at((plot.x.ticks[0], tick))[1], _TICK.format(tick)) for tick in plot.y.ticks]
    yield from column_lines(columns, _TOP, plot.bottom + 4, size=12)
    yield from row_lines(rows, _LEFT - 4, plot.right)
    yield Label(x=MARGIN, y=_TOP - 14, text=plot.y.name, size=12, colour="muted")
    yield centred_label((_LEFT + plot.right) / 2, plot.bottom + 34, plot.x.name, colour="muted")


def _gap(start: float, end: float, text: str, plot: _Plot) -> Iterator[Rect | Label]:
    """A hatched rectangle over a stretch of the horizontal axis, with its words above."""
    left, right = (plot.at((value, plot.y.ticks[0]))[0] for value in (start, end))
    style = {"fill": "waiting", "texture": "hatch", "opacity": 0.6, "tooltip": text}
    yield Rect(x=left, y=_TOP, width=right - left, height=_HEIGHT, **style)
    # The curves' names stand right of the plot, so the words of a gap must end at its edge.
    middle = min((left + right) / 2, plot.right - text_width(text, 12, bold=True) / 2)
    yield centred_label(middle, _TOP - 12, text, bold=True)


def _mark(mark: Mark, plot: _Plot, *, default_lower: float) -> Iterator[Rect | Label]:
    """A ring around the point, and the words on the side where there is room."""
    x, y = plot.at((mark.x, mark.y))
    words_width = text_width(mark.words, 12, bold=True)
    has_room = x + 24 + words_width < plot.right
    left = x + 14 if has_room and not mark.on_left else x - 22 - words_width
    top = y + (default_lower if mark.lower is None else mark.lower)
    yield dot(x, y, 14, stroke="ink", stroke_width=2.5)
    box = {"x": left - 4, "y": top, "width": words_width + 12, "height": 22, "radius": 4}
    yield Rect(**box, fill="surface")
    yield Rect(**box, stroke="rule")
    yield Label(x=left + 2, y=top + 11, text=mark.words, size=12, bold=True)
