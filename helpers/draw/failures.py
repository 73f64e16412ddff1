"""What failures cost a long job: a week of it, day by day, and its effective time by the interval between two saves."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.curves import Axis, Mark, curves_scene
from helpers.draw.palette import kind_style
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading
from helpers.learner.words import book
from helpers.predict.failures import DAY, Stretch, Week, daly_interval, effective_time

say = book("failures")
KINDS = {"work": "forward", "saves": "optimizer", "lost": "weight_grad", "repair": "waiting"}
_LEFT, _RIGHT, _BAR, _LEAST, _PITCH, _HOURS = 74.0, 20.0, 20.0, 1.5, 30.0, range(0, 25, 4)
_MINUTES = (0.1, 1, 10, 100, 1000)  # of the curve's axis
_POINTS = 120
_UNITS = ((2 * DAY, DAY, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (0.0, 1.0, "s"))


def duration_text(seconds: float) -> str:
    """A time with three digits, from "10 s" over "59 min" to "1.8 h" and "154 days"."""
    size, unit = next((size, unit) for least, size, unit in _UNITS if seconds >= least)
    value = seconds / size
    return say(f"time.{unit}", n=f"{value:.3g}" if value < 100 else f"{value:,.0f}")


def week_scene(week: Week, *, title: str, width: float = WIDTH) -> Scene:
    """A row for each day: work that is kept with a strip for its saves, lost work, repairs, a tick at each failure."""
    shares = {kind: say("of", kind=say(f"kind.{kind}"), share=share) for kind, share in week.shares.items()}
    looks = [(text, kind_style(KINDS[kind])) for kind, text in shares.items()]
    head, top = heading(title, [*looks, (say("failure"), {"fill": "ink"})], width)
    scale, days = (width - _LEFT - _RIGHT) / DAY, range(-int(-week.seconds // DAY))
    top += 10
    items: list[Rect | Label | Line] = [*head, *_hours(len(days), top, scale)]
    for day in days:
        y, start = top + day * _PITCH, day * DAY
        items.append(Label(x=14, y=y + _BAR / 2, text=say("day", number=day + 1), size=12))
        for stretch in week.stretches:
            left, right = max(stretch.start, start), min(stretch.end, start + DAY)
            if left < right:
                items += _bar(stretch, _LEFT + (left - start) * scale, y, (right - left) * scale)
        for failure in week.failures:
            if start <= failure < start + DAY:
                x = _LEFT + (failure - start) * scale
                items.append(Line(x1=x, y1=y - 5, x2=x, y2=y + 2, colour="ink", width=1.5))
    said = say("week", count=len(week.failures), seconds=duration_text(week.seconds), shares=list(shares.values()))
    height = top + len(days) * _PITCH + 38
    return Scene(width=width, height=height, title=title, summary=said, items=tuple(items))


def effective_time_scene(
    *, mtbf: float, save: float, repair: float = 0.0, interval: float | None = None, width: float = WIDTH
) -> Scene:
    """The share of the time that is kept, by interval, with where it is best (Daly), and at `interval` if one is given.

    Times in seconds; the axis goes from 6 s to 1000 min.
    """
    job = {"save": save, "mtbf": mtbf, "repair": repair}
    low, high = _MINUTES[0], _MINUTES[-1]
    minutes = [low * (high / low) ** (number / _POINTS) for number in range(_POINTS + 1)]
    best = daly_interval(save, mtbf)
    chosen = {"best": best} if interval in (None, best) else {"best": best, "yours": interval}
    shares = {name: effective_time(interval=seconds, **job) for name, seconds in chosen.items()}
    words = {n: say(f"curve.{n}", interval=duration_text(seconds), share=shares[n]) for n, seconds in chosen.items()}
    yours, low_down = chosen.get("yours", best), shares.get("yours", 1.0) < 0.15
    lower, on_left = (-33, -33), (yours >= best, yours < best)  # words away from each other, above the curve
    if min(best, yours) < 90 or max(best, yours) > 4500:  # near an end of the axis both stand on one side
        lower = (-62 if low_down and shares["best"] < 0.3 else -33, -33 if low_down else 10)
        on_left = (False, yours > best and not low_down)
    marks = [
        Mark(min(max(seconds / 60, low), high), 100 * shares[name], words[name], *place)
        for (name, seconds), *place in zip(chosen.items(), lower, on_left, strict=False)
    ]
    return curves_scene(
        {say("curve.name"): [(each, 100 * effective_time(interval=60 * each, **job)) for each in minutes]},
        x=Axis(name=say("curve.x"), ticks=_MINUTES, log=True),
        y=Axis(name=say("curve.y"), ticks=range(0, 101, 20)),
        title=say("curve.title"),
        marks=marks,
        width=width,
    )


def _hours(days: int, top: float, scale: float) -> Iterator[Label | Line]:
    bottom = top + days * _PITCH - 6
    for hour in _HOURS:
        x = _LEFT + hour * 3600 * scale
        yield Line(x1=x, y1=top - 6, x2=x, y2=bottom)
        yield Label(x=x, y=bottom + 10, text=str(hour), size=11, anchor="middle", colour="muted")
    middle = _LEFT + DAY * scale / 2
    yield Label(x=middle, y=bottom + 28, text=say("hours"), size=11, anchor="middle", colour="muted")


def _bar(stretch: Stretch, x: float, y: float, wide: float) -> Iterator[Rect]:
    """A stretch as far as it lies on this day; below a kept one its saves, as high as their share, at least a line."""
    long = stretch.end - stretch.start
    kind = "work" if stretch.kind == "kept" else stretch.kind
    paint = kind_style(KINDS[kind]) if wide > 3 else {"fill": KINDS[kind]}
    tooltip = say("stretch", kind=say(f"kind.{kind}"), seconds=duration_text(stretch.work or long))
    saves = long - stretch.work if kind == "work" else 0.0
    strip = max(_LEAST, _BAR * saves / long) if saves > 1e-6 else 0.0
    yield Rect(x=x, y=y, width=wide, height=_BAR - strip, tooltip=tooltip, **paint)
    if strip:
        tooltip = say("stretch", kind=say("kind.saves"), seconds=duration_text(saves))
        yield Rect(x=x, y=y + _BAR - strip, width=wide, height=strip, fill=KINDS["saves"], tooltip=tooltip)
