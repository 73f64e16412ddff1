"""Draws a pipeline's step rank by rank: which micro-batch each rank works on, where it idles, and how many it holds.

A pipeline splits the layers of a model into stages, and a batch into micro-batches. Each rank has one stage or, in an
interleaved schedule, several, which are its chunks. In DualPipe a forward and a backward run at once, as two
bars of half the height. `pipeline_scene` takes Timelines as `predict.time.pipeline.simulate` returns them; chapter 06
and the pipeline explorer use it. The number in a bar is its micro-batch, and bars of a rank's later chunks are marked
at their foot. On the right stand the micro-batches whose activations the rank holds, at most or at one instant; of a
chunk it holds a part of one. Above each timeline stand its duration and its idle share.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from helpers.draw.axis import time_axis
from helpers.draw.palette import PAINTS, kind_style
from helpers.draw.scene import (
    MARGIN,
    SMALLEST,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    centred_label,
    heading,
    text_width,
)
from helpers.draw.timelines import IDLE, panel_titles, panels_summary, shared_title, spans_tooltip, used_kinds_legend
from helpers.learner.words import book
from helpers.predict.time.pipeline import KINDS
from helpers.quantities.units import format_seconds
from helpers.records import Span, Timeline
from helpers.schedules import Action

words = book("draw")  # what a reader sees, by name, in the learner's language: learner/words/draw.yaml
timelines_words = book("timelines").section("pipeline")  # the names of the schedules: learner/words/timelines.yaml
_LEFT, _RIGHT, _GAP = 66.0, 170.0, 12.0  # pixels: left and right of the bars, and between two timelines
_PANEL_TITLE = 22.0  # pixels above the rows of a timeline, for its title
_MEMORY_LEFT = 16.0  # pixels between the bars and the memory on their right
_MEMORY = 84.0  # pixels of the memory bar of the rank that holds most
_OUTLINE = {"stroke": "ink", "stroke_width": 3.0, "radius": 2}  # around the first of several steps


def pipeline_scene(
    *timelines: Timeline,
    title: str = "",
    num_ranks: int | None = None,
    instant: float | None = None,
    per_step: int | None = None,
    numbers: bool = True,
) -> Scene:
    """A Scene of one or several Timelines of a pipeline, one above the other; each starts at 0, all share one axis.

    Spans carry the names of `schedules.Action`, such as "2F0". num_ranks tells chunks apart: a stage belongs to chunk
    stage // num_ranks (default: the timeline's ranks). instant: the second at which a play head stands; the memory is
    then what is held at that moment, otherwise the most that was ever held.
    Memory is drawn where a timeline has `held`. per_step: micro-batches per step, for several steps in one timeline;
    each rank's first step gets an outline, and bars have no numbers. numbers=False leaves out the numbers too, where
    only the shape counts.
    Raises ValueError without a timeline, or for one without spans.
    """
    if not timelines or not all(timeline.spans for timeline in timelines):
        raise ValueError("pipeline_scene got no timeline, or one without spans: give one, such as that of simulate(…)")
    shown = [_with_schedule_name(timeline.shifted_to_zero()) for timeline in timelines]
    end = max(timeline.duration for timeline in shown) or 1e-9  # never 0
    title = title or shared_title(shown)
    # title and legend, and the y where they end
    items, y = heading(title, used_kinds_legend([_apart(one) for one in shown]))
    # Pixels per second, and the micro-batches of the fullest rank, at which a memory bar has its full length.
    scale, most = (WIDTH - _LEFT - _RIGHT) / end, _most_in_flight(shown, num_ranks) or 1.0
    bars = []
    for timeline, panel_title in zip(shown, _titles(shown, per_step), strict=True):
        panel = _Panel(
            timeline=timeline, num_ranks=num_ranks or timeline.num_ranks, scale=scale, instant=instant,
            per_step=per_step, most_in_flight=most, has_numbers=numbers and not per_step,
        )  # fmt: skip
        top, bottom = y + _PANEL_TITLE, y + _PANEL_TITLE + timeline.num_ranks * panel.row_height
        # Only the axis of the last timeline has labels.
        items += time_axis(_LEFT, WIDTH - _LEFT - _RIGHT, top, bottom - 4, end, timeline is shown[-1])
        bars += panel.items(panel_title, y)
        y = bottom + _GAP
    summary = panels_summary(shown, lambda timeline: _sentence(timeline, num_ranks or timeline.num_ranks))
    return Scene(height=y + 14, title=title, summary=summary, items=(*items, *bars))


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One timeline of the picture.

    `scale` is in pixels per second, and `instant` is where the play head stands. `most_in_flight` is the number of
    micro-batches at which a memory bar has its full length; all panels share it.
    """

    timeline: Timeline
    num_ranks: int
    scale: float
    instant: float | None
    per_step: int | None
    most_in_flight: float
    has_numbers: bool

    @property
    def bar_height(self) -> float:
        """Pixels of a bar: the more ranks, the lower."""
        return 24.0 if self.timeline.num_ranks <= 4 else 18.0 if self.timeline.num_ranks <= 8 else 12.0

    @property
    def row_height(self) -> float:
        """Pixels from one rank to the next."""
        return self.bar_height + 5

    def items(self, title: str, y: float) -> Iterator[Rect | Label | Line]:
        """Everything but the axis: titles, a row per rank, and the play head."""
        top, style = y + _PANEL_TITLE, {"y": y + 10, "size": 12, "bold": True, "colour": "muted"}
        yield Label(x=MARGIN, text=title, **style)
        if self.timeline.held:
            text = words("holds.most" if self.instant is None else "holds.now")
            yield Label(x=WIDTH - _RIGHT + _MEMORY_LEFT, text=text, **style)
        yield from self._rows(top)
        if self.instant is not None and self.instant <= self.timeline.duration:
            x, bottom = _LEFT + self.instant * self.scale, top + self.timeline.num_ranks * self.row_height
            yield Line(x1=x, y1=top - 4, x2=x, y2=bottom, colour="ink", width=2)

    def _rows(self, top: float) -> Iterator[Rect | Label]:
        """A row for each rank: its name, its actions, and the memory that it holds."""
        until = self.timeline.duration * self.scale
        for number, rank in enumerate(self.timeline.ranks):
            y = top + number * self.row_height
            name_size = 12 if self.bar_height > 14 else 10
            yield Label(x=MARGIN, y=y + self.bar_height / 2, text=f"rank {rank}", size=name_size)
            yield Rect(x=_LEFT, y=y, width=until, height=self.bar_height, **IDLE)
            for span in self.timeline.for_rank(rank).spans:
                yield from self._action(span, y)
            yield from self._first_step_outline(rank, y)
            if self.timeline.held:
                yield from self._memory(rank, WIDTH - _RIGHT + _MEMORY_LEFT, y)

    def _action(self, span: Span, y: float) -> Iterator[Rect | Label]:
        """The bar of an action, or two bars of half the height for the two actions of a pair."""
        parts = _parts(span)
        height = self.bar_height / len(parts)
        for number, part in enumerate(parts):
            yield from self._bar(part, y + number * height, height)

    def _bar(self, span: Span, y: float, height: float) -> Iterator[Rect | Label]:
        """The bar of a single action; texture, rounded corners, mark and number only where they can be seen."""
        x, width = _LEFT + span.start * self.scale, span.duration * self.scale
        texture, action = PAINTS[span.kind].texture, Action.parse(span.name)  # "2F0": stage 2, forward, micro-batch 0
        gap = 1.0 if width > 6 else 0.0  # between this bar and the next
        tooltip = spans_tooltip([span])
        style = {"texture": texture if width > 14 else "", "radius": 2 if width > 8 else 0, "tooltip": tooltip}
        yield Rect(x=x, y=y, width=max(0.7, width - gap), height=height, fill=span.kind, **style)
        chunk = action.stage // self.num_ranks
        if chunk > 0 and width > 3:
            mark = min(5.0, height / 4) * min(3, chunk) / 3 + 2  # higher for later chunks
            yield Rect(x=x, y=y + height - mark, width=width - gap, height=mark, fill="ink", opacity=0.75)
        text = str(action.microbatch) if self.has_numbers else ""
        # Of two sizes of letters those at which the number fits.
        fitting = [size for size in (min(11.0, height - 6), SMALLEST) if text_width(text, size) < width - 3]
        if text and fitting and fitting[0] >= SMALLEST:
            yield centred_label(x + width / 2, y + height / 2, text, fitting[0], on=span.kind)

    def _first_step_outline(self, rank: int, y: float) -> Iterator[Rect]:
        """An outline around what this rank does for the first of several steps."""
        if not self.per_step:
            return
        spans = self.timeline.for_rank(rank).spans
        first_step = [span for span in spans if Action.parse(span.name).microbatch < self.per_step]
        if first_step:
            start = min(span.start for span in first_step) * self.scale
            end = max(span.end for span in first_step) * self.scale
            x, width = _LEFT + start - 1, end - start + 1
            yield Rect(x=x, y=y - 2, width=width, height=self.bar_height + 4, **_OUTLINE)

    def _memory(self, rank: int, x: float, y: float) -> Iterator[Rect | Label]:
        """How many micro-batches a rank holds, as a bar and as a number."""
        in_flight = microbatches_in_flight(self.timeline, rank, self.num_ranks, self.instant)
        width, height = _MEMORY * in_flight / self.most_in_flight, self.bar_height - 4
        yield Rect(x=x, y=y + 2, width=_MEMORY, height=height, fill="panel")
        yield Rect(x=x, y=y + 2, width=width, height=height, **kind_style("activations"))
        text, size = f"{in_flight:.3g}", max(SMALLEST, min(12, self.bar_height))
        yield Label(x=x + _MEMORY + 8, y=y + self.bar_height / 2, text=text, size=size)


def microbatches_in_flight(timeline: Timeline, rank: int, num_ranks: int, instant: float | None = None) -> float:
    """Micro-batches whose activations a rank holds at an instant; without one, the most ever held.

    A rank with several chunks holds the activations of one micro-batch in as many parts.
    """
    num_chunks = 1 + max(Action.parse(span.name).stage for span in timeline.spans) // num_ranks
    holdings = [holding for holding in timeline.held if holding.rank == rank]
    if instant is not None:
        return sum(holding.start <= instant < holding.end for holding in holdings) / num_chunks
    # At equal times an end (-1) sorts before a start (+1), so that a replaced micro-batch is not counted twice.
    changes = sorted([(holding.end, -1) for holding in holdings] + [(holding.start, 1) for holding in holdings])
    return max(accumulate(change for _, change in changes), default=0) / num_chunks


def _parts(span: Span) -> list[Span]:
    """The span itself, or one for each part of an overlapped pair; both last as long as the pair."""
    singles = Action.parse(span.name).singles
    return [span] if len(singles) == 1 else [replace(span, name=str(one), kind=KINDS[one.kind]) for one in singles]


def _apart(timeline: Timeline) -> Timeline:
    """The timeline in which each overlapped pair has become its two parts."""
    return replace(timeline, spans=tuple(part for span in timeline.spans for part in _parts(span)))


def _with_schedule_name(timeline: Timeline) -> Timeline:
    """The timeline, titled with its schedule's name as people write it: 1F1B for one_f_one_b."""
    name = f"names.{timeline.title}"
    return replace(timeline, title=timelines_words(name)) if name in timelines_words else timeline


def _titles(timelines: list[Timeline], per_step: int | None) -> list[str]:
    """Per timeline its name where names differ, its source, its duration, and the idle share if it is one step."""
    titles = []
    for timeline, title in zip(timelines, panel_titles(timelines), strict=True):
        duration = format_seconds(timeline.duration)
        text = duration if per_step else words("lasts", whole=duration, idle=timeline.bubble_fraction)
        titles.append(f"{title} · {text}")
    return titles


def _most_in_flight(timelines: list[Timeline], num_ranks: int | None) -> float:
    """The micro-batches that the fullest rank of all timelines holds."""
    return max(
        microbatches_in_flight(timeline, rank, num_ranks or timeline.num_ranks)
        for timeline in timelines
        for rank in timeline.ranks
    )


def _sentence(timeline: Timeline, num_ranks: int) -> str:
    """The idle share (the bubble) of a timeline, and the most that each rank held, for those who cannot see it."""
    text = words("bubble", share=timeline.bubble_fraction, whole=format_seconds(timeline.duration))
    if timeline.held:
        peaks = [f"{microbatches_in_flight(timeline, rank, num_ranks):.3g}" for rank in timeline.ranks]
        return words("held", says=text, peaks=peaks)
    return text
