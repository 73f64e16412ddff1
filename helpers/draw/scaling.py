"""How fast training becomes with more GPUs: predicted and measured speed-ups, the ideal line, and Amdahl's curve."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

from helpers.draw.curves import Axis, Mark, curves_scene
from helpers.draw.scene import WIDTH, Scene, text_width
from helpers.learner.words import book
from helpers.predict.scaling import Point, amdahl

say = book("steps").section("curve")
PAINTS = {"predicted": "parameters", "measured": "sign", "ideal": "other", "amdahl": "optimizer"}
LINEAR = 64  # GPUs up to which both axes are linear
_FINE = 60  # points of Amdahl's curve
_PLOT = 0.65  # of the picture's width: at least so wide is the plot


def speedup_scene(
    points: Sequence[Point] = (),
    *,
    title: str,
    measured: Sequence[tuple[int, float]] = (),
    serial: float | None = None,
    ideal: bool = True,
    stops: Point | None = None,
    limit: float = 0.7,
    yours: int | None = None,
    width: float = WIDTH,
) -> Scene:
    """Speed-ups by GPUs. points: predicted. measured: (GPUs, speed-up), each a dot. serial: Amdahl's share.

    ideal: draw the line of as many times as GPUs. stops: the point up to which more GPUs pay, since efficiency is at
    least `limit`; beyond it the plot is hatched. yours: the count to mark. Axes are linear up to 64 GPUs and
    logarithmic beyond. ValueError with neither points nor measurements.
    """
    values = _curves(points, measured, serial, ideal)
    known = [each for name in ("predicted", "measured") for each in values.get(name, ())]
    (first, _), (last, _) = min(known), max(known)
    names = {name: say(name, serial=serial or 0.0) for name in values}
    one = min(points, key=lambda point: abs(point.efficiency - 1)).gpus if points else first
    x = _axis(say("gpus") if one == 1 else say("first", gpus=one), last, last)
    y = _axis(say("speedup"), last, max(most for each in values.values() for _, most in each))
    pays = stops.gpus if stops else last
    return curves_scene(
        {names[name]: each for name, each in values.items()},
        x=x, y=y, title=title, marks=_marks(points, yours, x, width), width=width,
        gaps=[(pays, x.ticks[-1], say("stops", limit=limit, gpus=pays))] if pays < last else (),
        paints={names[name]: PAINTS[name] for name in values},
        dashed=[names[name] for name in ("ideal",) if name in names],
        dots=[names[name] for name in ("measured",) if name in names],
    )  # fmt: skip


def _curves(
    points: Sequence[Point], measured: Sequence[tuple[int, float]], serial: float | None, ideal: bool
) -> dict[str, list[tuple[int, float]]]:
    """(GPUs, speed-up) of each curve, by its name in the words."""
    values = {"predicted": sorted((point.gpus, point.speedup) for point in points), "measured": sorted(measured)}
    values = {name: each for name, each in values.items() if each}
    if not values:
        raise ValueError("speedup_scene got no point: give points of `curve`, or measured=((1, 1.0), (2, 1.8), ...)")
    last = max(each[-1][0] for each in values.values())
    if serial is not None:
        counts = sorted({round(last ** (number / _FINE)) for number in range(_FINE + 1)})
        values["amdahl"] = [(count, amdahl(count, serial)) for count in counts]
    return values | ({"ideal": [(1, 1), (last, last)]} if ideal else {})


def _axis(name: str, gpus: int, most: float) -> Axis:
    """In four whole steps from 0, or by powers of 4 from 1."""
    if gpus <= LINEAR:
        step = ceil(most / 4)
        return Axis(name=name, ticks=[step * number for number in range(ceil(most / step) + 1)])
    return Axis(name=name, ticks=[4**power for power in range(ceil(log(most, 4) - 1e-9) + 1)], log=True)


def _marks(points: Sequence[Point], yours: int | None, x: Axis, width: float) -> list[Mark]:
    """The count asked for, its words below the curve: to the right of it, or where there is no room far below."""
    marks = []
    for point in points:
        if point.gpus == yours:
            words = say("yours", gpus=point.gpus, efficiency=point.efficiency)
            has_room = x.place(yours) + text_width(words, 12, bold=True) / (_PLOT * width) < 1
            marks.append(Mark(point.gpus, point.speedup, words, lower=16 if has_room else 90))
    return marks
