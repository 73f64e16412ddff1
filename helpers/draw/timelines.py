"""Draws timelines: per rank a lane of compute, and below it lanes of communication and, in a trace, of everything else.

A Timeline has spans: what a rank computes, sends or waits for, from when to when. Each has a lane (compute,
communication, waiting, host for the CPU that launches kernels, or data for loading batches) and a kind ("forward"),
which is its colour. Communication is exposed while its rank computes nothing. `timeline_scene` puts one or several
timelines of a step above each other on one axis; most chapters use it. `trace_scene` shows a stretch of a run's traces,
for chapter 10 and the trace explorer. Where a rank computes nothing, its lane is hatched. Spans too short to see are
joined with their neighbours of the same kind, so that a picture has at most a few marks per pixel.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from helpers.draw.axis import time_axis
from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import (
    MARGIN,
    SMALLEST,
    WIDTH,
    Label,
    Legend,
    Line,
    Rect,
    Scene,
    SceneItem,
    heading,
    kinds_legend,
    labelled_box,
    text_width,
)
from helpers.learner.words import book
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import KINDS, LANES, Span, Timeline

words = book("draw")  # what a reader sees, by name, in the learner's language: learner/words/draw.yaml
LEFT, RIGHT, _GAP = 76.0, 20.0, 14.0  # pixels: left and right of the lanes, and between two timelines
_PANEL_TITLE = 28.0  # pixels above the lanes of a timeline, for its title
_LONGEST_TITLE = 44  # letters of a timeline's title
_SHORTEST = 0.7  # pixels; anything shorter is joined with its neighbours or widened to this
# The style of a stretch in which a rank computes nothing.
IDLE = {"fill": "panel", "texture": "hatch"}
# Of trace_scene, in pixels: above the lanes for the names of steps, between two ranks, and the heights of the compute
# lane, of the other lanes and of letters.
_STEP_NAMES, _RANK_GAP = 20.0, 3.0
_TRACE_HEIGHTS = {"compute": 22.0, "lower": 15.0, "small": 12.0}
_TRACE_WIDTH = 640.0  # what a window of 1100 pixels leaves for an output, so the letters keep their size there
# "data" and "other" are left out of the legend of a trace, because their lanes have names.
_TRACE_LEGEND = [kind for kind in KINDS if kind not in ("data", "other")]


@dataclass(frozen=True, kw_only=True)
class LaneLayout:
    """Where the lanes of a rank lie.

    `end` is the last second of the axis. `compute` and `lower` are the heights in pixels of the compute lane and of
    each other lane; `lanes` are the lanes of every rank. `names` are the ranks' names ("rank 0" and so on without
    them). With `axes`, messages get a lane for each of these mesh axes. `small` is the size of the lanes' names.
    """

    width: float  # pixels of the picture
    end: float
    compute: float
    lower: float
    lanes: tuple[str, ...]
    names: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    small: float = 10.0

    @property
    def scale(self) -> float:
        """Pixels per second."""
        return (self.width - LEFT - RIGHT) / self.end

    @property
    def rank_height(self) -> float:
        """The pixels from one rank to the next: all its lanes, with a pixel between two and six below them."""
        num_lower = len(self.lanes) - 1 + max(0, len(self.axes) - 1)
        return self.compute + 1 + num_lower * (self.lower + 1) + 6

    def lower_lanes(self, spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
        """The name of each lane below compute, where it has one, and its spans; messages by axis if axes are given."""
        for lane in self.lanes[1:]:
            in_lane = [span for span in spans if span.lane == lane]
            if lane == "communication" and self.axes:
                yield from ((axis, [span for span in in_lane if span.name.startswith(axis)]) for axis in self.axes)
            else:
                # A single lane below compute gets no name.
                yield words(f"lane.{lane}") if len(self.lanes) > 2 else "", in_lane

    def x(self, seconds: float) -> float:
        """Where an instant lies in the picture."""
        return LEFT + seconds * self.scale


def timeline_scene(
    *timelines: Timeline,
    title: str = "",
    end: float = 0.0,
    marks: Sequence[tuple[float, str]] = (),
    names: Sequence[str] = (),
    axes: Sequence[str] = (),
) -> Scene:
    """A Scene of one or several Timelines; each starts at 0, and all share one axis, in seconds.

    The axis reaches to the end of the longest timeline, or to `end` seconds if that is later, so that in an explorer a
    dial moves the bars and not the axis. marks: for each timeline, the second at which a line stands and a word beside
    it, such as where another step ended. names: the ranks' names, where "rank 0" would be wrong. axes: mesh axes; each
    gets a lane with the messages whose names begin with it. The height follows the number of ranks.
    Raises ValueError without a timeline, or for a timeline without spans.
    """
    _check(timelines)
    shown = [timeline.shifted_to_zero() for timeline in timelines]
    end = max(end, *(timeline.duration for timeline in shown), *(seconds for seconds, _ in marks)) or 1e-9  # never 0
    num_ranks = max(timeline.num_ranks for timeline in shown)
    compute = 26.0 if num_ranks <= 4 else 18.0 if num_ranks <= 8 else 13.0  # the more ranks, the lower the lanes
    lanes = tuple(lane for lane in LANES if any(lane in timeline.lanes for timeline in shown))
    lower = max(11.0 if axes else 8.0, compute * 0.6)  # with axes, a lane needs room for its name
    texts = {"names": tuple(names), "axes": tuple(axes)}
    layout = LaneLayout(width=WIDTH, end=end, compute=compute, lower=lower, lanes=lanes, **texts)
    title = title or shared_title(shown)
    items, y = heading(title, used_kinds_legend(shown))  # title and legend, and the y where they end
    panels: list[SceneItem] = []  # drawn after the axes, so that bars cover the lines of the axes
    for timeline, panel_title, mark in zip_longest(shown, panel_titles(shown), marks):
        panel_top = y + _PANEL_TITLE
        panels += _panel(timeline, panel_title, layout, y)
        panels += _mark(*mark, layout, panel_top) if mark else ()  # there may be fewer marks than timelines
        bottom = panel_top + timeline.num_ranks * layout.rank_height
        # Only the axis of the last timeline has labels.
        items += time_axis(LEFT, WIDTH - LEFT - RIGHT, panel_top - 4, bottom - 4, end, timeline is shown[-1])
        y = bottom + _GAP
    return Scene(height=y + 14, title=title, summary=panels_summary(shown, exposed_sentence), items=(*items, *panels))


def _mark(seconds: float, word: str, layout: LaneLayout, top: float) -> Iterator[Line | Label]:
    """A dashed line through the first rank's lanes, with the word on its left."""
    x = layout.x(seconds)
    yield Line(x1=x, y1=top - 4, x2=x, y2=top + layout.rank_height, colour="ink", width=2, dashed=True)
    yield Label(x=x - 6, y=top + layout.compute / 2, text=word, size=11, anchor="end")


def _check(timelines: tuple[Timeline, ...]) -> None:
    """Raises ValueError for what cannot be drawn."""
    if not timelines:
        raise ValueError(
            "timeline_scene got no timeline; give one or more, such as timeline_scene(predicted, measured)"
        )
    for number, timeline in enumerate(timelines):
        if not isinstance(timeline, Timeline):
            raise ValueError(f"argument {number} of timeline_scene is a {type(timeline).__name__}; give a Timeline")
        if not timeline.spans:
            raise ValueError(f"timeline {number} has no span, so there is nothing to draw; did the recorded block run?")


# -- titles and sentences --------------------------------------------------------------------------------------------
def _different_titles(timelines: list[Timeline]) -> set[str]:
    """The titles of the timelines, each once."""
    return {timeline.title for timeline in timelines if timeline.title}


def shared_title(timelines: list[Timeline]) -> str:
    """The title of all timelines if they have the same one, else "One step, rank by rank"."""
    titles = _different_titles(timelines)
    return titles.pop() if len(titles) == 1 else words("one_step")


def panel_titles(timelines: list[Timeline]) -> list[str]:
    """What each timeline is: whether it is predicted or recorded, after its own title where titles differ."""
    differ = len(_different_titles(timelines)) > 1
    return [_panel_title(timeline.title if differ else "", words(timeline.source)) for timeline in timelines]


def _panel_title(title: str, source: str) -> str:
    """The title, shortened if need be, and the source: "predicted", "emulated" or "recorded" as a word."""
    short = title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"
    return f"{short} · {source}" if title else source


def exposed_sentence(timeline: Timeline, *, with_rank: bool = False) -> str:
    """How much communication is exposed on the worst rank, since the others wait for it; names the rank if asked to."""
    worst = max(timeline.ranks, key=timeline.exposed_communication)
    exposed = format_seconds(timeline.exposed_communication(worst))
    text = words("exposed", exposed=exposed, whole=format_seconds(timeline.duration))
    return words("exposed_by", rank=worst, words=text) if with_rank else text


def panels_summary(timelines: list[Timeline], says: Callable[[Timeline], str]) -> str:
    """What each timeline is and what `says` returns for it, for readers who cannot see the picture."""
    pairs = zip(timelines, panel_titles(timelines), strict=True)
    return " ".join(
        words(
            "panel" if timeline.num_ranks > 1 else "panel_of_rank",
            title=title,
            num_ranks=timeline.num_ranks,
            rank=timeline.ranks[0],
            says=says(timeline),
        )
        for timeline, title in pairs
    )


def used_kinds_legend(timelines: Iterable[Timeline], kinds: Iterable[str] = KINDS) -> Legend:
    """The entries of `heading` for those of these kinds that occur, and for idle time."""
    used = {span.kind for timeline in timelines for span in timeline.spans}
    return [*kinds_legend([kind for kind in kinds if kind in used]), (words("idle"), IDLE)]


# -- lanes -----------------------------------------------------------------------------------------------------------
def _panel(timeline: Timeline, title: str, layout: LaneLayout, top: float) -> Iterator[Rect | Label]:
    """A timeline: its title, its exposed communication in words, and the lanes of each rank."""
    yield Label(x=MARGIN, y=top + 12, text=title, size=12, bold=True, colour="muted")
    sentence = exposed_sentence(timeline, with_rank=bool(layout.axes))
    yield Label(x=layout.width - RIGHT, y=top + 12, text=sentence, size=12, anchor="end", colour="muted")
    for row, rank in enumerate(timeline.ranks):
        y = top + _PANEL_TITLE + row * layout.rank_height
        yield from rank_lanes(timeline, rank, layout, y, timeline.duration)


def rank_lanes(
    timeline: Timeline, rank: int, layout: LaneLayout, top: float, duration: float
) -> Iterator[Rect | Label]:
    """The lanes of one rank, `duration` seconds long from 0 on."""
    spans = [span for span in timeline.spans if span.rank == rank]
    compute = [span for span in spans if span.lane == "compute"]
    rank_name = layout.names[rank] if layout.names else f"rank {rank}"
    yield Label(x=MARGIN, y=top + layout.compute / 2, text=rank_name, size=12)
    width, height = layout.x(duration) - LEFT, layout.lower
    yield Rect(x=LEFT, y=top, width=width, height=layout.compute, fill="panel")
    for start, end in _idle_stretches(compute, duration, layout):
        yield Rect(x=start, y=top, width=end - start, height=layout.compute, **IDLE)
    yield from _bars(compute, layout, top, layout.compute)
    for number, (name, in_lane) in enumerate(layout.lower_lanes(spans)):
        y = top + layout.compute + 1 + number * (height + 1)
        yield Rect(x=LEFT, y=y, width=width, height=height, fill="panel")
        if name:
            yield Label(x=LEFT - 6, y=y + height / 2, text=name, size=layout.small, anchor="end", colour="muted")
        yield from _lower_lane(in_lane, layout, y)


def _lower_lane(spans: list[Span], layout: LaneLayout, top: float) -> Iterator[Rect | Label]:
    """The spans of a lane; where some overlap, the lane is divided into rows."""
    rows = _rows_without_overlap(spans, layout.scale)
    height = layout.lower / max(1, len(rows))
    for number, row in enumerate(rows):
        yield from _bars(row, layout, top + number * height, height)


def _idle_stretches(compute: list[Span], duration: float, layout: LaneLayout) -> Iterator[tuple[float, float]]:
    """From where to where, in pixels, a rank computes nothing, if the stretch is long enough to be seen."""
    busy_until = LEFT
    for span in sorted(compute, key=lambda span: span.start):
        start = layout.x(span.start)
        if start - busy_until >= _SHORTEST:
            yield busy_until, start
        busy_until = max(busy_until, layout.x(span.end))
    if layout.x(duration) - busy_until >= _SHORTEST:
        yield busy_until, layout.x(duration)


def _rows_without_overlap(spans: list[Span], scale: float) -> list[list[Span]]:
    """The spans in rows: those that overlap visibly are in different rows, so that no message hides another."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        row = next((row for row in rows if (row[-1].end - span.start) * scale < _SHORTEST), None)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    return rows


def _bars(spans: Iterable[Span], layout: LaneLayout, top: float, height: float) -> Iterator[Rect | Label]:
    """A bar for each span, or for a group of neighbours too short to see; texture and round corners where they fit."""
    for joined in _joined(sorted(spans, key=lambda span: span.start), layout.scale):
        first, last = joined[0], joined[-1]
        x = layout.x(first.start)
        width = max(_SHORTEST, layout.x(last.end) - x)
        gap = 1.0 if width > 6 else 0.5 if width > 2 else 0.0  # pixels between neighbouring bars
        texture = PAINTS[first.kind].texture if width > 3 else ""
        style = {"fill": first.kind, "texture": texture, "radius": 2 if width > 8 and height > 8 else 0}
        size = min(11.0, height - 3)  # of the letters
        text = _bar_text(first, width - gap, size)
        yield from labelled_box(x, top, width - gap, height, text, size, tooltip=spans_tooltip(joined), **style)


def _joined(spans: list[Span], scale: float) -> list[list[Span]]:
    """Groups of neighbours that share a bar: of the same kind, each too short to see, and with no visible gap."""
    groups: list[list[Span]] = []
    for span in spans:
        last = groups[-1][-1] if groups else None
        are_short = last and max(last.duration, span.duration) * scale < _SHORTEST
        if are_short and span.kind == last.kind and (span.start - last.end) * scale < _SHORTEST:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def spans_tooltip(spans: list[Span]) -> str:
    """Rank, name, kind, seconds and bytes of the spans that share a bar; several are counted instead of named."""
    first = spans[0]
    # words[…] is a text in every language, whose braces `format` fills; the f-string takes the learner's language.
    name = first.name if len(spans) == 1 else words["spans"].format(len(spans))
    seconds = format_seconds(sum(span.duration for span in spans))
    num_bytes = sum(span.num_bytes for span in spans)
    payload = f" · {format_bytes(num_bytes)}" if num_bytes else ""
    return f"rank {first.rank} · {name} · {kind_word(first.kind)} · {seconds}{payload}"


def _bar_text(span: Span, width: float, size: float) -> str:
    """The bytes of a message, or the span's name; of a wait from the arrow on, of a module its last part if need be.

    Where none of them fits into `width` pixels in letters of this size, or these are too small to read, "".
    """
    # A wait is named by the rank that comes last, "all_reduce ← 3", and a module like "blocks.0.attention".
    short = span.name[span.name.find("←") :] if span.kind == "waiting" else span.name.rpartition(".")[2]
    texts = [format_bytes(span.num_bytes)] if span.num_bytes else [span.name, short]
    return next((text for text in texts if size >= SMALLEST and text_width(text, size) < width - 6), "")


# -- a stretch of a trace --------------------------------------------------------------------------------------------
def trace_scene(
    timeline: Timeline,
    *,
    start: float,
    end: float,
    ranks: Collection[int],
    steps: Mapping[int, Sequence[tuple[float, str]]],
    title: str,
    summary: str,
) -> Scene:
    """What lies between `start` and `end`, in seconds of the timeline, on an axis that begins at 0.

    `steps` maps a rank to (when a step begins, its name) of each of its steps. Lanes and legend are those of the entire
    timeline, so that they stay while the stretch moves. Raises ValueError where the stretch has no length.
    """
    if not end > start:
        raise ValueError(f"trace_scene got a stretch from {start!r} s to {end!r} s; its end must lie behind its start")
    layout = LaneLayout(width=_TRACE_WIDTH, end=end - start, lanes=timeline.lanes, **_TRACE_HEIGHTS)
    items, y = heading(title, used_kinds_legend([timeline], _TRACE_LEGEND), _TRACE_WIDTH)
    top = y + _STEP_NAMES
    bottom = top + len(ranks) * (layout.rank_height + _RANK_GAP) - _RANK_GAP
    stretch = _stretch(timeline, start, end)
    items += time_axis(LEFT, _TRACE_WIDTH - LEFT - RIGHT, top - 4, bottom, end - start)
    for row, rank in enumerate(ranks):
        y = top + row * (layout.rank_height + _RANK_GAP)
        items += rank_lanes(stretch, rank, layout, y, end - start)
        items += _step_starts(steps.get(rank, ()), layout, start, y, has_names=row == 0)
    return Scene(width=_TRACE_WIDTH, height=bottom + 24, title=title, summary=summary, items=items)


def _stretch(timeline: Timeline, start: float, end: float) -> Timeline:
    """What overlaps with the stretch, cut off at its ends, with the stretch's start at 0.

    Of messages that wait at the same time, the later ones are drawn from where the earlier ones end, in one row.
    """
    spans, waited_until = [], dict.fromkeys(timeline.ranks, start)  # rank -> until when its drawn waits reach
    overlapping = (span for span in timeline.spans if span.start < end and span.end > start)
    for span in sorted(overlapping, key=lambda span: span.start):
        span_start, span_end = max(span.start, start), min(span.end, end)
        if span.lane == "waiting":
            span_start = max(span_start, waited_until[span.rank])
            waited_until[span.rank] = max(span_end, waited_until[span.rank])
        if span_start < span_end:
            kind = "other" if span.lane == "host" else span.kind  # the host only launches what the span's kind names
            spans.append(replace(span, start=span_start - start, end=span_end - start, kind=kind))
    return replace(timeline, spans=spans, held=())  # held: what memory holds, which this picture does not show


def _step_starts(
    steps: Sequence[tuple[float, str]], layout: LaneLayout, start: float, top: float, *, has_names: bool
) -> Iterator[Line | Label]:
    """A line where a step of this rank begins, with its name; at the left end the name of the step in progress."""
    # (x of the start or of the left end, whether the step starts inside the stretch, its name) of each step.
    shown = [
        (layout.x(max(0.0, step_start - start)), step_start >= start, name)
        for step_start, name in steps
        if step_start < start + layout.end
    ]
    ends = [*(x for x, *_ in shown[1:]), layout.width]  # where the next step starts
    for (x, is_inside, name), end in zip(shown, ends, strict=True):
        if is_inside:
            bottom = top + layout.rank_height - 4
            yield Line(x1=x, y1=top - 4, x2=x, y2=bottom, colour="ink", width=1.5, dashed=True)
        if has_names and x + 4 + text_width(name, 12, bold=True) < end:
            yield Label(x=x + 4, y=top - 12, text=name, size=12, bold=True)
