"""A pipeline's step, rank by rank: which micro-batch each rank works on, where it idles, and how many it holds.

The number in a bar is its micro-batch. Bars of a rank's later chunks are marked at their foot. On the right: the
micro-batches whose activations the rank holds, at most or at one instant; of a chunk it holds a part of one. Above each
timeline stand its duration and its idle share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.draw.axis import time_axis
from helpers.draw.palette import PAINTS, kind_word, words
from helpers.draw.scene import SMALLEST, WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.draw.timelines import panel_titles, shared_title
from helpers.learner.words import book
from helpers.quantities.units import format_seconds
from helpers.records import KINDS, Span, Timeline
from helpers.schedules import Action

_WORDS = book("timelines").section("pipeline")
_LEFT, _RIGHT, _GAP = 66.0, 170.0, 12.0
_MEMORY = 84.0  # pixels of the bar of the rank that holds most
_IDLE = {"fill": "panel", "texture": "hatch"}
_EDGE = {"stroke_width": 3.0, "radius": 2}


def pipeline_scene(
    *timelines: Timeline,
    title: str = "",
    num_ranks: int | None = None,
    end: float = 0.0,
    instant: float | None = None,
    per_step: int | None = None,
    numbers: bool = True,
    width: float = WIDTH,
) -> Scene:
    """A Scene of one or several Timelines of a pipeline, one above the other; each starts at 0, all share one axis.

    Spans carry the names of `schedules.Action`, such as "2F0". num_ranks tells chunks apart: stage // num_ranks
    (default: the timeline's ranks). end: seconds that the axis reaches at least. instant: a play head at that second;
    then memory is what is held there, otherwise the most that was held. Memory shows where a timeline has `held`.
    per_step: micro-batches of a step, of several that follow each other; each rank's first step gets an outline, and
    no bar a number. numbers=False: none either, where the shape is what counts.
    Raises ValueError without a timeline, or for one without spans.
    """
    if not timelines or not all(timeline.spans for timeline in timelines):
        raise ValueError("pipeline_scene got no timeline, or one without spans: give one, such as that of simulate(…)")
    shown = [_named(timeline.shifted_to_zero()) for timeline in timelines]
    end = max(end, *(timeline.duration for timeline in shown)) or 1e-9
    title = title or shared_title(shown)
    used = {span.kind for timeline in shown for span in timeline.spans}
    items, y = heading(title, [*kinds_legend([k for k in KINDS if k in used]), (words("idle"), _IDLE)], width)
    scale, marks, most = (width - _LEFT - _RIGHT) / end, [], _most(shown, num_ranks)
    for timeline, panel_title in zip(shown, _titles(shown, per_step), strict=True):
        panel = _Panel(timeline, num_ranks or timeline.num_ranks, scale, instant, per_step, most, numbers)
        marks.append(Label(x=14, y=y + 10, text=panel_title, size=12, bold=True, colour="muted"))
        marks += panel.headings(width, y)
        top, bottom = y + 22, y + 22 + timeline.num_ranks * panel.row
        marks += panel.rows(top, width)
        items += time_axis(_LEFT, width - _LEFT - _RIGHT, top, bottom - 4, end, timeline is shown[-1])
        marks += _play_head(instant, timeline, scale, top, bottom)
        y = bottom + _GAP
    pairs = zip(shown, panel_titles(shown), strict=True)
    summary = " ".join(_words(timeline, text, num_ranks or timeline.num_ranks) for timeline, text in pairs)
    return Scene(width=width, height=y + 14, title=title, summary=summary, items=(*items, *marks))


def _play_head(instant: float | None, timeline: Timeline, scale: float, top: float, bottom: float) -> list[Line]:
    if instant is None or instant > timeline.duration:
        return []
    x = _LEFT + instant * scale
    return [Line(x1=x, y1=top - 4, x2=x, y2=bottom, colour="ink", width=2)]


class _Panel:
    def __init__(
        self,
        timeline: Timeline,
        num_ranks: int,
        scale: float,
        instant: float | None,
        per_step: int | None,
        most: float,
        numbers: bool,
    ) -> None:
        self.per_step, self.most, self.numbers = per_step, most or 1.0, numbers and not per_step
        self.timeline, self.num_ranks, self.scale, self.instant = timeline, num_ranks, scale, instant
        self.num_chunks = _num_chunks(timeline, num_ranks)
        self.bar = 24.0 if timeline.num_ranks <= 4 else 18.0 if timeline.num_ranks <= 8 else 12.0
        self.row = self.bar + 5
        self.held = {rank: held_by(timeline, rank, instant) for rank in timeline.ranks} if timeline.held else {}

    def headings(self, width: float, y: float) -> Iterator[Label]:
        if self.held:
            text = words("holds.most" if self.instant is None else "holds.now")
            yield Label(x=width - _RIGHT + 16, y=y + 10, text=text, size=12, bold=True, colour="muted")

    def rows(self, top: float, width: float) -> Iterator[Rect | Label]:
        until = self.timeline.duration * self.scale
        for number, rank in enumerate(self.timeline.ranks):
            y = top + number * self.row
            yield Label(x=14, y=y + self.bar / 2, text=f"rank {rank}", size=12 if self.bar > 14 else 10)
            yield Rect(x=_LEFT, y=y, width=until, height=self.bar, **_IDLE)
            for span in self.timeline.for_rank(rank).spans:
                yield from self._action(span, y)
            yield from self._outline(rank, y)
            if self.held:
                yield from self._memory(rank, width - _RIGHT + 16, y)

    def _action(self, span: Span, y: float) -> Iterator[Rect | Label]:
        x, width = _LEFT + span.start * self.scale, span.duration * self.scale
        paint, action = PAINTS[span.kind], Action.parse(span.name)
        tooltip = f"rank {span.rank} · {span.name} · {kind_word(span.kind)} · {format_seconds(span.duration)}"
        room = 1.0 if width > 6 else 0.0
        look = {"texture": paint.texture if width > 14 else "", "radius": 2 if width > 8 else 0, "tooltip": tooltip}
        yield Rect(x=x, y=y, width=max(0.7, width - room), height=self.bar, fill=span.kind, **look)
        if action.stage >= self.num_ranks and width > 3:
            mark = min(5.0, self.bar / 4) * min(3, action.stage // self.num_ranks) / 3 + 2
            yield Rect(x=x, y=y + self.bar - mark, width=width - room, height=mark, fill="ink", opacity=0.75)
        text = str(action.microbatch) if self.numbers else ""
        sizes = [size for size in (min(11.0, self.bar - 6), SMALLEST) if text_width(text, size) < width - 3]
        if text and sizes and (size := sizes[0]) >= SMALLEST:
            yield Label(x=x + width / 2, y=y + self.bar / 2, text=text, size=size, anchor="middle", on=span.kind)

    def _outline(self, rank: int, y: float) -> Iterator[Rect]:
        """Around what this rank does for the first of several steps."""
        spans = self.timeline.for_rank(rank).spans if self.per_step else ()
        first = [span for span in spans if Action.parse(span.name).microbatch < self.per_step]
        if first:
            start = min(span.start for span in first) * self.scale
            end = max(span.end for span in first) * self.scale
            yield Rect(x=_LEFT + start - 1, y=y - 2, width=end - start + 1, height=self.bar + 4, stroke="ink", **_EDGE)

    def _memory(self, rank: int, x: float, y: float) -> Iterator[Rect | Label]:
        whole = self.held[rank] / self.num_chunks
        yield Rect(x=x, y=y + 2, width=_MEMORY, height=self.bar - 4, fill="panel")
        paint = {"fill": "activations", "texture": PAINTS["activations"].texture}
        yield Rect(x=x, y=y + 2, width=_MEMORY * whole / self.most, height=self.bar - 4, **paint)
        yield Label(x=x + _MEMORY + 8, y=y + self.bar / 2, text=f"{whole:.3g}", size=max(SMALLEST, min(12, self.bar)))


def held_by(timeline: Timeline, rank: int, instant: float | None = None) -> int:
    """Micro-batches, times chunks, that a rank holds at an instant; without one the most that it ever holds."""
    held = [holding for holding in timeline.held if holding.rank == rank]
    if instant is not None:
        return sum(holding.start <= instant < holding.end for holding in held)
    changes = sorted([(h.end, -1) for h in held] + [(h.start, 1) for h in held])
    count = most = 0
    for _, change in changes:
        count += change
        most = max(most, count)
    return most


def _named(timeline: Timeline) -> Timeline:
    """A schedule's name as people write it: 1F1B for one_f_one_b."""
    name = f"names.{timeline.title}"
    return replace(timeline, title=_WORDS(name)) if name in _WORDS else timeline


def _titles(timelines: list[Timeline], per_step: int | None) -> list[str]:
    """The name of each where names differ, whether it is predicted, its duration, and of one step the idle share."""
    wholes = [format_seconds(timeline.duration) for timeline in timelines]
    idles = [timeline.bubble_fraction for timeline in timelines]
    numbers = [
        whole if per_step else words("lasts", whole=whole, idle=idle) for whole, idle in zip(wholes, idles, strict=True)
    ]
    return [f"{text} · {says}" for text, says in zip(panel_titles(timelines), numbers, strict=True)]


def _most(timelines: list[Timeline], num_ranks: int | None) -> float:
    """Micro-batches that the fullest rank of all timelines holds: their memory bars share one scale."""
    return max(held_by(t, rank) / _num_chunks(t, num_ranks or t.num_ranks) for t in timelines for rank in t.ranks)


def _num_chunks(timeline: Timeline, num_ranks: int) -> int:
    return 1 + max(Action.parse(span.name).stage for span in timeline.spans) // num_ranks


def _words(timeline: Timeline, title: str, num_ranks: int) -> str:
    whole = format_seconds(timeline.duration)
    says = words("bubble", share=timeline.bubble_fraction, whole=whole)
    if timeline.held:
        chunks = _num_chunks(timeline, num_ranks)
        peaks = [f"{held_by(timeline, rank) / chunks:.3g}" for rank in timeline.ranks]
        says = words("held", says=says, peaks=peaks)
    return words("panel", title=title, num_ranks=timeline.num_ranks, says=says)
