"""Draws what chapter 12 shows of failures: losses, heartbeats, generations, healed replicas, a week, and intervals.

A generation is a run of the job between two restarts. A heartbeat is a message by which a rank says that it is alive,
and at which step. A replica that missed steps is healed when another one sends it its weights. A Week is a simulated
one: its stretches are work that is kept, work that is lost with a failure, and repairs, each from `start` to `end` in
seconds; a stretch of kept work includes the time for saving checkpoints. The effective time is the share of all time
that makes progress. The fault explorer shows both; `duration_text` writes times as "59 min" or "1.8 h".

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from helpers.draw.axis import column_lines
from helpers.draw.palette import kind_style
from helpers.draw.plot import Axis, Mark, curves_scene
from helpers.draw.rows import BarRow, BarStyle, Part, rows_scene
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    centred_label,
    dot,
    heading,
    polyline,
    text_width,
)
from helpers.learner.words import book
from helpers.predict.failures import DAY, Stretch, Week, daly_interval, effective_time

words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
healing_words = book("healing")  # what a reader sees, by name, in the learner's language: learner/words/healing.yaml
_RIGHT = 20.0  # pixels right of the rows
_BEATS_PITCH = 40.0  # pixels from rank to rank
_GENERATIONS = BarStyle(height=26, pitch=44)
_PLOT_HEIGHT = 130.0  # pixels of each plot of loss_differences_scene
_FIRST_TIME = kind_style("forward")  # steps done for the first time, or heartbeats with a new step
_AGAIN = kind_style("backward")
_WAITS = kind_style("waiting")
_HANGS = {"fill": "sign", "texture": "lines"}  # heartbeats with the step of the one before, of a rank that hangs
Heartbeats = Mapping[int, Sequence[tuple[float, int, bool]]]  # rank -> (seconds, step, whether it waits for others)
# Pixels of healing: left of the rows, from row to row, right of them, and the height of a bar.
_HEALING_LEFT, _HEALING_PITCH, _HEALING_RIGHT, _HEALING_BAR = 84.0, 38.0, 16.0, 26.0
# The colour of a round that a replica did, of one done in vain, and of healing.
_HEALING_KINDS = {"done": "forward", "vain": "waiting", "healed": "communication"}
# Of a week and of the effective time:
failures_words = book("failures")  # what a reader sees, by name, in the learner's language: learner/words/failures.yaml
# What a week consists of, to the kind of the palette whose colour it has.
KINDS = {"work": "forward", "saves": "optimizer", "lost": "weight_grad", "repair": "waiting"}
_DAY_LEFT, _DAY_BAR, _DAY_PITCH = 74.0, 20.0, 30.0  # pixels: left of the days, a day's height, from day to day
_THINNEST = 1.5  # pixels of the strip for the saves, at least
_HOURS = range(0, 25, 4)  # the hours that have a line
_MINUTES = (0.1, 1, 10, 100, 1000)  # the ticks of the curve's axis
_NUM_POINTS = 120  # of the curve
_ABOVE, _FAR_ABOVE, _BELOW = -33, -62, 10  # pixels from a marked point down to the top of its words
# (from so many seconds on, seconds of the unit, the unit's name in the words)
_TIME_UNITS = ((2 * DAY, DAY, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (0.0, 1.0, "s"))


# -- losses ----------------------------------------------------------------------------------------------------------
def loss_over_time_scene(history: Sequence[tuple[int, int, float, float]], *, death: str, title: str) -> Scene:
    """The loss over seconds: a curve per generation, up to four, with a dot per step, and a gap where nobody trains.

    `history` lists (generation, step, loss, seconds) in order. `death` is the text at the end of each generation but
    the last, which no death ended.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    start = history[0][3]  # seconds
    for generation, _, loss, seconds in history:
        curves.setdefault(words("clock.generation", number=generation), []).append((seconds - start, loss))
    generations = list(curves.values())
    # From the last step of a generation to the first step of the next one.
    gaps = [(before[-1][0], after[0][0], words("clock.gap")) for before, after in pairwise(generations)]
    x = Axis.around(words("clock.seconds"), [0, history[-1][3] - start])
    y = Axis.around("loss", [loss for _, _, loss, _ in history])
    marks = [(*points[-1], death) for points in generations[:-1]]
    return curves_scene(curves, x=x, y=y, dots=True, gaps=gaps, marks=marks, title=title)


def loss_differences_scene(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, stopped: int, title: str
) -> Scene:
    """A small plot per name: by how much its losses differ from those of the undisturbed run, with a dot per step.

    `runs` maps a name to (losses undisturbed, losses of the other run). `stopped` is the number of steps before the
    stop, which is a dashed line. Each plot has a scale of its own with zero in the middle, and says from which step on
    the losses differ, and by how much at most.
    """
    # The items of title and legend, and the y where these end. The texts of this picture are called partings, since the
    # losses of two runs part.
    items, top = heading(title, [(words("partings.off"), {"fill": "sign"})])
    pitch, num_steps = (WIDTH - 28) / len(runs), len(next(iter(runs.values()))[0])
    sentences = []
    for number, (name, (undisturbed, other)) in enumerate(runs.items()):
        left = MARGIN + number * pitch
        middle, right, below = left + pitch / 2 - 6, left + pitch - 12, top + _PLOT_HEIGHT + 50
        differences = [loss - expected for expected, loss in zip(undisturbed, other, strict=True)]
        first_step = next((step for step, difference in enumerate(differences, 1) if difference), 0)  # 0: none differs
        verdict = words("partings.from", step=first_step) if first_step else words("partings.equal")
        items += [centred_label(middle, top + 10, name, bold=True), centred_label(middle, top + 28, verdict)]
        items += _differences_plot(differences, stopped, left, top + 40, pitch - 12)
        items.append(Label(x=left, y=below, text="1", colour="muted"))
        items.append(Label(x=right, y=below, text=f"{num_steps}", anchor="end", colour="muted"))
        most = words("partings.most", most=f"{max(map(abs, differences)):.2g}")
        items.append(centred_label(middle, below, most, colour="muted"))
        sentences.append(f"{name}: {verdict}.")
    axis_text = words("partings.axis", stopped=stopped)
    items.append(centred_label(WIDTH / 2, top + _PLOT_HEIGHT + 72, axis_text, colour="muted"))
    return Scene(height=top + _PLOT_HEIGHT + 84, title=title, summary=" ".join(sentences), items=items)


def _differences_plot(
    differences: Sequence[float], stopped: int, x: float, y: float, width: float
) -> Iterator[Rect | Line]:
    """A frame with a line at zero, a dashed line at the stop, and the differences as a line with dots."""
    zero_y, pitch = y + _PLOT_HEIGHT / 2, width / len(differences)
    yield Rect(x=x, y=y, width=width, height=_PLOT_HEIGHT, stroke="rule")
    yield Line(x1=x, y1=zero_y, x2=x + width, y2=zero_y, colour="muted")
    stop_x, most = x + pitch * stopped, max(map(abs, differences)) or 1.0
    yield Line(x1=stop_x, y1=y, x2=stop_x, y2=y + _PLOT_HEIGHT, colour="ink", dashed=True)
    # The largest difference reaches 85 % of the way from the middle to the edge.
    points = [
        (x + pitch * (index + 0.5), y + _PLOT_HEIGHT / 2 * (1 - 0.85 * difference / most))
        for index, difference in enumerate(differences)
    ]
    yield from polyline(points, colour="sign", width=2)
    yield from (dot(point_x, point_y, 6, fill="ink") for point_x, point_y in points)


# -- heartbeats ------------------------------------------------------------------------------------------------------
def heartbeats_scene(beats: Heartbeats, verdicts: Mapping[int, str], *, now: float, title: str) -> Scene:
    """A row per rank with a mark per heartbeat; a mark is textured where the heartbeat reports no new step.

    `verdicts` is what the watcher says about each rank at `now`, the right end of the axis. Raises ValueError without a
    rank.
    """
    if not beats or not now > 0:
        raise ValueError(
            f"heartbeats_scene got {len(beats)} ranks and now = {now}; give at least one rank, and now above 0"
        )
    styles = {"beats.new": _FIRST_TIME, "beats.waits": _WAITS, "beats.stands": _HANGS}  # text in the legend -> style
    items, top = heading(title, [(words(name), style) for name, style in styles.items()])
    right = WIDTH - _RIGHT - 12 - max(text_width(verdict, 13, bold=True) for verdict in verdicts.values())
    left, bottom = 78.0, top + 14 + len(beats) * _BEATS_PITCH
    for row, (rank, of_rank) in enumerate(beats.items()):
        y = top + 14 + (row + 0.5) * _BEATS_PITCH
        items += [Label(x=MARGIN, y=y, text=f"rank {rank}"), Line(x1=left, y1=y, x2=right, y2=y)]
        items.append(Label(x=right + 12, y=y, text=verdicts[rank], size=13, bold=True))
        last_step = -1  # the step that the heartbeat before reported
        for seconds, step, is_waiting in of_rank:
            x = left + seconds / now * (right - left)
            style = _FIRST_TIME if step != last_step else _WAITS if is_waiting else _HANGS
            tooltip, last_step = words("beats.tip", rank=rank, step=step), step
            items.append(Rect(x=x - 5, y=y - 11, width=10, height=22, stroke="ink", tooltip=tooltip, **style))
    items.append(Line(x1=right, y1=top + 8, x2=right, y2=bottom, colour="ink", width=2, dashed=True))
    items.append(Label(x=left, y=bottom + 14, text="0 s", colour="muted"))
    items.append(centred_label(right, bottom + 14, words("beats.now", seconds=f"{now:g}"), colour="muted"))
    summary = " ".join(words("beats.row", rank=rank, verdict=verdicts[rank]) for rank in beats)
    return Scene(height=bottom + 30, title=title, summary=summary, items=items)


# -- generations -----------------------------------------------------------------------------------------------------
def generations_scene(rows: Sequence[tuple[str, int, int, str]], *, steps: int, every: int, title: str) -> Scene:
    """A bar per generation over the steps that it did; steps that an earlier generation had done are striped.

    `rows` lists (name with its ranks, first step, last step, why it ended). `every` is the number of steps between two
    checkpoints, which are dashed lines. Raises ValueError without a generation.
    """
    bars, reached = [], 0  # reached: the last step that an earlier generation did
    for name, first, last, ending in rows:
        again, new = min(last, reached) - first + 1, last - max(first - 1, reached)
        parts = [Part(text="", kind=kind, size=n) for kind, n in (("backward", again), ("forward", new)) if n > 0]
        bars.append(BarRow(name=name, parts=parts, end=ending, start=first - 1))
        reached = max(reached, last)
    legend = [(words("generations.new"), _FIRST_TIME), (words("generations.again"), _AGAIN)]
    summary = " ".join(
        words("generations.row", name=name, first=first, last=last, why=ending) for name, first, last, ending in rows
    )
    columns = [(number, f"{number}") for number in range(0, steps + 1, every)]
    head = {"title": title, "legend": legend, "summary": summary}
    return rows_scene(bars, _GENERATIONS, **head, columns=columns, axis_title=words("generations.axis", every=every))


# -- healing ---------------------------------------------------------------------------------------------------------
def healing_scene(rounds: Sequence[Any], *, title: str) -> Scene:
    """Replicas of a model over the rounds of a run: who took part, what was done in vain, and who was healed by whom.

    A round is an attempt at a step; a replica works in vain where it does not get the sum of all gradients in the end.
    A row per replica and a column per round; `rounds` are QuorumRounds of `helpers.elastic`. Each has its `step`, its
    `members`, the replicas for which it is `done`, those that are `behind` and therefore healed, the `source` of their
    weights, and the number of `samples`. An arrow leads from the source to the one that is healed. Below stand the step
    and the number of its samples.
    Raises ValueError without a round.
    """
    if not rounds:
        raise ValueError("healing_scene got no round; give the rounds of a run")
    legend = [(healing_words(name), kind_style(kind)) for name, kind in _HEALING_KINDS.items()]
    items, top = heading(title, legend)
    replicas = sorted({replica for each_round in rounds for replica in each_round.members})
    tops = {replica: top + 10 + row * _HEALING_PITCH for row, replica in enumerate(replicas)}
    pitch = (WIDTH - _HEALING_LEFT - _HEALING_RIGHT) / len(rounds)
    steps_y = top + 22 + len(replicas) * _HEALING_PITCH
    samples_y = steps_y + 18
    for replica, y in tops.items():
        middle = y + _HEALING_BAR / 2
        items.append(Label(x=MARGIN, y=middle, text=healing_words("copy", copy=replica)))
        items.append(Line(x1=_HEALING_LEFT, y1=middle, x2=WIDTH - _HEALING_RIGHT, y2=middle, dashed=True))
    for column, each_round in enumerate(rounds):
        items += _round(each_round, tops, _HEALING_LEFT + column * pitch, pitch)
        samples = f"{each_round.samples}" if each_round.done else "–"
        # `step` is the number of steps before the round, so the round itself is step + 1.
        for y, text in ((steps_y, f"{each_round.step + 1}"), (samples_y, samples)):
            items.append(centred_label(_HEALING_LEFT + (column + 0.5) * pitch, y, text))
    for y, name in ((steps_y, "step"), (samples_y, "samples")):
        items.append(Label(x=MARGIN, y=y, text=healing_words(name), colour="muted"))
    summary = " ".join(_replica_sentence(rounds, replica) for replica in replicas)
    return Scene(height=samples_y + 16, title=title, summary=summary, items=items)


def _round(each_round: Any, tops: dict[int, float], x: float, pitch: float) -> Iterator[Rect | Line]:
    """A column: a bar for each member, and an arrow to each one that is healed. `tops` has the y of each replica."""
    healed = _HEALING_KINDS["healed"]
    for replica in each_round.members:
        name = "done" if replica in each_round.done else "vain"
        step = f"{healing_words('step')} {each_round.step + 1}"
        tooltip = f"{healing_words('copy', copy=replica)} · {step} · {healing_words(name)}"
        style = {"radius": 2, "tooltip": tooltip, **kind_style(_HEALING_KINDS[name])}
        yield Rect(x=x + 2, y=tops[replica], width=pitch - 4, height=_HEALING_BAR, **style)
    for replica in each_round.behind:
        source_top, top = tops[each_round.source], tops[replica]
        yield Rect(x=x + 2, y=top, width=7, height=_HEALING_BAR, fill=healed)
        if top > source_top:  # from the lower edge of the source to the upper edge of the healed one, or the reverse
            start, end = source_top + _HEALING_BAR, top
        else:
            start, end = source_top, top + _HEALING_BAR
        yield Line(x1=x + 5, y1=start, x2=x + 5, y2=end, colour=healed, width=3, arrow=True)


def _replica_sentence(rounds: Sequence[Any], replica: int) -> str:
    """How many steps a replica did, and by whom it was healed, for readers who cannot see the picture."""
    healings = (each_round for each_round in rounds if replica in each_round.behind)
    healed = "".join(healing_words("before", source=healing.source, step=healing.step + 1) for healing in healings)
    num_done = sum(replica in each_round.done for each_round in rounds)
    num_steps = sum(bool(each_round.done) for each_round in rounds)
    return healing_words("row", copy=replica, num=num_done, all=num_steps, healed=healed)


def duration_text(seconds: float) -> str:
    """A duration with three digits, from "10 s" over "59 min" to "1.8 h" and "154 days"."""
    size, unit = next((size, unit) for least, size, unit in _TIME_UNITS if seconds >= least)
    value = seconds / size
    return failures_words(f"time.{unit}", n=f"{value:.3g}" if value < 100 else f"{value:,.0f}")


# -- a week ----------------------------------------------------------------------------------------------------------
def week_scene(week: Week, *, title: str) -> Scene:
    """A row per day: work that is kept with a strip for its saves, lost work, repairs, and a tick at each failure."""
    # The entries of the legend: each kind with its share of the week.
    shares = {
        kind: failures_words("of", kind=failures_words(f"kind.{kind}"), share=share)
        for kind, share in week.shares.items()
    }
    legend = [(text, kind_style(KINDS[kind])) for kind, text in shares.items()]
    # The items of title and legend, and the y where these end.
    items, top = heading(title, [*legend, (failures_words("failure"), {"fill": "ink"})])
    num_days = -int(-week.seconds // DAY)  # rounded up; DAY is in seconds
    scale = (WIDTH - _DAY_LEFT - _RIGHT) / DAY
    top += 10
    bottom = top + num_days * _DAY_PITCH - 6
    items += column_lines(((_DAY_LEFT + hour * 3600 * scale, str(hour)) for hour in _HOURS), top - 6, bottom)
    items.append(centred_label(_DAY_LEFT + DAY * scale / 2, bottom + 28, failures_words("hours"), 11, colour="muted"))
    for day in range(num_days):
        y, start = top + day * _DAY_PITCH, day * DAY
        items.append(Label(x=MARGIN, y=y + _DAY_BAR / 2, text=failures_words("day", number=day + 1), size=12))
        for stretch in week.stretches:
            left, right = max(stretch.start, start), min(stretch.end, start + DAY)
            if left < right:
                items += _stretch_bar(stretch, _DAY_LEFT + (left - start) * scale, y, (right - left) * scale)
        for failure in week.failures:
            if start <= failure < start + DAY:
                x = _DAY_LEFT + (failure - start) * scale
                items.append(Line(x1=x, y1=y - 5, x2=x, y2=y + 2, colour="ink", width=1.5))
    texts = {"seconds": duration_text(week.seconds), "shares": list(shares.values())}
    return Scene(
        height=bottom + 44, title=title, summary=failures_words("week", count=len(week.failures), **texts), items=items
    )


def _stretch_bar(stretch: Stretch, x: float, y: float, width: float) -> Iterator[Rect]:
    """The part of a stretch that lies on this day; below work that is kept a strip for its saves.

    The strip is as high as the saves' share of the stretch, but can always be seen.
    """
    duration = stretch.end - stretch.start
    kind = "work" if stretch.kind == "kept" else stretch.kind
    style = kind_style(KINDS[kind]) if width > 3 else {"fill": KINDS[kind]}
    tooltip = failures_words(
        "stretch", kind=failures_words(f"kind.{kind}"), seconds=duration_text(stretch.work or duration)
    )
    saves = duration - stretch.work if kind == "work" else 0.0  # `work` are the seconds without those for saving
    strip = max(_THINNEST, _DAY_BAR * saves / duration) if saves > 1e-6 else 0.0  # less than 1e-6 s is a rounding error
    yield Rect(x=x, y=y, width=width, height=_DAY_BAR - strip, tooltip=tooltip, **style)
    if strip:
        tooltip = failures_words("stretch", kind=failures_words("kind.saves"), seconds=duration_text(saves))
        yield Rect(x=x, y=y + _DAY_BAR - strip, width=width, height=strip, fill=KINDS["saves"], tooltip=tooltip)


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
        text = failures_words(f"curve.{name}", interval=duration_text(seconds), share=shares[name])
        lower, on_left = positions[name]
        marks.append(Mark(min(max(seconds / 60, low), high), 100 * shares[name], text, lower, on_left))
    curve = [(each, 100 * effective_time(interval=60 * each, **job)) for each in minutes]
    x = Axis(name=failures_words("curve.x"), ticks=_MINUTES, log=True)
    y = Axis(name=failures_words("curve.y"), ticks=range(0, 101, 20))
    return curves_scene(
        {failures_words("curve.name"): curve}, x=x, y=y, title=failures_words("curve.title"), marks=marks
    )


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
