"""Draws how fast training becomes with more GPUs: predicted and measured speed-ups, the ideal line, Amdahl's curve.

The speed-up of n GPUs is n where training scales ideally, and the efficiency is the speed-up per GPU.
Amdahl's curve is the speed-up if a fixed share of the step, the serial share, never becomes faster. Chapter 11 and the
scaling explorer show the picture; `predict.scaling` computes the points.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log

from helpers.draw.plot import Axis, Mark, curves_scene
from helpers.draw.scene import WIDTH, Scene, text_width
from helpers.learner.words import book
from helpers.predict.scaling import Point, amdahl

words = book("steps").section("curve")  # the texts that are shown, by name: learner/words/steps.yaml
# The kind of the palette, and so the colour, of each curve.
PAINTS = {"predicted": "parameters", "measured": "sign", "ideal": "other", "amdahl": "optimizer"}
LINEAR = 64  # GPUs up to which both axes are linear
_NUM_AMDAHL_POINTS = 60  # of Amdahl's curve, at equal distances on a logarithmic axis
_PLOT_SHARE = 0.65  # of the picture's width that the plot takes at least


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
) -> Scene:
    """Speed-ups by numbers of GPUs.

    points: predicted speed-ups. measured: (GPUs, speed-up) pairs, each a dot. serial: the serial share for Amdahl's
    curve. ideal: whether to draw the line on which the speed-up equals the number of GPUs. stops: the point up to which
    more GPUs pay, since efficiency is at least `limit`; beyond it the plot is hatched. yours: the number of GPUs to
    mark. Axes are linear up to 64 GPUs and logarithmic beyond.
    Raises ValueError with neither points nor measurements.
    """
    curves = _curves(points, measured, serial, ideal)
    known = [point for name in ("predicted", "measured") for point in curves.get(name, ())]
    (first, _), (last, _) = min(known), max(known)  # the fewest and the most GPUs
    names = {name: words(name, serial=serial or 0.0) for name in curves}
    # Speed-ups are relative to this number of GPUs, at which the efficiency is 1 and the speed-up equals the number.
    unit = min(points, key=lambda point: abs(point.efficiency - 1)).gpus if points else first
    # The text "first" also says to which number of GPUs the speed-ups are relative.
    x = _axis(words("gpus") if unit == 1 else words("first", gpus=unit), last, last)
    y = _axis(words("speedup"), last, max(speedup for curve in curves.values() for _, speedup in curve))
    last_that_pays = stops.gpus if stops else last
    # Curves are named in words. The ideal line is dashed, and measurements are dots, where they are drawn at all.
    return curves_scene(
        {names[name]: curve for name, curve in curves.items()},
        x=x, y=y, title=title, marks=_marks(points, yours, x),
        gaps=[(last_that_pays, x.ticks[-1], words("stops", limit=limit, gpus=last_that_pays))]
        if last_that_pays < last else (),
        paints={names[name]: PAINTS[name] for name in curves},
        dashed=[names[name] for name in ("ideal",) if name in names],
        dots=[names[name] for name in ("measured",) if name in names],
    )  # fmt: skip


def _curves(
    points: Sequence[Point], measured: Sequence[tuple[int, float]], serial: float | None, ideal: bool
) -> dict[str, list[tuple[int, float]]]:
    """The (GPUs, speed-up) points of each curve, by its name in the words."""
    curves = {"predicted": sorted((point.gpus, point.speedup) for point in points), "measured": sorted(measured)}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        raise ValueError("speedup_scene got no point: give points of `curve`, or measured=((1, 1.0), (2, 1.8), ...)")
    last = max(curve[-1][0] for curve in curves.values())
    if serial is not None:
        counts = sorted({round(last ** (number / _NUM_AMDAHL_POINTS)) for number in range(_NUM_AMDAHL_POINTS + 1)})
        curves["amdahl"] = [(count, amdahl(count, serial)) for count in counts]
    return curves | ({"ideal": [(1, 1), (last, last)]} if ideal else {})


def _axis(name: str, gpus: int, most: float) -> Axis:
    """An axis up to `most`: ticks in four whole steps from 0, or by powers of 4 from 1 beyond `LINEAR` GPUs."""
    # 1e-9 is against rounding, which would add a tick where `most` is itself a power of 4.
    if gpus <= LINEAR:
        step = ceil(most / 4)
        return Axis(name=name, ticks=[step * number for number in range(ceil(most / step) + 1)])
    return Axis(name=name, ticks=[4**power for power in range(ceil(log(most, 4) - 1e-9) + 1)], log=True)


def _marks(points: Sequence[Point], yours: int | None, x: Axis) -> list[Mark]:
    """A mark at `yours`, with its text below the curve, and far below where there is no room on the right."""
    marks = []
    for point in (point for point in points if point.gpus == yours):
        text = words("yours", gpus=point.gpus, efficiency=point.efficiency)
        has_room = x.place(yours) + text_width(text, 12, bold=True) / (_PLOT_SHARE * WIDTH) < 1
        marks.append(Mark(point.gpus, point.speedup, text, lower=16 if has_room else 90))  # pixels below the point
    return marks
