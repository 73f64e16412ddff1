"""Curves over one axis: what a number becomes when another one grows. Dots stand for what was measured or emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from helpers.draw.axis import ticks
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, text_width

Points = Sequence[tuple[float, float]]
_LEFT, _TOP, _HEIGHT, _DOT = 70.0, 52.0, 210.0, 9.0
_COLOURS = ("parameters", "communication", "gradients", "optimizer")


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
    """A Scene with a line for each name in `curves`, named at its right end; every second one is dashed.

    dots: (x, y) of the same names, drawn on the lines. Both axes begin at 0. ValueError without two points, for more
    than four curves, or for dots of a name that has no curve.
    """
    dots = dots or {}
    _check(curves, dots)
    room = 24 + max(text_width(name, 12, bold=True) for name in curves)
    places = [point for group in (curves, dots) for points in group.values() for point in points]
    right, top = max(x for x, _ in places), max(y for _, y in places) or 1.0
    plot = _Plot(right=right, top=top * 1.06, width=width - _LEFT - room)
    items: list[Rect | Label | Line] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    items.append(Label(x=14, y=40, text=y_name, colour="muted"))
    items += plot.axes(x_text, y_text)
    items.append(Label(x=_LEFT, y=_TOP + _HEIGHT + 38, text=x_name, colour="muted"))
    for number, (name, points) in enumerate(curves.items()):
        items += plot.curve(points, _COLOURS[number], dashed=number % 2 == 1)
        items += plot.dots(dots.get(name, ()), _COLOURS[number], name)
    items += _names(curves, plot)
    return Scene(
        width=width, height=_TOP + _HEIGHT + 54, title=title, summary=_summary(curves, dots, y_text), items=items
    )


class _Plot:
    def __init__(self, *, right: float, top: float, width: float) -> None:
        self.right, self.top, self.width = right, top, width

    def at(self, x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / self.right * self.width, _TOP + _HEIGHT * (1 - y / self.top)

    def axes(self, x_text: Callable[[float], str], y_text: Callable[[float], str]) -> Iterator[Label | Line]:
        for y in ticks(self.top, 5):
            _, level = self.at(0, y)
            yield Line(x1=_LEFT, y1=level, x2=_LEFT + self.width, y2=level)
            yield Label(x=_LEFT - 8, y=level, text=y_text(y), anchor="end", colour="muted")
        for x in ticks(self.right, 6):
            place, _ = self.at(x, 0)
            yield Label(x=place, y=_TOP + _HEIGHT + 16, text=x_text(x), anchor="middle", colour="muted")

    def curve(self, points: Points, colour: str, *, dashed: bool) -> Iterator[Line]:
        for (x1, y1), (x2, y2) in pairwise(self.at(*point) for point in points):
            yield Line(x1=x1, y1=y1, x2=x2, y2=y2, colour=colour, width=2.5, dashed=dashed)

    def dots(self, points: Points, colour: str, name: str) -> Iterator[Rect]:
        for point in points:
            x, y = self.at(*point)
            look = {"fill": colour, "stroke": "ink", "radius": _DOT / 2, "tooltip": f"{name}: {point[1]:.3g}"}
            yield Rect(x=x - _DOT / 2, y=y - _DOT / 2, width=_DOT, height=_DOT, **look)


def _names(curves: Mapping[str, Points], plot: _Plot) -> Iterator[Label]:
    """Each at its curve's end, from the top down, never on each other."""
    ends = sorted((plot.at(*points[-1])[1], name) for name, points in curves.items())
    free = 0.0
    for y, name in ends:
        free = max(y, free + 17)
        yield Label(x=_LEFT + plot.width + 10, y=free, text=name, bold=True)


def _check(curves: Mapping[str, Points], dots: Mapping[str, Points]) -> None:
    if not 1 <= len(curves) <= len(_COLOURS) or any(len(points) < 2 for points in curves.values()):
        raise ValueError(f"lines_scene draws 1 to {len(_COLOURS)} curves of at least two points each, not {curves!r}")
    if unknown := [name for name in dots if name not in curves]:
        raise ValueError(
            f"lines_scene got dots of {', '.join(unknown)}, but curves of {', '.join(curves)}: use the same"
        )


def _summary(curves: Mapping[str, Points], dots: Mapping[str, Points], y_text: Callable[[float], str]) -> str:
    says = [f"{name} goes from {y_text(points[0][1])} to {y_text(points[-1][1])}." for name, points in curves.items()]
    return " ".join([*says, *(f"Dots on {name}." for name in dots)])
