"""Curves on two axes, linear or logarithmic, each named at its end; points of interest get a mark and words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, text_width
from helpers.learner.words import book

say = book("pictures")
Points = Sequence[tuple[float, float]]
_LEFT, _TOP, _HIGH, _BELOW = 64.0, 52.0, 250.0, 46.0
_APART = 16.0  # pixels between the names at the curves' ends
COLOURS = ("parameters", "gradients", "sign", "optimizer")  # one a curve; its name stands at its end as well
_LINE, _BAND = 3, 13  # pixels: how thick


@dataclass(frozen=True, kw_only=True)
class Axis:
    """ticks: where lines stand, the first and the last are the axis's ends. name: with its unit."""

    name: str
    ticks: Sequence[float]
    log: bool = False
    form: str = "{:,.6g}"

    def place(self, value: float) -> float:
        """0 at the first tick, 1 at the last."""
        scaled = math.log if self.log else float
        first, last = scaled(self.ticks[0]), scaled(self.ticks[-1])
        return (scaled(value) - first) / (last - first)


class Mark(NamedTuple):
    """A point to look at. lower: pixels from it down to its words, where they would lie on others."""

    x: float
    y: float
    words: str
    lower: float | None = None
    on_left: bool = False


@dataclass(frozen=True, kw_only=True)
class _Frame:
    x: Axis
    y: Axis
    right: float

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + self.x.place(point[0]) * (self.right - _LEFT), _TOP + (1 - self.y.place(point[1])) * _HIGH


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
    """curves: a name to its points. marks: (x, y, words) of points to look at; marks_below: their words stand below
    the point, off a curve that rises. dots: a dot on each point, as counted; or the names of curves that get them.

    paints: what a name begins with, to its colour, so that a stage has one colour in several pictures. dashed: names.
    bands: names of curves that another one lies on: wide and without dots, so that both are seen.
    gaps: (from, to, words) on the x axis, hatched, where nothing is done.
    ValueError without a curve or for more of them than there are colours.
    """
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"curves_scene got {len(curves)} curves; it draws 1 to {len(COLOURS)}")
    right = width - 40 - max(text_width(name, 13, bold=True) for name in curves)
    frame = _Frame(x=x, y=y, right=right)
    items: list[Rect | Label | Line] = [Label(x=14, y=20, text=title, size=14, bold=True), *_grid(frame)]
    for gap in gaps:
        items += _gap(*gap, frame)
    colours = _colours(curves, paints or {})
    for name, points in curves.items():
        dotted = dots if isinstance(dots, bool) else name in dots
        items += _curve(points, colours[name], frame, dotted, dashed=name in dashed, is_band=name in bands)
    items += _names(curves, colours, frame)
    for mark in marks:
        items += _mark(Mark(*mark), frame, lower=10 if marks_below else -33)
    said = [say("curves.row", name=n, first=_said(p[0], frame), last=_said(p[-1], frame)) for n, p in curves.items()]
    summary = " ".join([*said, *(say("curves.mark", text=one[2]) for one in (*marks, *gaps))])
    return Scene(width=width, height=_TOP + _HIGH + _BELOW, title=title, summary=summary, items=tuple(items))


def _colours(curves: Mapping[str, Points], paints: Mapping[str, str]) -> dict[str, str]:
    pairs = zip(curves, COLOURS, strict=False)
    return {name: next((paints[start] for start in paints if name.startswith(start)), own) for name, own in pairs}


def _said(point: tuple[float, float], frame: _Frame) -> str:
    return f"{frame.y.form.format(point[1])} ({frame.x.form.format(point[0])})"


def _grid(frame: _Frame) -> Iterator[Label | Line]:
    bottom = _TOP + _HIGH
    for tick in frame.x.ticks:
        at = _LEFT + frame.x.place(tick) * (frame.right - _LEFT)
        yield Line(x1=at, y1=_TOP, x2=at, y2=bottom + 4)
        yield Label(x=at, y=bottom + 14, text=frame.x.form.format(tick), size=12, anchor="middle", colour="muted")
    for tick in frame.y.ticks:
        at = _TOP + (1 - frame.y.place(tick)) * _HIGH
        yield Line(x1=_LEFT - 4, y1=at, x2=frame.right, y2=at)
        yield Label(x=_LEFT - 10, y=at, text=frame.y.form.format(tick), size=12, anchor="end", colour="muted")
    yield Label(x=14, y=_TOP - 14, text=frame.y.name, size=12, colour="muted")
    yield Label(x=(_LEFT + frame.right) / 2, y=bottom + 34, text=frame.x.name, size=12, anchor="middle", colour="muted")


def _gap(start: float, end: float, text: str, frame: _Frame) -> Iterator[Rect | Label]:
    x, right = (frame.at((at, frame.y.ticks[0]))[0] for at in (start, end))
    yield Rect(x=x, y=_TOP, width=right - x, height=_HIGH, fill="waiting", texture="hatch", opacity=0.6, tooltip=text)
    middle = min((x + right) / 2, frame.right - text_width(text, 12, bold=True) / 2)  # the curves' names stand beside
    yield Label(x=middle, y=_TOP - 12, text=text, size=12, anchor="middle", bold=True)


def _curve(
    points: Points, colour: str, frame: _Frame, dots: bool, *, dashed: bool, is_band: bool
) -> Iterator[Line | Rect]:
    placed = [frame.at(point) for point in points]
    for (x1, y1), (x2, y2) in zip(placed, placed[1:], strict=False):
        yield Line(x1=x1, y1=y1, x2=x2, y2=y2, colour=colour, width=_BAND if is_band else _LINE, dashed=dashed)
    for x, y in placed if dots and not is_band else ():
        yield Rect(x=x - 5, y=y - 5, width=10, height=10, radius=4.9, fill="ink")


def _names(curves: Mapping[str, Points], colours: Mapping[str, str], frame: _Frame) -> Iterator[Rect | Label]:
    """At the curves' ends, pushed apart where these are close."""
    ends = sorted((frame.at(points[-1])[1], name) for name, points in curves.items())
    lowest = -math.inf
    for y, name in ends:
        lowest = max(y, lowest + _APART)
        yield Rect(x=frame.right + 10, y=lowest - 5, width=10, height=10, radius=2, fill=colours[name])
        yield Label(x=frame.right + 26, y=lowest, text=name, size=13, bold=True)


def _mark(mark: Mark, frame: _Frame, *, lower: float) -> Iterator[Rect | Label]:
    """A ring, and the words beside it on the side where there is room."""
    across, down = frame.at((mark.x, mark.y))
    wide = text_width(mark.words, 12, bold=True)
    left = across + 14 if across + 24 + wide < frame.right and not mark.on_left else across - 22 - wide
    lower = lower if mark.lower is None else mark.lower
    yield Rect(x=across - 7, y=down - 7, width=14, height=14, radius=6.9, stroke="ink", stroke_width=2.5)
    box = {"x": left - 4, "y": down + lower, "width": wide + 12, "height": 22, "radius": 4}
    yield Rect(**box, fill="surface")
    yield Rect(**box, stroke="rule")
    yield Label(x=left + 2, y=down + lower + 11, text=mark.words, size=12, bold=True)
