"""Provides plots of curves as Scenes: curves_scene for any two axes, lines_scene for a simple plot that begins at 0.

`curves_scene` has linear or logarithmic axes, marks with words, gaps and bands; chapters 03 and 07 to 12 use it, and so
do `scaling.py` and `failures.py`. `lines_scene` chooses its ticks itself; chapters 01 and 04 and two labs use it.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from helpers.draw.axis import column_lines, row_lines, ticks
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

# The summary of curves_scene in the learner's language: learner/words/pictures.yaml. lines_scene is in English.
words = book("pictures")
Points = Sequence[tuple[float, float]]
COLOURS = ("parameters", "gradients", "sign", "optimizer")  # one per curve; the curve's name also stands at its end
_TOP = 52.0  # pixels above the plot
# Pixels of the plot of curves_scene: its left edge, its height, and the room below it.
_LEFT, _HEIGHT, _BELOW = 64.0, 250.0, 46.0
_CURVE_WIDTH, _BAND_WIDTH = 3, 13  # pixels
_TICK = "{:,.6g}"  # how numbers at the axes are written
_ABOVE_MARK, _BELOW_MARK = -33, 10  # pixels from a marked point to the top of its words, above or below the point
# Pixels of the plot of lines_scene: its left edge, its height, and a dot.
_LINES_LEFT, _LINES_HEIGHT, _LINES_DOT = 70.0, 210.0, 9.0
_LINES_COLOURS = ("parameters", "communication", "gradients", "optimizer")


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
    """Where values of both axes lie in the picture; `left`, `right` and `height` are the plot's in pixels."""

    x: Axis
    y: Axis
    left: float
    right: float
    height: float

    @property
    def bottom(self) -> float:
        """The y of the horizontal axis."""
        return _TOP + self.height

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point of the plot, given as values on both axes, lies in the picture."""
        x, y = self.x.place(point[0]), self.y.place(point[1])
        return self.left + x * (self.right - self.left), _TOP + (1 - y) * self.height

    def columns(self, form: str) -> list[tuple[float, str]]:
        """The x in pixels and the text of each tick of the horizontal axis; `form` is how a number is written."""
        return [(self.at((tick, self.y.ticks[0]))[0], form.format(tick)) for tick in self.x.ticks]

    def rows(self, form: str) -> list[tuple[float, str]]:
        """The y in pixels and the text of each tick of the vertical axis."""
        return [(self.at((self.x.ticks[0], tick))[1], form.format(tick)) for tick in self.y.ticks]

    def curve_ends(self, curves: Mapping[str, Points], pitch: float) -> Iterator[tuple[str, float]]:
        """Each name and the y where it stands beside its curve's end, at least `pitch` below the name above it."""
        lowest = -math.inf  # the y of the name above
        for y, name in sorted((self.at(points[-1])[1], name) for name, points in curves.items()):
            lowest = max(y, lowest + pitch)
            yield name, lowest


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
) -> Scene:
    """A Scene of curves, each given as a name and its points.

    marks: points to ring, each (x, y, words). marks_below puts the words below the point, where a rising curve
    leaves room. dots: True for a dot on every point, or the names of the curves that get dots.
    paints: maps the beginning of a curve's name, such as "dp" of "dp 4", to the curve's colour in several pictures.
    dashed: names of dashed curves. bands: names of curves that another curve covers, drawn wide and without dots, so
    that both are seen. gaps: (from, to, words) on the x axis, hatched. Raises ValueError for no curve or too many.
    """
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"curves_scene got {len(curves)} curves; it draws 1 to {len(COLOURS)}")
    right = WIDTH - 40 - max(text_width(name, 13, bold=True) for name in curves)
    plot = _Plot(x=x, y=y, left=_LEFT, right=right, height=_HEIGHT)
    items: list[SceneItem] = [title_label(title), *_grid(plot)]
    items += (item for gap in gaps for item in _gap(*gap, plot))
    colours = _colours(curves, paints or {})
    for name, points in curves.items():
        placed, width = [plot.at(point) for point in points], _BAND_WIDTH if name in bands else _CURVE_WIDTH
        items += polyline(placed, colour=colours[name], width=width, dashed=name in dashed)
        has_dots = dots if isinstance(dots, bool) else name in dots
        if has_dots and name not in bands:
            items += (dot(*point, 10, fill="ink") for point in placed)
    items += _names_at_ends(curves, plot, right, colours)
    for mark in marks:
        items += _mark(Mark(*mark), plot, default_lower=_BELOW_MARK if marks_below else _ABOVE_MARK)
    summary = _summary(curves, [text for _, _, text, *_ in (*marks, *gaps)])
    return Scene(height=plot.bottom + _BELOW, title=title, summary=summary, items=items)


def _names_at_ends(
    curves: Mapping[str, Points], plot: _Plot, right: float, colours: Mapping[str, str]
) -> Iterator[SceneItem]:
    """The name of each curve to the right of its last point, behind a square in its colour."""
    for name, end_y in plot.curve_ends(curves, 16):
        yield Rect(x=right + 10, y=end_y - 5, width=10, height=10, radius=2, fill=colours[name])
        yield Label(x=right + 26, y=end_y, text=name, size=13, bold=True)


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
    yield from column_lines(plot.columns(_TICK), _TOP, plot.bottom + 4, size=12)
    yield from row_lines(plot.rows(_TICK), _LEFT - 4, plot.right)
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


# -- lines_scene -----------------------------------------------------------------------------------------------------
def lines_scene(
    curves: Mapping[str, Points],
    dots: Mapping[str, Points] | None = None,
    *,
    title: str,
    x_name: str,
    y_name: str,
) -> Scene:
    """A Scene with a line for each name in `curves`, named at its right end; every second line is dashed.

    `dots` maps the same names to points that were measured or emulated. Both axes begin at 0. Raises ValueError for a
    curve of fewer than two points, for more than four curves, or for dots of a name that has no curve.
    """
    dots = dots or {}
    _check_lines(curves, dots)
    points = [point for of_name in (*curves.values(), *dots.values()) for point in of_name]
    # The vertical axis ends 6 % above the highest point.
    largest_x, top_y = max(x for x, _ in points), 1.06 * (max(y for _, y in points) or 1.0)
    x, y = Axis(name=x_name, ticks=ticks(largest_x), end=largest_x), Axis(name=y_name, ticks=ticks(top_y, 5), end=top_y)
    right = WIDTH - 24 - max(text_width(name, 12, bold=True) for name in curves)
    plot = _Plot(x=x, y=y, left=_LINES_LEFT, right=right, height=_LINES_HEIGHT)
    items: list[SceneItem] = [title_label(title), Label(x=MARGIN, y=40, text=y_name, colour="muted")]
    items += row_lines(plot.rows("{:g}"), _LINES_LEFT, right, text_gap=8)
    items += (centred_label(x, plot.bottom + 16, text, colour="muted") for x, text in plot.columns("{:g}"))
    items.append(Label(x=_LINES_LEFT, y=plot.bottom + 38, text=x_name, colour="muted"))
    for number, (name, of_name) in enumerate(curves.items()):
        colour = _LINES_COLOURS[number]
        items += polyline(map(plot.at, of_name), colour=colour, width=2.5, dashed=number % 2 == 1)
        for point in dots.get(name, ()):
            middle, box = plot.at(point), {"width": _LINES_DOT, "height": _LINES_DOT, "radius": _LINES_DOT / 2}
            box |= {"fill": colour, "stroke": "ink", "tooltip": f"{name}: {point[1]:.3g}"}
            items.append(Rect(x=middle[0] - _LINES_DOT / 2, y=middle[1] - _LINES_DOT / 2, **box))
    items += (Label(x=right + 10, y=end_y, text=name, bold=True) for name, end_y in plot.curve_ends(curves, 17))
    sentences = [f"{name} goes from {of_name[0][1]:g} to {of_name[-1][1]:g}." for name, of_name in curves.items()]
    summary = " ".join([*sentences, *(f"Dots on {name}." for name in dots)])
    return Scene(height=plot.bottom + 54, title=title, summary=summary, items=items)


def _check_lines(curves: Mapping[str, Points], dots: Mapping[str, Points]) -> None:
    """Raises ValueError for what `lines_scene` cannot draw."""
    most = len(_LINES_COLOURS)
    if not 1 <= len(curves) <= most or any(len(points) < 2 for points in curves.values()):
        raise ValueError(f"lines_scene draws 1 to {most} curves of at least two points each, not {curves!r}")
    unknown = [name for name in dots if name not in curves]
    if unknown:
        raise ValueError(
            f"lines_scene got dots of {', '.join(unknown)}, but curves of {', '.join(curves)}: use the same"
        )
