"""Where values lie in powers of two, what one number format makes of them, and how far each format reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.draw.axis import round_step
from helpers.draw.formats import number_text, power_text
from helpers.draw.palette import SAYS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading
from helpers.predict.precision import Survival, surviving
from helpers.predict.precision.formats import NUMBER_FORMATS, NumberFormat, number_format
from helpers.records import Magnitudes

LOOKS = {
    "normal": {"fill": "gradients", "texture": "stripes"},
    "subnormal": {"fill": "panel", "texture": "hatch", "stroke": "muted"},
    "rounded to 0": {"fill": "communication"},
    "too large": {"fill": "optimizer", "texture": "dots"},
}
_LEFT, _RIGHT = 96.0, 128.0  # pixels of the names and of the losses
_BARS, _LANE, _ROW, _RANGE, _FONT = 150.0, 17.0, 23.0, 12.0, 11.0


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """low and high are powers of two, left and right the pixels where they lie. What lies outside is cut."""

    low: float
    high: float
    left: float
    right: float

    def x(self, power: float) -> float:
        share = (min(max(power, self.low), self.high) - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)

    def holds(self, power: float) -> bool:
        return self.low < power < self.high


def percent(share: float) -> str:
    """A share as "47.1 %"; one that is not 0 never reads as 0, nor one below 1 as 100."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def scale_text(scale: float) -> str:
    """A loss scale as "2¹⁶", or as a plain number where it is no power of two."""
    power = math.log2(scale)
    return power_text(power) if power.is_integer() else number_text(scale)


def magnitudes_scene(
    magnitudes: Magnitudes,
    name: str,
    scale: float = 1.0,
    *,
    window: tuple[float, float] | None = None,
    title: str = "",
    width: float = WIDTH,
) -> Scene:
    """A Scene: the histogram of the values times `scale`, each bin by what the format makes of it; all formats below.

    name: a key of NUMBER_FORMATS. window: (low, high) powers of two that the axis shows, so that it can stay while a
    dial moves; by default where the values lie. Values beyond it are not drawn but counted. A thin outline shows the
    values unscaled. ValueError for an unknown format, a scale that is not positive and finite, or no values.
    """
    chosen, shares = number_format(name), surviving(magnitudes, name, scale)
    axis = _axis(magnitudes, scale, window, width)
    times = "" if scale == 1 else SAYS["values.times"].format(scale_text(scale))
    title = title or SAYS("values.in", values=values_word(magnitudes.name), times=times, name=name)
    head, y = heading(title, [(_share(*one), LOOKS[one[0]]) for one in _by_word(shares).items()], width)
    lanes = list(_bounds(chosen, axis))
    top = y + 6 + len(lanes) * _LANE
    bottom = top + _BARS
    rows = bottom + 34
    end = rows + len(NUMBER_FORMATS) * _ROW
    items: list[Rect | Label | Line] = [*head, *_grid(axis, top, bottom)]
    items += [] if scale == 1 else _bars(magnitudes, 1.0, None, axis, bottom)
    items += _bars(magnitudes, scale, chosen, axis, bottom)
    for lane, (power, text) in enumerate(lanes):
        items += _bound_line(axis.x(power), y + 6 + lane * _LANE, end - 4, text, axis)
    for number, one in enumerate(NUMBER_FORMATS.values()):
        items += _range(one, one == chosen, surviving(magnitudes, one, scale), axis, rows + number * _ROW)
    items.append(Label(x=14, y=bottom + 12, text=SAYS("values.size"), size=_FONT, colour="muted"))
    items.append(Label(x=width - 14, y=rows - 16, text=SAYS("values.lost"), size=_FONT, anchor="end", colour="muted"))
    return Scene(width=width, height=end + 6, title=title, summary=_summary(magnitudes, chosen, scale), items=items)


def _by_word(shares: Survival) -> dict[str, float]:
    values = (shares.normal, shares.subnormal, shares.zero, shares.overflow)
    return dict(zip(LOOKS, values, strict=True))


def _axis(magnitudes: Magnitudes, scale: float, window: tuple[float, float] | None, width: float) -> _Axis:
    shift = math.log2(scale)
    low, high = window or (magnitudes.lowest + min(shift, 0) - 1, magnitudes.highest + max(shift, 0) + 1)
    return _Axis(low=low, high=high, left=_LEFT, right=width - _RIGHT)


def _grid(axis: _Axis, top: float, bottom: float) -> Iterator[Label | Line]:
    step = max(1, round(round_step(axis.high - axis.low, 8)))
    for number in range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1):
        x = axis.x(number * step)
        yield Line(x1=x, y1=top, x2=x, y2=bottom)
        yield Label(x=x, y=bottom + 12, text=power_text(number * step), size=_FONT, anchor="middle", colour="muted")


def _bounds(one: NumberFormat, axis: _Axis) -> Iterator[tuple[float, str]]:
    """(power, words) of the bounds that the axis shows, the highest first: its words stand above all the others."""
    zero, normal, largest = (math.log2(v) for v in (one.smallest_subnormal / 2, one.smallest_normal, one.largest))
    bounds = [
        (largest, SAYS["values.above"].say(None, number_text(one.largest))),
        (normal, SAYS["values.from"].say(None, power_text(normal))),
        (zero, SAYS["values.up_to"].say(None, power_text(zero))),
    ]
    return ((power, text) for power, text in bounds if axis.holds(power))


def _bound_line(x: float, top: float, bottom: float, text: str, axis: _Axis) -> Iterator[Label | Line]:
    yield Line(x1=x, y1=top, x2=x, y2=bottom, colour="ink", width=1.2, dashed=True, tooltip=text)
    yield Label(x=x - 6, y=top + _LANE / 2, text=text, size=_FONT, anchor="end")


def _bars(magnitudes: Magnitudes, scale: float, one: NumberFormat | None, axis: _Axis, bottom: float) -> Iterator[Rect]:
    """Each bin as a bar, in the look of what the format makes of it; without a format the thin outline."""
    tallest, shift = max(share for _, share in magnitudes.bins()), math.log2(scale)
    for left, share in magnitudes.bins():
        power = left + shift
        if not axis.low <= power <= axis.high - 1:
            continue
        x, height = axis.x(power), share / tallest * _BARS
        wide = max(axis.x(power + 1) - x - 1, 0.5)
        look = {"stroke": "rule"} if one is None else LOOKS[_word(one, power)]
        tooltip = "" if one is None else _bin(share, power)
        yield Rect(x=x, y=bottom - height, width=wide, height=height, tooltip=tooltip, **look)


def _word(one: NumberFormat, power: float) -> str:
    """What becomes of most of the bin that starts at this power."""
    fate = one.fate(2.0 ** (power + 0.5))
    return {"0": "rounded to 0", "∞": "too large", "largest": "too large"}.get(fate, fate)


def _range(one: NumberFormat, chosen: bool, shares: Survival, axis: _Axis, top: float) -> Iterator[Rect | Label | Line]:
    """A line for each format: its name, how far it reaches (an arrow where the axis is cut), and what it loses."""
    middle = top + _RANGE / 2
    low, normal, high = (math.log2(v) for v in (one.smallest_subnormal, one.smallest_normal, one.largest))
    colour = "ink" if chosen else "muted"
    yield Label(x=14, y=middle, text=one.name, size=12, bold=chosen, colour=colour)
    powers = {"low": power_text(low), "normal": power_text(normal), "high": one.largest}
    tooltip = SAYS("values.range", name=one.name, **powers)
    outline = {"stroke": "ink", "stroke_width": 1.5} if chosen else {}
    if axis.x(normal) > axis.x(low):
        look = LOOKS["subnormal"] | outline
        yield Rect(x=axis.x(low), y=top, width=axis.x(normal) - axis.x(low), height=_RANGE, tooltip=tooltip, **look)
    width = axis.x(high) - axis.x(normal)
    yield Rect(x=axis.x(normal), y=top, width=width, height=_RANGE, fill="other", tooltip=tooltip, **outline)
    ends = [(axis.left, -16)] * (low < axis.low) + [(axis.right, 16)] * (high > axis.high)  # it goes on beyond the axis
    yield from (Line(x1=x, y1=middle, x2=x + dx, y2=middle, colour=colour, width=2, arrow=True) for x, dx in ends)
    lost = percent(shares.zero + shares.overflow)
    yield Label(x=axis.right + _RIGHT - 14, y=middle, text=lost, size=_FONT, anchor="end", colour=colour, bold=chosen)


def _summary(magnitudes: Magnitudes, chosen: NumberFormat, scale: float) -> str:
    parts = []
    for one in NUMBER_FORMATS.values():
        found = _by_word(surviving(magnitudes, one, scale))
        shares = [f"{SAYS(f'fate.{word}')} {percent(share)}" for word, share in found.items()]
        parts.append(SAYS("values.lists", name=one.name, shares=shares))
    counted = {"count": magnitudes.counted, "values": values_word(magnitudes.name), "scale": scale_text(scale)}
    return SAYS("values.summary", **counted, name=chosen.name, parts=parts)


def values_word(name: str) -> str:
    """What values are called: those that the course recorded in the reader's language, a learner's own as they are."""
    return SAYS(f"values.names.{name}") if f"values.names.{name}" in SAYS else name


def _bin(share: float, power: float) -> str:
    return SAYS("values.bin", share=percent(share), low=power_text(power), high=power_text(power + 1))


def _share(word: str, share: float) -> str:
    return SAYS("fate_share", fate=SAYS[f"fate.{word}"], share=percent(share))
