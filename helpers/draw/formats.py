"""Number formats on a line: the bits of each as boxes, and the range that they reach on one axis of powers of two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.axis import round_step
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.predict.precision.formats import NUMBER_FORMATS, NumberFormat, number_format

_LEFT, _BITS, _RANGE, _RIGHT = 14.0, 96.0, 352.0, 24.0  # left edges of the columns, and the right margin
_BIT, _BAR, _ROW, _HISTOGRAM, _LANE, _BADGE = 7.5, 14.0, 60.0, 56.0, 16.0, 17.0
_FONT = 11.0
_NORMAL = {"fill": "other"}
_SUBNORMAL = {"fill": "panel", "texture": "hatch", "stroke": "muted"}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Bins = Sequence[tuple[float, float]]  # (log2 of the left edge, share of the values)


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """low and high are powers of two, left and right the pixels where they lie."""

    low: float
    high: float
    left: float
    right: float

    def x(self, power: float) -> float:
        return self.left + (power - self.low) / (self.high - self.low) * (self.right - self.left)


def number_formats_scene(
    names: Sequence[str] = tuple(NUMBER_FORMATS),
    *,
    marks: Mapping[str, float] | None = None,
    histogram: Bins = (),
    histogram_name: str = "values",
    title: str = "Number formats: bits and range",
    width: float = WIDTH,
) -> Scene:
    """A Scene of formats, by default fp32, tf32, bf16, fp16 and both fp8: a row each, all on one axis of log2.

    `marks` maps words to positive values, such as {"a gradient": 1e-6}: a line each, and in every row that cannot hold
    the value as a normal number what it becomes. `histogram` lists bins as (log2 of the left edge, share): each bin
    ends where the next begins, the last is as wide as the one before; each row then says which share it loses.
    ValueError for no or an unknown format, a mark that is not above 0, edges that do not rise, shares outside 0 to 1.
    """
    formats = [number_format(name) for name in names]
    marks, bins = dict(marks or {}), _bins(histogram)
    _check(formats, marks)
    axis = _axis(formats, marks, bins, width)
    head, y = heading(title, [*kinds_legend(["sign", "exponent", "mantissa"]), *_RANGES], width)
    top = y + 8 + len(marks) * _LANE
    items: list[Rect | Label | Line] = []
    if bins:
        items += _histogram(bins, histogram_name, axis, top + 4)
        top += _HISTOGRAM + 12
    row, rows = _ROW + (14 if bins else 0), []
    for number, one in enumerate(formats):
        rows += _row(one, bins, axis, top + 10 + number * row)
        rows += _fates(one, marks, axis, top + 10 + number * row)
    bottom = top + 4 + len(formats) * row
    items = [*head, *_grid(axis, top, bottom), *items, *_mark_lines(marks, axis, y + 8, bottom), *rows]
    summary = " ".join(_sentence(one, marks, bins) for one in formats)
    return Scene(width=width, height=bottom + 26, title=title, summary=summary, items=tuple(items))


_RANGES = [("normal", _NORMAL), ("subnormal", _SUBNORMAL)]


def _check(formats: list[NumberFormat], marks: dict[str, float]) -> None:
    if not formats:
        raise ValueError(f"number_formats_scene got no format; give some of {', '.join(NUMBER_FORMATS)}")
    for word, value in marks.items():
        if not 0 < value < math.inf:
            raise ValueError(f"the mark {word!r} is {value!r}, but a place on a log2 axis needs a finite value above 0")


def _bins(histogram: Bins) -> list[tuple[float, float, float]]:
    """(left, right, share) of each bin, in powers of two."""
    edges = [edge for edge, _ in histogram]
    if any(a >= b for a, b in zip(edges, edges[1:], strict=False)):
        raise ValueError(f"the histogram's edges are {edges}, but each must lie above the one before")
    wrong = [share for _, share in histogram if not 0 <= share <= 1]
    if wrong:
        raise ValueError(f"a share in the histogram is {wrong[0]!r}, but shares lie between 0 and 1")
    last = edges[-1] - edges[-2] if len(edges) > 1 else 1.0
    ends = [*edges[1:], edges[-1] + last] if edges else []
    return [(left, right, share) for (left, share), right in zip(histogram, ends, strict=True)]


def _axis(formats: list, marks: dict, bins: list, width: float) -> _Axis:
    powers = [math.log2(value) for one in formats for value in (one.smallest_subnormal, one.largest)]
    powers += [math.log2(value) for value in marks.values()]
    powers += [edge for left, right, _ in bins for edge in (left, right)]
    spare = 0.03 * (max(powers) - min(powers))
    return _Axis(low=min(powers) - spare, high=max(powers) + spare, left=_RANGE, right=width - _RIGHT)


def power_text(exponent: float) -> str:
    """2 to a whole power, as "2⁻¹⁴"; "1" for the power 0."""
    return f"2{str(round(exponent)).translate(_SUPERSCRIPT)}" if round(exponent) else "1"


def number_text(value: float) -> str:
    """A value as people write it: "65,504", "0.02", "3.403e38"."""
    return (
        f"{value:,.0f}"
        if value == round(value) and value < 1e6
        else f"{value:.3g}"
        if value < 1e6
        else f"{value:.3e}".replace("e+", "e")
    )


def _grid(axis: _Axis, top: float, bottom: float) -> Iterator[Label | Line]:
    step = max(1, round(round_step(axis.high - axis.low, 6)))
    for number in range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1):
        x = axis.x(number * step)
        yield Line(x1=x, y1=top, x2=x, y2=bottom)
        yield Label(x=x, y=bottom + 12, text=power_text(number * step), size=_FONT, anchor="middle", colour="muted")


def _row(one: NumberFormat, bins: list, axis: _Axis, top: float) -> Iterator[Rect | Label]:
    middle = top + _BAR / 2
    yield Label(x=_LEFT, y=middle, text=one.name, size=13, bold=True)
    kinds = ["sign"] + ["exponent"] * one.exponent_bits + ["mantissa"] * one.mantissa_bits
    for number, kind in enumerate(kinds):
        yield Rect(x=_BITS + number * _BIT, y=top, width=_BIT - 1, height=_BAR, fill=kind)
    largest, start = _range(one)
    lines = [f"1 + {one.exponent_bits} + {one.mantissa_bits} bits, {largest}", start]
    for number, text in enumerate(lines + ([_losses(one, bins)] if bins else [])):
        yield Label(x=_BITS, y=middle + 18 + 15 * number, text=text, size=_FONT, colour="muted")
    low, normal, high = (axis.x(math.log2(v)) for v in (one.smallest_subnormal, one.smallest_normal, one.largest))
    tooltip = f"{one.name}: {start}, {largest}"
    yield Rect(x=low, y=top, width=normal - low, height=_BAR, tooltip=tooltip, **_SUBNORMAL)
    yield Rect(x=normal, y=top, width=high - normal, height=_BAR, tooltip=tooltip, **_NORMAL)


def _range(one: NumberFormat) -> tuple[str, str]:
    """The three numbers that bound the bars, in words: the largest, and where it starts."""
    low, normal = (power_text(math.log2(value)) for value in (one.smallest_subnormal, one.smallest_normal))
    return f"up to {number_text(one.largest)}", f"normal from {normal}, subnormal from {low}"


def _lost(one: NumberFormat, bins: list) -> tuple[float, float]:
    """The shares that become 0 and that lie above the largest; values lie evenly within a bin."""
    zero, largest = math.log2(one.smallest_subnormal) - 1, math.log2(one.largest)
    below = sum(share * min(1.0, max(0.0, (zero - left) / (right - left))) for left, right, share in bins)
    above = sum(share * min(1.0, max(0.0, (right - largest) / (right - left))) for left, right, share in bins)
    return below, above


def _losses(one: NumberFormat, bins: list) -> str:
    below, above = _lost(one, bins)
    return f"{100 * below:.1f} % become 0, {100 * above:.1f} % are too large"


def _histogram(bins: list, name: str, axis: _Axis, top: float) -> Iterator[Rect | Label]:
    tallest = max(share for _, _, share in bins) or 1.0
    yield Label(x=_LEFT, y=top + _HISTOGRAM - 8, text=f"where the {name} lie", size=12)
    for left, right, share in bins:
        height = share / tallest * _HISTOGRAM
        x, wide = axis.x(left), axis.x(right) - axis.x(left)
        tooltip = f"{100 * share:.2g} % between {power_text(left)} and {power_text(right)}"
        look = {"fill": "gradients", "texture": "stripes" if wide > 4 else "", "tooltip": tooltip}
        yield Rect(x=x, y=top + _HISTOGRAM - height, width=wide - (1 if wide > 4 else 0), height=height, **look)


def _by_value(marks: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(marks.items(), key=lambda mark: mark[1])


def _mark_lines(marks: dict[str, float], axis: _Axis, top: float, bottom: float) -> Iterator[Label | Line]:
    """Each label left of its line; the largest mark stands highest, so that no line crosses a label."""
    for lane, (word, value) in enumerate(reversed(_by_value(marks))):
        x, y = axis.x(math.log2(value)), top + lane * _LANE
        yield Line(x1=x, y1=y, x2=x, y2=bottom, colour="communication", width=1.6, dashed=True, tooltip=word)
        yield Label(x=x - 6, y=y + _LANE / 2, text=f"{word}: {number_text(value)}", size=_FONT, anchor="end")


def _fates(one: NumberFormat, marks: dict[str, float], axis: _Axis, top: float) -> Iterator[Rect | Label]:
    """Below the bar, a badge where a format does not hold a mark as a normal number; close ones stand side by side."""
    taken, y = 0.0, top + _BAR + 5
    for word, value in _by_value(marks):
        fate = one.fate(value)
        if fate == "normal":
            continue
        text = {"subnormal": "sub", "largest": "max"}.get(fate, fate)  # a narrow badge stays at its line
        half = text_width(text, _FONT) / 2 + 4
        x = max(axis.x(math.log2(value)), taken + half + 3)
        taken = x + half
        look = {"fill": "surface", "stroke": "communication", "radius": 3, "tooltip": f"{word} in {one.name}: {fate}"}
        yield Rect(x=x - half, y=y, width=2 * half, height=_BADGE, stroke_width=1.5, **look)
        yield Label(x=x, y=y + _BADGE / 2, text=text, size=_FONT, anchor="middle")


def _sentence(one: NumberFormat, marks: dict[str, float], bins: list) -> str:
    parts = [
        f"{one.name}, {one.exponent_bits} exponent and {one.mantissa_bits} mantissa bits: {', '.join(_range(one))}"
    ]
    parts += [f"{word}, {number_text(value)}, is {one.fate(value)}" for word, value in marks.items()]
    return "; ".join([*parts, _losses(one, bins)] if bins else parts) + "."
