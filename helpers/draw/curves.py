"""Provides plots of curves as Scenes: curves_scene for any two axes, lines_scene for a simple plot that begins at 0.

`curves_scene` has linear or logarithmic axes, marks with words, gaps and bands; chapters 03 and 07 to 12 use it, and so
do `scaling.py` and `failures.py`. `lines_scene` chooses its ticks itself; chapters 01 and 04 and two labs use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from helpers.draw.axis import ticks
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, dot, text_width, title_label
from helpers.learner.words import book

words = book("pictures")
Points = Sequence[tuple[float, float]]
COLOURS = ("parameters", "gradients", "sign", "optimizer")  # one per curve; the curve's name also stands at its end
# Pixels of the plot of curves_scene: its left edge, its top edge, its height, and the room below it.
_LEFT, _TOP, _HEIGHT, _BELOW = 64.0, 52.0, 250.0, 46.0
_NAME_PITCH = 16.0  # pixels between the names at the curves' ends
_CURVE_WIDTH, _BAND_WIDTH = 3, 13  # pixels
_ABOVE_MARK, _BELOW_MARK = -33, 10  # pixels from a marked point to the top of its words, above or below the point
# The same for lines_scene.
_LINES_LEFT, _LINES_TOP, _LINES_HEIGHT, _LINES_DOT = 70.0, 52.0, 210.0, 9.0
_LINES_NAME_PITCH = 17.0
_LINES_COLOURS = ("parameters", "communication", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of `curves_scene`. `name` includes the unit; the first and the last of `ticks` are the axis's ends."""

    name: str
    ticks: Sequence[float]
    log: bool = False
    form: str = "{:,.6g}"

    def place(self, value: float) -> float:
        """The position of a value: 0 at the first tick, 1 at the last."""
        scaled = math.log if self.log else float
        first, last = scaled(self.ticks[0]), scaled(self.ticks[-1])
        return (scaled(value) - first) / (last - first)


class Mark(NamedTuple):
    """A point to style at, with words beside it.

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
    """Where values of both axes lie in the picture. `right` is the right edge of the plot in pixels."""

    x: Axis
    y: Axis
    right: float

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + self.x.place(point[0]) * (self.right - _LEFT), _TOP + (1 - self.y.place(point[1])) * _HEIGHT


def curves_scene(
    curves: Mapping[str, Points],
    *,
    x: Axis,
    y: Axis,
    title: str,
    marks: Sequence[Mark | tuple[float, float, str]] = (),
    dots: bool | Collection[str] = False,
    marks_below: bool = False,
    paints: Mapping[str, str] | None = None,
    dashed: Collection[str] = (),
    bands: Collection[str] = (),
    gaps: Sequence[tuple[float, float, str]] = (),
    width: float = WIDTH,
) -> Scene:
    """A Scene of curves, each given as a name and its points.

    marks: points to style at, each (x, y, words). marks_below puts the words below the point, where a rising curve
    leaves room. dots: True for a dot on every point, or the names of the curves that get dots.
    paints: maps the beginning of a curve's name to a colour, so that a stage has one colour in several pictures.
    dashed: names of dashed curves. bands: names of curves that another curve covers; they are drawn wide and without
    dots, so that both are seen. gaps: (from, to, words) on the x axis, hatched, where nothing is done.
    Raises ValueError without a curve, or for more curves than there are colours.
    """
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"curves_scene got {len(curves)} curves; it draws 1 to {len(COLOURS)}")
    right = width - 40 - max(text_width(name, 13, bold=True) for name in curves)
    plot = _Plot(x=x, y=y, right=right)
    items: list[Rect | Label | Line] = [title_label(title), *_grid(plot)]
    for gap in gaps:
        items += _gap(*gap, plot)
    colours = _colours(curves, paints or {})
    for name, points in curves.items():
        has_dots = dots if isinstance(dots, bool) else name in dots
        items += _curve(points, colours[name], plot, has_dots, dashed=name in dashed, is_band=name in bands)
    items += _names(curves, colours, plot)
    for mark in marks:
        items += _mark(Mark(*mark), plot, default_lower=_BELOW_MARK if marks_below else _ABOVE_MARK)
    height, summary = _TOP + _HEIGHT + _BELOW, _summary(curves, plot, [text for _, _, text, *_ in (*marks, *gaps)])
    return Scene(width=width, height=height, title=title, summary=summary, items=tuple(items))


def _summary(curves: Mapping[str, Points], plot: _Plot, texts: list[str]) -> str:
    """Where each curve begins and ends, and the texts of marks and gaps."""
    sentences = [
        words("curves.row", name=name, first=_point_text(points[0], plot), last=_point_text(points[-1], plot))
        for name, points in curves.items()
    ]
    return " ".join([*sentences, *(words("curves.mark", text=text) for text in texts)])


def _colours(curves: Mapping[str, Points], paints: Mapping[str, str]) -> dict[str, str]:
    defaults = dict(zip(curves, COLOURS, strict=False))  # there are at least as many colours as curves
    return {
        name: next((paints[start] for start in paints if name.startswith(start)), default)
        for name, default in defaults.items()
    }


def _point_text(point: tuple[float, float], plot: _Plot) -> str:
    return f"{plot.y.form.format(point[1])} ({plot.x.form.format(point[0])})"


def _grid(plot: _Plot) -> Iterator[Label | Line]:
    bottom = _TOP + _HEIGHT
    for tick in plot.x.ticks:
        x = _LEFT + plot.x.place(tick) * (plot.right - _LEFT)
        yield Line(x1=x, y1=_TOP, x2=x, y2=bottom + 4)
        yield Label(x=x, y=bottom + 14, text=plot.x.form.format(tick), size=12, anchor="middle", colour="muted")
    for tick in plot.y.ticks:
        y = _TOP + (1 - plot.y.place(tick)) * _HEIGHT
        yield Line(x1=_LEFT - 4, y1=y, x2=plot.right, y2=y)
        yield Label(x=_LEFT - 10, y=y, text=plot.y.form.format(tick), size=12, anchor="end", colour="muted")
    yield Label(x=MARGIN, y=_TOP - 14, text=plot.y.name, size=12, colour="muted")
    middle = (_LEFT + plot.right) / 2
    yield Label(x=middle, y=bottom + 34, text=plot.x.name, size=12, anchor="middle", colour="muted")


def _gap(start: float, end: float, text: str, plot: _Plot) -> Iterator[Rect | Label]:
    left, right = (plot.at((value, plot.y.ticks[0]))[0] for value in (start, end))
    style = {"fill": "waiting", "texture": "hatch", "opacity": 0.6, "tooltip": text}
    yield Rect(x=left, y=_TOP, width=right - left, height=_HEIGHT, **style)
    # The curves' names stand right of the plot, so the words of a gap must end at its edge.
    middle = min((left + right) / 2, plot.right - text_width(text, 12, bold=True) / 2)
    yield Label(x=middle, y=_TOP - 12, text=text, size=12, anchor="middle", bold=True)


def _curve(
    points: Points, colour: str, plot: _Plot, has_dots: bool, *, dashed: bool, is_band: bool
) -> Iterator[Line | Rect]:
    placed = [plot.at(point) for point in points]
    for (x1, y1), (x2, y2) in pairwise(placed):
        width = _BAND_WIDTH if is_band else _CURVE_WIDTH
        yield Line(x1=x1, y1=y1, x2=x2, y2=y2, colour=colour, width=width, dashed=dashed)
    if has_dots and not is_band:
        yield from (dot(x, y, 10, fill="ink") for x, y in placed)


def _names(curves: Mapping[str, Points], colours: Mapping[str, str], plot: _Plot) -> Iterator[Rect | Label]:
    """The names at the curves' ends, pushed apart where these are close."""
    ends = sorted((plot.at(points[-1])[1], name) for name, points in curves.items())
    lowest = -math.inf
    for y, name in ends:
        lowest = max(y, lowest + _NAME_PITCH)
        yield Rect(x=plot.right + 10, y=lowest - 5, width=10, height=10, radius=2, fill=colours[name])
        yield Label(x=plot.right + 26, y=lowest, text=name, size=13, bold=True)


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


# -- lines_scene -----------------------------------------------------------------------------------------------------
def lines_scene(
    curves: Mapping[str, Points],
    dots: Mapping[str, Points] | None = None,
    *,
    title: str,
    x_name: str,
    y_name: str,
    x_text: Callable[[float], str] = "{:g}".format,
    y_text: Callable[[float], str] = "{:g}".format,
    width: float = WIDTH,
) -> Scene:
    """A Scene with a line for each name in `curves`, named at its right end; every second line is dashed.

    `dots` maps the same names to points that were measured or emulated. Both axes begin at 0. Raises ValueError for a
    curve of fewer than two points, for more than four curves, or for dots of a name that has no curve.
    """
    dots = dots or {}
    _check_lines(curves, dots)
    names_width = 24 + max(text_width(name, 12, bold=True) for name in curves)
    points = [point for group in (curves, dots) for of_name in group.values() for point in of_name]
    largest_x, largest_y = max(x for x, _ in points), max(y for _, y in points) or 1.0
    plot = _LinesPlot(largest_x=largest_x, top_y=largest_y * 1.06, width=width - _LINES_LEFT - names_width)
    items: list[Rect | Label | Line] = [title_label(title)]
    items.append(Label(x=MARGIN, y=40, text=y_name, colour="muted"))
    items += plot.axes(x_text, y_text)
    items.append(Label(x=_LINES_LEFT, y=_LINES_TOP + _LINES_HEIGHT + 38, text=x_name, colour="muted"))
    for number, (name, of_name) in enumerate(curves.items()):
        items += plot.curve(of_name, _LINES_COLOURS[number], dashed=number % 2 == 1)
        items += plot.dots(dots.get(name, ()), _LINES_COLOURS[number], name)
    items += _line_names(curves, plot)
    height, summary = _LINES_TOP + _LINES_HEIGHT + 54, _lines_summary(curves, dots, y_text)
    return Scene(width=width, height=height, title=title, summary=summary, items=items)


@dataclass(frozen=True, kw_only=True)
class _LinesPlot:
    """The plot of lines_scene: the values at its right and upper edges, and its width in pixels."""

    largest_x: float
    top_y: float
    width: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        return _LINES_LEFT + x / self.largest_x * self.width, _LINES_TOP + _LINES_HEIGHT * (1 - y / self.top_y)

    def axes(self, x_text: Callable[[float], str], y_text: Callable[[float], str]) -> Iterator[Label | Line]:
        for value in ticks(self.top_y, 5):
            _, y = self.at(0, value)
            yield Line(x1=_LINES_LEFT, y1=y, x2=_LINES_LEFT + self.width, y2=y)
            yield Label(x=_LINES_LEFT - 8, y=y, text=y_text(value), anchor="end", colour="muted")
        for value in ticks(self.largest_x, 6):
            x, _ = self.at(value, 0)
            y = _LINES_TOP + _LINES_HEIGHT + 16
            yield Label(x=x, y=y, text=x_text(value), anchor="middle", colour="muted")

    def curve(self, points: Points, colour: str, *, dashed: bool) -> Iterator[Line]:
        for (x1, y1), (x2, y2) in pairwise(self.at(*point) for point in points):
            yield Line(x1=x1, y1=y1, x2=x2, y2=y2, colour=colour, width=2.5, dashed=dashed)

    def dots(self, points: Points, colour: str, name: str) -> Iterator[Rect]:
        for point in points:
            x, y = self.at(*point)
            style = {"fill": colour, "stroke": "ink", "radius": _LINES_DOT / 2, "tooltip": f"{name}: {point[1]:.3g}"}
            left, top = x - _LINES_DOT / 2, y - _LINES_DOT / 2
            yield Rect(x=left, y=top, width=_LINES_DOT, height=_LINES_DOT, **style)


def _line_names(curves: Mapping[str, Points], plot: _LinesPlot) -> Iterator[Label]:
    """Each name at its curve's end, from the top down, never on each other."""
    ends = sorted((plot.at(*points[-1])[1], name) for name, points in curves.items())
    free = 0.0
    for y, name in ends:
        free = max(y, free + _LINES_NAME_PITCH)
        yield Label(x=_LINES_LEFT + plot.width + 10, y=free, text=name, bold=True)


def _check_lines(curves: Mapping[str, Points], dots: Mapping[str, Points]) -> None:
    most = len(_LINES_COLOURS)
    if not 1 <= len(curves) <= most or any(len(points) < 2 for points in curves.values()):
        raise ValueError(f"lines_scene draws 1 to {most} curves of at least two points each, not {curves!r}")
    if unknown := [name for name in dots if name not in curves]:
        raise ValueError(
            f"lines_scene got dots of {', '.join(unknown)}, but curves of {', '.join(curves)}: use the same"
        )


def _lines_summary(curves: Mapping[str, Points], dots: Mapping[str, Points], y_text: Callable[[float], str]) -> str:
    sentences = [
        f"{name} goes from {y_text(points[0][1])} to {y_text(points[-1][1])}." for name, points in curves.items()
    ]
    return " ".join([*sentences, *(f"Dots on {name}." for name in dots)])
