"""Draws number formats: the bits and the range of each, and what one format makes of a distribution of values.

`number_formats_scene` shows a row per format on one axis of powers of two, with marks on request. `magnitudes_scene`
shows the histogram of values under a loss scale, the number by which all of them are multiplied; each bin has the
colour of its fate, which is what the chosen format makes of it: "normal", "subnormal" (less precise), "rounded to 0" or
"too large". Magnitudes are that histogram, by powers of two. A NumberFormat has the numbers of its exponent and
mantissa bits, its smallest and largest numbers, and `rounded_class(value)`, what a value becomes in it. In the code it
is called `form`, because `format` is a function of Python. Chapter 04 and the precision explorer use both scenes.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.axis import column_lines, round_step
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, labelled_box, text_width
from helpers.learner.words import book
from helpers.predict.precision import NUMBER_FORMATS, NumberFormat, Survival, number_format, surviving
from helpers.records import Magnitudes

# What a reader of magnitudes_scene sees, by name, in the learner's language: learner/words/draw.yaml. The texts of
# number_formats_scene are in English.
words = book("draw")
_FONT = 11.0  # pixels of small letters
# Of number_formats_scene: the left edges of the bits and of the ranges, and the right margin, in pixels.
_BITS, _RANGES, _RIGHT = 96.0, 352.0, 24.0
_BIT, _BAR, _ROW = 7.5, 14.0, 60.0  # pixels: the width of a bit, the height of a bar, from row to row
# Heights in pixels: a mark's label, and a badge, the small box that says what a mark becomes in a format.
_LANE, _BADGE = 16.0, 17.0
# How the two parts of a format's range look, where its numbers are normal and where they are subnormal.
_NORMAL = {"fill": "other"}
_SUBNORMAL = {"fill": "panel", "texture": "hatch", "stroke": "muted"}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# Of magnitudes_scene: what becomes of a value, to how its bar looks.
FATE_STYLES = {
    "normal": {"fill": "gradients", "texture": "stripes"},
    "subnormal": _SUBNORMAL,
    "rounded to 0": {"fill": "communication"},
    "too large": {"fill": "optimizer", "texture": "dots"},
}
_NAMES, _LOSSES = 96.0, 128.0  # pixels of the formats' names on the left and of their losses on the right
_BARS, _BOUND_LANE = 150.0, 17.0  # heights in pixels: of the histogram, of a bound's label
_RANGE_PITCH, _RANGE = 23.0, 12.0  # pixels from one format's range to the next, and its height


@dataclass(frozen=True, kw_only=True)
class _PowersAxis:
    """An axis of powers of two: `low` and `high` are the powers at the pixels `left` and `right`."""

    low: float
    high: float
    left: float
    right: float

    def x(self, power: float) -> float:
        """Where a power of two lies in the picture, in pixels."""
        return self.left + (power - self.low) / (self.high - self.low) * (self.right - self.left)

    def clamped_x(self, power: float) -> float:
        """Like `x`, but a power beyond the axis lies at its end."""
        return self.x(min(max(power, self.low), self.high))

    def has(self, power: float) -> bool:
        """Whether a power lies within the axis."""
        return self.low < power < self.high

    def grid(self, top: float, bottom: float, count: int) -> Iterator[Label | Line]:
        """About `count` vertical lines at whole powers, with labels below them."""
        step = max(1, round(round_step(self.high - self.low, count)))
        powers = range(math.ceil(self.low / step) * step, math.floor(self.high / step) * step + 1, step)
        return column_lines(((self.x(power), power_text(power)) for power in powers), top, bottom, text_gap=12)


def power_text(exponent: float) -> str:
    """2 to a whole power as text, such as "2⁻¹⁴"; "1" for the power 0."""
    return f"2{str(round(exponent)).translate(_SUPERSCRIPT)}" if round(exponent) else "1"


def number_text(value: float) -> str:
    """A value as people write it: "65,504", "0.02", "3.403e38"."""
    if value >= 1e6:
        return f"{value:.3e}".replace("e+", "e")
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


# -- bits and ranges -------------------------------------------------------------------------------------------------
def number_formats_scene(
    names: Sequence[str] = tuple(NUMBER_FORMATS),
    *,
    marks: Mapping[str, float] | None = None,
    title: str = "Number formats: bits and range",
) -> Scene:
    """A Scene with a row per format, by default fp32, tf32, bf16, fp16 and both fp8, all on one axis of log2.

    `marks` maps words to positive values, such as {"a gradient": 1e-6}. Each gets a line, and every format that cannot
    hold the value as a normal number says what the value becomes. Raises ValueError for no or an unknown format, or for
    a mark that is not above 0.
    """
    formats = [number_format(name) for name in names]
    marks = dict(marks or {})
    _check(formats, marks)
    axis = _formats_axis(formats, marks)
    legend = [*kinds_legend(["sign", "exponent", "mantissa"]), ("normal", _NORMAL), ("subnormal", _SUBNORMAL)]
    items, y = heading(title, legend)  # title and legend, and the y where they end
    top = y + 8 + len(marks) * _LANE
    bottom = top + 4 + len(formats) * _ROW
    items += [*axis.grid(top, bottom, 6), *_mark_lines(marks, axis, y + 8, bottom)]
    for number, form in enumerate(formats):
        row_top = top + 10 + number * _ROW
        items += [*_format_row(form, axis, row_top), *_badges(form, marks, axis, row_top)]
    summary = " ".join(_format_sentence(form, marks) for form in formats)
    return Scene(height=bottom + 26, title=title, summary=summary, items=items)


def _check(formats: list[NumberFormat], marks: dict[str, float]) -> None:
    """Raises ValueError where there is no format, or for a mark that has no logarithm."""
    if not formats:
        raise ValueError(f"number_formats_scene got no format; give some of {', '.join(NUMBER_FORMATS)}")
    for word, value in marks.items():
        if not 0 < value < math.inf:
            raise ValueError(f"the mark {word!r} is {value!r}, but a place on a log2 axis needs a finite value above 0")


def _formats_axis(formats: list, marks: dict) -> _PowersAxis:
    """An axis from the smallest number to the largest one of all formats and marks, with 3 % more on both sides."""
    powers = [math.log2(value) for form in formats for value in (form.smallest_subnormal, form.largest)]
    powers += [math.log2(value) for value in marks.values()]
    margin = 0.03 * (max(powers) - min(powers))
    return _PowersAxis(low=min(powers) - margin, high=max(powers) + margin, left=_RANGES, right=WIDTH - _RIGHT)


def _format_row(form: NumberFormat, axis: _PowersAxis, top: float) -> Iterator[Rect | Label]:
    """The name, a box per bit, the numbers that bound the range as text, and the range as a bar."""
    middle = top + _BAR / 2
    yield Label(x=MARGIN, y=middle, text=form.name, size=13, bold=True)
    kinds = ["sign"] + ["exponent"] * form.exponent_bits + ["mantissa"] * form.mantissa_bits
    for number, kind in enumerate(kinds):
        yield Rect(x=_BITS + number * _BIT, y=top, width=_BIT - 1, height=_BAR, fill=kind)
    largest, start = _range_texts(form)
    # The 1 is the sign bit.
    lines = (f"1 + {form.exponent_bits} + {form.mantissa_bits} bits, {largest}", start)
    for number, text in enumerate(lines):
        yield Label(x=_BITS, y=middle + 18 + 15 * number, text=text, size=_FONT, colour="muted")
    yield from _range_bars(form, axis, top, height=_BAR, tooltip=f"{form.name}: {start}, {largest}")


def _range_bars(form: NumberFormat, axis: _PowersAxis, top: float, **style: object) -> Iterator[Rect]:
    """A bar over the subnormal numbers that lie on the axis, and one over the normal numbers."""
    bounds = (form.smallest_subnormal, form.smallest_normal, form.largest)
    low, normal, high = (axis.clamped_x(math.log2(bound)) for bound in bounds)
    if normal > low:
        yield Rect(x=low, y=top, width=normal - low, **_SUBNORMAL | style)
    yield Rect(x=normal, y=top, width=high - normal, **_NORMAL | style)


def _range_texts(form: NumberFormat) -> tuple[str, str]:
    """The numbers that bound the range, in words: the largest, and where normal and subnormal numbers start."""
    low, normal = (power_text(math.log2(value)) for value in (form.smallest_subnormal, form.smallest_normal))
    return f"up to {number_text(form.largest)}", f"normal from {normal}, subnormal from {low}"


def _by_value(marks: dict[str, float]) -> list[tuple[str, float]]:
    """The marks, the smallest first."""
    return sorted(marks.items(), key=lambda mark: mark[1])


def _mark_lines(marks: dict[str, float], axis: _PowersAxis, top: float, bottom: float) -> Iterator[Label | Line]:
    """Each label stands left of its line; the largest mark stands highest, so that no line crosses a label."""
    for lane, (word, value) in enumerate(reversed(_by_value(marks))):
        x, y = axis.x(math.log2(value)), top + lane * _LANE
        yield Line(x1=x, y1=y, x2=x, y2=bottom, colour="communication", width=1.6, dashed=True, tooltip=word)
        yield Label(x=x - 6, y=y + _LANE / 2, text=f"{word}: {number_text(value)}", size=_FONT, anchor="end")


def _badges(form: NumberFormat, marks: dict[str, float], axis: _PowersAxis, top: float) -> Iterator[Rect | Label]:
    """Below the bar, a badge where the format does not hold a mark as a normal number; close ones lie side by side."""
    last_right, y = 0.0, top + _BAR + 5  # where the last badge ends
    for word, value in _by_value(marks):
        # "normal", "subnormal", "0", "∞", or, in a format without infinity, "largest"
        fate = form.rounded_class(value)
        if fate == "normal":
            continue
        text = {"subnormal": "sub", "largest": "max"}.get(fate, fate)  # a narrow badge stays near its line
        half = text_width(text, _FONT) / 2 + 4
        x = max(axis.x(math.log2(value)), last_right + half + 3)
        last_right = x + half
        style = {"fill": "surface", "stroke": "communication", "stroke_width": 1.5, "radius": 3}
        tooltip = f"{word} in {form.name}: {fate}"
        yield from labelled_box(x - half, y, 2 * half, _BADGE, text, size=_FONT, tooltip=tooltip, **style)


def _format_sentence(form: NumberFormat, marks: dict[str, float]) -> str:
    """What a row shows, for readers who cannot see the picture."""
    bits = f"{form.exponent_bits} exponent and {form.mantissa_bits} mantissa bits"
    parts = [f"{form.name}, {bits}: {', '.join(_range_texts(form))}"]
    parts += [f"{word}, {number_text(value)}, is {form.rounded_class(value)}" for word, value in marks.items()]
    return "; ".join(parts) + "."


# -- what a format makes of values -----------------------------------------------------------------------------------
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
    magnitudes: Magnitudes, name: str, scale: float = 1.0, *, window: tuple[float, float] | None = None, title: str = ""
) -> Scene:
    """A Scene with the histogram of values times `scale`, each bin by what the format makes of it; all formats below.

    name: a key of NUMBER_FORMATS. window: the (low, high) powers of two that the axis shows, so that it can stay the
    same while a dial moves; by default where the values lie. Values beyond it are counted but not drawn. A thin outline
    shows the values unscaled. Raises ValueError for an unknown format, a scale that is not positive and finite, or no
    values.
    """
    chosen, shares = number_format(name), surviving(magnitudes, name, scale)
    axis = _magnitudes_axis(magnitudes, scale, window)
    # words[…] is a text in every language, whose braces `format` fills; it becomes a part of the title.
    times = "" if scale == 1 else words["values.times"].format(scale_text(scale))
    title = title or words("values.in", values=values_word(magnitudes.name), times=times, name=name)
    legend = [(_fate_text(fate, share), FATE_STYLES[fate]) for fate, share in _shares_by_fate(shares).items()]
    items, y = heading(title, legend)
    bounds = list(_bounds(chosen, axis))  # where one fate ends and the next begins
    top = y + 6 + len(bounds) * _BOUND_LANE
    bottom = top + _BARS
    ranges_top = bottom + 34
    end = ranges_top + len(NUMBER_FORMATS) * _RANGE_PITCH
    items += axis.grid(top, bottom, 8)
    items += [] if scale == 1 else _bars(magnitudes, 1.0, None, axis, bottom)  # the outline of the unscaled values
    items += _bars(magnitudes, scale, chosen, axis, bottom)
    for lane, (power, text) in enumerate(bounds):
        items += _bound_line(axis.x(power), y + 6 + lane * _BOUND_LANE, end - 4, text)
    for number, form in enumerate(NUMBER_FORMATS.values()):
        form_shares = surviving(magnitudes, form, scale)
        items += _range(form, form == chosen, form_shares, axis, ranges_top + number * _RANGE_PITCH)
    style = {"size": _FONT, "colour": "muted"}
    items.append(Label(x=MARGIN, y=bottom + 12, text=words("values.size"), **style))
    items.append(Label(x=WIDTH - 14, y=ranges_top - 16, text=words("values.lost"), anchor="end", **style))
    return Scene(height=end + 6, title=title, summary=_magnitudes_summary(magnitudes, chosen, scale), items=items)


def _shares_by_fate(shares: Survival) -> dict[str, float]:
    """The share of the values that have each fate, 0 to 1."""
    values = (shares.normal, shares.subnormal, shares.zero, shares.overflow)
    return dict(zip(FATE_STYLES, values, strict=True))


def _magnitudes_axis(magnitudes: Magnitudes, scale: float, window: tuple[float, float] | None) -> _PowersAxis:
    """An axis over `window`, or else over the values with and without the scale and one power more on each side."""
    shift = math.log2(scale)
    low, high = window or (magnitudes.lowest + min(shift, 0) - 1, magnitudes.highest + max(shift, 0) + 1)
    return _PowersAxis(low=low, high=high, left=_NAMES, right=WIDTH - _LOSSES)


def _bounds(form: NumberFormat, axis: _PowersAxis) -> Iterator[tuple[float, str]]:
    """(power, text) of the bounds within the axis, the highest first, so that its text stands above all others."""
    # Half of the smallest number and what lies below is rounded to 0. In `say`, None is the learner's language.
    zero, normal, largest = (math.log2(v) for v in (form.smallest_subnormal / 2, form.smallest_normal, form.largest))
    bounds = [
        (largest, words["values.above"].say(None, number_text(form.largest))),
        (normal, words["values.from"].say(None, power_text(normal))),
        (zero, words["values.up_to"].say(None, power_text(zero))),
    ]
    return ((power, text) for power, text in bounds if axis.has(power))


def _bound_line(x: float, top: float, bottom: float, text: str) -> Iterator[Label | Line]:
    """A dashed line at a bound, with its text on the left."""
    yield Line(x1=x, y1=top, x2=x, y2=bottom, colour="ink", width=1.2, dashed=True, tooltip=text)
    yield Label(x=x - 6, y=top + _BOUND_LANE / 2, text=text, size=_FONT, anchor="end")


def _bars(
    magnitudes: Magnitudes, scale: float, form: NumberFormat | None, axis: _PowersAxis, bottom: float
) -> Iterator[Rect]:
    """Each bin as a bar that shows what the format makes of it; without a format, the thin outline."""
    tallest, shift = max(share for _, share in magnitudes.bins()), math.log2(scale)
    for left, share in magnitudes.bins():  # the power of two at which a bin starts, and its share of all values
        power = left + shift
        if not axis.low <= power <= axis.high - 1:  # a bin is one power of two wide and must fit on the axis
            continue
        x, height = axis.clamped_x(power), share / tallest * _BARS
        width = max(axis.clamped_x(power + 1) - x - 1, 0.5)
        style = {"stroke": "rule"} if form is None else FATE_STYLES[_fate_of_bin(form, power)]
        tooltip = "" if form is None else _bin_text(share, power)
        yield Rect(x=x, y=bottom - height, width=width, height=height, tooltip=tooltip, **style)


def _fate_of_bin(form: NumberFormat, power: float) -> str:
    """What becomes of the middle of the bin that starts at this power."""
    fate = form.rounded_class(2.0 ** (power + 0.5))
    return {"0": "rounded to 0", "∞": "too large", "largest": "too large"}.get(fate, fate)


def _range(
    form: NumberFormat, is_chosen: bool, shares: Survival, axis: _PowersAxis, top: float
) -> Iterator[Rect | Label | Line]:
    """The name of a format, its range as a bar, with an arrow where it goes on beyond the axis, and what it loses."""
    middle = top + _RANGE / 2
    low, normal, high = map(math.log2, (form.smallest_subnormal, form.smallest_normal, form.largest))
    colour = "ink" if is_chosen else "muted"
    yield Label(x=MARGIN, y=middle, text=form.name, size=12, bold=is_chosen, colour=colour)
    # The largest number is no power of two, so the text gets it as a number.
    powers = {"low": power_text(low), "normal": power_text(normal), "high": form.largest}
    tooltip = words("values.range", name=form.name, **powers)
    outline = {"stroke": "ink", "stroke_width": 1.5} if is_chosen else {}
    yield from _range_bars(form, axis, top, height=_RANGE, tooltip=tooltip, **outline)
    # An arrow of 16 pixels, to the left or right, where the range goes on beyond that end of the axis.
    for goes_on, start, length in ((low < axis.low, axis.left, -16), (high > axis.high, axis.right, 16)):
        if goes_on:
            yield Line(x1=start, y1=middle, x2=start + length, y2=middle, colour=colour, width=2, arrow=True)
    loss, x = percent(shares.zero + shares.overflow), axis.right + _LOSSES - 14  # loss: subnormal values do not count
    yield Label(x=x, y=middle, text=loss, size=_FONT, anchor="end", colour=colour, bold=is_chosen)


def _magnitudes_summary(magnitudes: Magnitudes, chosen: NumberFormat, scale: float) -> str:
    """The shares of each fate in every format, for readers who cannot see the picture."""
    parts = []
    for form in NUMBER_FORMATS.values():
        by_fate = _shares_by_fate(surviving(magnitudes, form, scale))
        shares = [f"{words(f'fate.{fate}')} {percent(share)}" for fate, share in by_fate.items()]
        parts.append(words("values.lists", name=form.name, shares=shares))
    counted = {"count": magnitudes.counted, "values": values_word(magnitudes.name), "scale": scale_text(scale)}
    return words("values.summary", **counted, name=chosen.name, parts=parts)


def values_word(name: str) -> str:
    """What values are called: those that the course recorded in the reader's language, a learner's own as they are."""
    return words(f"values.names.{name}") if f"values.names.{name}" in words else name


def _bin_text(share: float, power: float) -> str:
    """A bin in words: its share of all values, and its limits."""
    return words("values.bin", share=percent(share), low=power_text(power), high=power_text(power + 1))


def _fate_text(fate: str, share: float) -> str:
    """A fate with its share of all values, for the legend."""
    return words("fate_share", fate=words[f"fate.{fate}"], share=percent(share))
