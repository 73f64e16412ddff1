"""Draws what failures cost a long job: a week of it, day by day, and its effective time by the checkpoint interval.

A Week is a simulated one: its stretches are work that is kept, work that is lost with a failure, and repairs, each from
`start` to `end` in seconds; a stretch of kept work includes the time for saving checkpoints. The effective time is the
share of all time that makes progress. The fault explorer shows both pictures, for chapter 12; `duration_text` writes
times as "59 min" or "1.8 h".

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.axis import column_lines
from helpers.draw.curves import Axis, Mark, curves_scene
from helpers.draw.palette import kind_style
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, centred_label, heading
from helpers.learner.words import book
from helpers.predict.failures import DAY, Stretch, Week, daly_interval, effective_time

words = book("failures")  # what a reader sees, by name, in the learner's language: learner/words/failures.yaml
# What a week consists of, to the kind of the palette whose colour it has.
KINDS = {"work": "forward", "saves": "optimizer", "lost": "weight_grad", "repair": "waiting"}
_LEFT, _RIGHT, _BAR, _PITCH = 74.0, 20.0, 20.0, 30.0  # pixels: margins, a day's height, from day to day
_THINNEST = 1.5  # pixels of the strip for the saves, at least
_HOURS = range(0, 25, 4)  # the hours that have a line
_MINUTES = (0.1, 1, 10, 100, 1000)  # the ticks of the curve's axis
_NUM_POINTS = 120  # of the curve
_ABOVE, _FAR_ABOVE, _BELOW = -33, -62, 10  # pixels from a marked point down to the top of its words
# (from so many seconds on, seconds of the unit, the unit's name in the words)
_TIME_UNITS = ((2 * DAY, DAY, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (0.0, 1.0, "s"))


def duration_text(seconds: float) -> str:
    """A duration with three digits, from "10 s" over "59 min" to "1.8 h" and "154 days"."""
    size, unit = next((size, unit) for least, size, unit in _TIME_UNITS if seconds >= least)
    value = seconds / size
    return words(f"time.{unit}", n=f"{value:.3g}" if value < 100 else f"{value:,.0f}")


# -- a week ----------------------------------------------------------------------------------------------------------
def week_scene(week: Week, *, title: str) -> Scene:
    """A row per day: work that is kept with a strip for its saves, lost work, repairs, and a tick at each failure."""
    # The entries of the legend: each kind with its share of the week.
    shares = {kind: words("of", kind=words(f"kind.{kind}"), share=share) for kind, share in week.shares.items()}
    legend = [(text, kind_style(KINDS[kind])) for kind, text in shares.items()]
    # The items of title and legend, and the y where these end.
    items, top = heading(title, [*legend, (words("failure"), {"fill": "ink"})])
    num_days = -int(-week.seconds // DAY)  # rounded up; DAY is in seconds
    scale = (WIDTH - _LEFT - _RIGHT) / DAY
    top += 10
    bottom = top + num_days * _PITCH - 6
    items += column_lines(((_LEFT + hour * 3600 * scale, str(hour)) for hour in _HOURS), top - 6, bottom)
    items.append(centred_label(_LEFT + DAY * scale / 2, bottom + 28, words("hours"), 11, colour="muted"))
    for day in range(num_days):
        y, start = top + day * _PITCH, day * DAY
        items.append(Label(x=MARGIN, y=y + _BAR / 2, text=words("day", number=day + 1), size=12))
        for stretch in week.stretches:
            left, right = max(stretch.start, start), min(stretch.end, start + DAY)
            if left < right:
                items += _stretch_bar(stretch, _LEFT + (left - start) * scale, y, (right - left) * scale)
        for failure in week.failures:
            if start <= failure < start + DAY:
                x = _LEFT + (failure - start) * scale
                items.append(Line(x1=x, y1=y - 5, x2=x, y2=y + 2, colour="ink", width=1.5))
    texts = {"seconds": duration_text(week.seconds), "shares": list(shares.values())}
    return Scene(height=bottom + 44, title=title, summary=words("week", count=len(week.failures), **texts), items=items)


def _stretch_bar(stretch: Stretch, x: float, y: float, width: float) -> Iterator[Rect]:
    """The part of a stretch that lies on this day; below work that is kept a strip for its saves.

    The strip is as high as the saves' share of the stretch, but can always be seen.
    """
    duration = stretch.end - stretch.start
    kind = "work" if stretch.kind == "kept" else stretch.kind
    style = kind_style(KINDS[kind]) if width > 3 else {"fill": KINDS[kind]}
    tooltip = words("stretch", kind=words(f"kind.{kind}"), seconds=duration_text(stretch.work or duration))
    saves = duration - stretch.work if kind == "work" else 0.0  # `work` are the seconds without those for saving
    strip = max(_THINNEST, _BAR * saves / duration) if saves > 1e-6 else 0.0  # less than 1e-6 s is a rounding error
    yield Rect(x=x, y=y, width=width, height=_BAR - strip, tooltip=tooltip, **style)
    if strip:
        tooltip = words("stretch", kind=words("kind.saves"), seconds=duration_text(saves))
        yield Rect(x=x, y=y + _BAR - strip, width=width, height=strip, fill=KINDS["saves"], tooltip=tooltip)


# -- effective time --------------------------------------------------------------------------------------------------
def effective_time_scene(*, mtbf: float, save: float, repair: float = 0.0, interval: float | None = None) -> Scene:
    """The share of the time that makes progress, by the interval between two checkpoints.

    mtbf is the mean time between failures, save and repair are how long a save and a repair take, all in seconds. Marks
    the best interval (Daly's formula), and `interval` if one is given. The axis goes from 6 s to 1000 min.
    """
    job = {"save": save, "mtbf": mtbf, "repair": repair}
    low, high = _MINUTES[0], _MINUTES[-1]
    minutes = [low * (high / low) ** (number / _NUM_POINTS) for number in range(_NUM_POINTS + 1)]
    best = daly_interval(save, mtbf)
    intervals = {"best": best} if interval in (None, best) else {"best": best, "yours": interval}
    shares = {name: effective_time(interval=seconds, **job) for name, seconds in intervals.items()}
    positions = _text_positions(intervals, shares)
    marks = []
    for name, seconds in intervals.items():
        text = words(f"curve.{name}", interval=duration_text(seconds), share=shares[name])
        lower, on_left = positions[name]
        marks.append(Mark(min(max(seconds / 60, low), high), 100 * shares[name], text, lower, on_left))
    curve = [(each, 100 * effective_time(interval=60 * each, **job)) for each in minutes]
    x = Axis(name=words("curve.x"), ticks=_MINUTES, log=True)
    y = Axis(name=words("curve.y"), ticks=range(0, 101, 20))
    return curves_scene({words("curve.name"): curve}, x=x, y=y, title=words("curve.title"), marks=marks)


def _text_positions(intervals: dict[str, float], shares: dict[str, float]) -> dict[str, tuple[float, bool]]:
    """(pixels from the point down to its words, whether these stand on its left) per mark, so that no two texts meet.

    The texts stand above the curve on opposite sides; near an end of the axis, where one side has no room, both stand
    on one side at different heights.
    """
    best, yours = intervals["best"], intervals.get("yours", intervals["best"])
    # `yours` is the interval that was given.
    if min(best, yours) >= 90 and max(best, yours) <= 4500:  # seconds; far from the ends of the axis, 6 and 60,000
        return {"best": (_ABOVE, yours >= best), "yours": (_ABOVE, yours < best)}
    # Below a point near the bottom of the plot there is no room. So where the share of `yours` is low, its words stand
    # above its point, and those of the best interval higher still if that share is low as well.
    is_yours_low = shares.get("yours", 1.0) < 0.15
    best_lower = _FAR_ABOVE if is_yours_low and shares["best"] < 0.3 else _ABOVE
    yours_lower = _ABOVE if is_yours_low else _BELOW
    return {"best": (best_lower, False), "yours": (yours_lower, yours > best and not is_yours_low)}
