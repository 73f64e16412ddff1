"""Pictures of ranks that die: losses by the clock and by step, heartbeats, generations over the steps, partings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from helpers.draw.axis import round_step
from helpers.draw.curves import Axis, curves_scene
from helpers.draw.palette import kind_style
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, text_width
from helpers.learner.words import book

say = book("pictures")
_ROW, _BAR, _PITCH, _RIGHT = 40.0, 26.0, 50.0, 20.0  # pixels: of beats, of generations, the right margin
_NEW = kind_style("forward")
_AGAIN = kind_style("backward")
_WAITS = kind_style("waiting")
_STANDS = {"fill": "sign", "texture": "lines"}
Beats = Mapping[int, Sequence[tuple[float, int, bool]]]


def loss_over_time_scene(history: Sequence[tuple[int, int, float, float]], *, death: str, title: str) -> Scene:
    """history: (generation, step, loss, seconds) in order. A curve per generation, up to four, a dot per step; between
    two of them nobody trains. death: words at each generation's end but the last."""
    curves: dict[str, list[tuple[float, float]]] = {}
    start = history[0][3]
    for generation, _, loss, seconds in history:
        curves.setdefault(say("clock.generation", number=generation), []).append((seconds - start, loss))
    runs = list(curves.values())
    gaps = [(one[-1][0], two[0][0], say("clock.gap")) for one, two in zip(runs, runs[1:], strict=False)]
    axes = dict(x=_axis(say("clock.seconds"), 0, history[-1][3] - start), y=_losses([loss for *_, loss, _ in history]))
    marks = [(*run[-1], death) for run in runs[:-1]]
    return curves_scene(curves, **axes, dots=True, gaps=gaps, marks=marks, title=title)


def losses_by_step_scene(runs: Mapping[str, Mapping[int, float]], *, title: str) -> Scene:
    """Losses by step of two runs, the first of them as a band below the other."""
    below, above = runs
    curves = {name: sorted(losses.items()) for name, losses in runs.items()}
    axes = dict(x=_axis(say("closed.step"), 0, max(runs[below])), y=_losses(runs[below].values()))
    paints = {below: "buffers", above: "ink"}
    return curves_scene(curves, **axes, dots=True, paints=paints, bands=[below], title=title)


def _losses(losses: Iterable[float]) -> Axis:
    return _axis("loss", min(losses := list(losses)), max(losses))


def _axis(name: str, least: float, most: float) -> Axis:
    """Round ticks around what is drawn."""
    step = round_step(most - least, 5)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return Axis(name=name, ticks=[number * step for number in range(first, last + 1)])


def heartbeats_scene(
    beats: Beats, verdicts: Mapping[int, str], *, now: float, title: str, width: float = WIDTH
) -> Scene:
    """A row per rank, a mark per heartbeat, (seconds, step, whether it waits for others); textured without a new step.

    verdicts: what the watcher says of each rank at `now`, the right end. ValueError without a rank.
    """
    if not beats or not now > 0:
        raise ValueError(f"beats_scene got {len(beats)} ranks and now = {now}; give at least one rank, and now above 0")
    head, top = heading(
        title, [(say("beats.new"), _NEW), (say("beats.waits"), _WAITS), (say("beats.stands"), _STANDS)], width
    )
    right = width - _RIGHT - 12 - max(text_width(verdict, 13, bold=True) for verdict in verdicts.values())
    left, bottom = 78.0, top + 14 + len(beats) * _ROW
    items: list[Rect | Label | Line] = [*head]
    for place, (rank, row) in enumerate(beats.items()):
        y = top + 14 + (place + 0.5) * _ROW
        items += [Label(x=14, y=y, text=f"rank {rank}"), Line(x1=left, y1=y, x2=right, y2=y)]
        items.append(Label(x=right + 12, y=y, text=verdicts[rank], size=13, bold=True))
        for before, (seconds, step, waits) in zip([(0.0, -1), *row], row, strict=False):
            at, same = left + seconds / now * (right - left), _WAITS if waits else _STANDS
            paint = same if step == before[1] else _NEW
            tip = say("beats.tip", rank=rank, step=step)
            items.append(Rect(x=at - 5, y=y - 11, width=10, height=22, stroke="ink", tooltip=tip, **paint))
    items.append(Line(x1=right, y1=top + 8, x2=right, y2=bottom, colour="ink", width=2, dashed=True))
    for x, anchor, text in ((left, "start", "0 s"), (right, "middle", say("beats.now", seconds=f"{now:g}"))):
        items.append(Label(x=x, y=bottom + 14, text=text, anchor=anchor, colour="muted"))
    summary = " ".join(say("beats.row", rank=rank, verdict=verdicts[rank]) for rank in beats)
    return Scene(width=width, height=bottom + 30, title=title, summary=summary, items=items)


def generations_scene(
    rows: Sequence[tuple[str, int, int, str]], *, steps: int, every: int, title: str, width: float = WIDTH
) -> Scene:
    """A bar per generation: (its name and ranks, first step, last step, why it ended). Striped: steps done again.

    every: steps between two checkpoints, which are dashed lines. ValueError without a generation.
    """
    if not rows:
        raise ValueError("generations_scene got no generation; give at least one")
    head, top = heading(title, [(say("generations.new"), _NEW), (say("generations.again"), _AGAIN)], width)
    left = 26 + max(text_width(name, 12) for name, *_ in rows)
    step, bottom = (width - left - _RIGHT) / steps, top + 14 + len(rows) * _PITCH
    items: list[Rect | Label | Line] = [*head]
    for number in range(0, steps + 1, every):
        x = left + number * step
        items.append(Line(x1=x, y1=top + 6, x2=x, y2=bottom + 4, colour="muted", dashed=0 < number < steps))
        items.append(Label(x=x, y=bottom + 14, text=f"{number}", anchor="middle", colour="muted"))
    reached = 0
    for place, (name, first, last, why) in enumerate(rows):
        y = top + 14 + place * _PITCH
        items.append(Label(x=14, y=y + _BAR / 2, text=name))
        items += _bar(first, last, reached, why, left, y, step, width)
        reached = max(reached, last)
    axis = {"x": (left + width - _RIGHT) / 2, "y": bottom + 32, "anchor": "middle", "colour": "muted"}
    items.append(Label(**axis, text=say("generations.axis", every=every)))
    summary = " ".join(say("generations.row", name=n, first=first, last=last, why=why) for n, first, last, why in rows)
    return Scene(width=width, height=bottom + 46, title=title, summary=summary, items=items)


def _bar(
    first: int, last: int, reached: int, why: str, left: float, y: float, step: float, width: float
) -> Iterator[Rect | Label]:
    """The steps done again, the new ones, and the words at the right end or, where there is no room, at the left."""
    for start, end, paint in ((first, min(last, reached), _AGAIN), (max(first, reached + 1), last, _NEW)):
        if end >= start:
            yield Rect(x=left + (start - 1) * step, y=y, width=(end - start + 1) * step - 1, height=_BAR, **paint)
    wide, x = text_width(why, 12, bold=True), left + last * step + 8
    if x + wide > width:
        x = left + (first - 1) * step - 8 - wide
    yield Rect(x=x - 3, y=y + 4, width=wide + 6, height=_BAR - 8, fill="surface")
    yield Label(x=x, y=y + _BAR / 2, text=why, bold=True)


def loss_differences_scene(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, stopped: int, title: str, width: float = WIDTH
) -> Scene:
    """A small plot per name: by how much a loss is off that of the undisturbed run, a dot per step, zero in the middle.

    runs: (losses undisturbed, losses of the other). stopped: steps before the stop, which is dashed. Each plot has a
    scale of its own, and says the step from which it is off, and the most that it is off by.
    """
    head, top = heading(title, [(say("partings.off"), {"fill": "sign"})], width)
    wide, high, steps = (width - 28) / len(runs), 130.0, len(next(iter(runs.values()))[0])
    items, said = [*head], []
    for place, (name, (calm, other)) in enumerate(runs.items()):
        left, off = 14 + place * wide, [loss - least for least, loss in zip(calm, other, strict=True)]
        first, most = next((n for n, loss in enumerate(off, 1) if loss), 0), max(map(abs, off))
        tells = say("partings.from", step=first) if first else say("partings.equal")
        middle, below = {"x": left + wide / 2 - 6, "anchor": "middle"}, top + high + 46
        items += [Label(**middle, y=top + 10, text=name, bold=True), Label(**middle, y=top + 28, text=tells)]
        items += _plot(off, stopped, left, top + 40, wide - 12, high)
        items += [Label(x=left, y=below + 4, text="1", colour="muted")]
        items.append(Label(x=left + wide - 12, y=below + 4, text=f"{steps}", anchor="end", colour="muted"))
        items.append(Label(**middle, y=below + 4, text=say("partings.most", most=f"{most:.2g}"), colour="muted"))
        said.append(f"{name}: {tells}.")
    middle = {"x": width / 2, "anchor": "middle", "colour": "muted"}
    items.append(Label(**middle, y=top + high + 72, text=say("partings.axis", stopped=stopped)))
    return Scene(width=width, height=top + high + 84, title=title, summary=" ".join(said), items=items)


def _plot(off: Sequence[float], stopped: int, x: float, y: float, wide: float, high: float) -> Iterator[Rect | Line]:
    yield Rect(x=x, y=y, width=wide, height=high, stroke="rule")
    yield Line(x1=x, y1=y + high / 2, x2=x + wide, y2=y + high / 2, colour="muted")
    pitch, most = wide / len(off), max(map(abs, off)) or 1.0
    at = x + pitch * stopped
    yield Line(x1=at, y1=y, x2=at, y2=y + high, colour="ink", dashed=True)
    spots = [(x + pitch * (n + 0.5), y + high / 2 * (1 - 0.85 * loss / most)) for n, loss in enumerate(off)]
    for (x1, y1), (x2, y2) in zip(spots, spots[1:], strict=False):
        yield Line(x1=x1, y1=y1, x2=x2, y2=y2, colour="sign", width=2)
    for across, down in spots:
        yield Rect(x=across - 3, y=down - 3, width=6, height=6, radius=2.9, fill="ink")
