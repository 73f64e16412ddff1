"""Timelines one above the other on one axis: per rank a lane of compute, and lower ones of communication and the rest.

Where a rank computes nothing its lane is hatched. Spans too short to see are joined with their neighbours of the same
kind, so that a picture has at most a few marks a pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from helpers.draw.axis import time_axis
from helpers.draw.palette import PAINTS, kind_word, words
from helpers.draw.scene import SMALLEST, WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import KINDS, LANES, Span, Timeline

LEFT, RIGHT, _GAP = 76.0, 20.0, 14.0
_SHORTEST = 0.7  # pixels; anything shorter is joined or widened to this
IDLE = {"fill": "panel", "texture": "hatch"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """scale: pixels per second. compute, lower: heights in pixels of that lane and of each other. lanes: per rank.

    names: of the ranks, by rank; none: "rank 0" and so on. small: the size of the lanes' names.
    """

    width: float
    end: float
    compute: float
    lower: float
    lanes: tuple[str, ...]
    names: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    small: float = 10.0

    @property
    def scale(self) -> float:
        return (self.width - LEFT - RIGHT) / self.end

    @property
    def rank(self) -> float:
        return self.compute + 1 + (len(self.lanes) - 1 + max(0, len(self.axes) - 1)) * (self.lower + 1) + 6

    def below(self, spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
        """The name of each lane below compute, where it has one, and its spans: messages by axis, if axes are given."""
        for lane in self.lanes[1:]:
            own = [span for span in spans if span.lane == lane]
            if lane == "communication" and self.axes:
                yield from ((axis, [one for one in own if one.name.startswith(axis)]) for axis in self.axes)
            else:
                yield words(f"lane.{lane}") if len(self.lanes) > 2 else "", own

    def x(self, seconds: float) -> float:
        return LEFT + seconds * self.scale


def timeline_scene(
    *timelines: Timeline,
    title: str = "",
    width: float = WIDTH,
    end: float = 0.0,
    marks: Sequence[tuple[float, str]] = (),
    names: Sequence[str] = (),
    axes: Sequence[str] = (),
) -> Scene:
    """A Scene of one or several Timelines; each starts at 0, all share one axis, in seconds.

    The axis reaches to the longest timeline, or to `end` seconds if that is later (so that a dial moves bars only).
    marks: for each timeline, seconds at which a line stands and a word beside it, such as where another step ended.
    names: by rank, where "rank 0" is no name for it.
    axes: a lane for each, with the messages whose names begin with it.
    Height follows the number of ranks. ValueError without a timeline or for a timeline without spans.
    """
    _check(timelines)
    shown = [timeline.shifted_to_zero() for timeline in timelines]
    end = max(end, *(timeline.duration for timeline in shown), *(seconds for seconds, _ in marks)) or 1e-9
    num_ranks = max(timeline.num_ranks for timeline in shown)
    compute = 26.0 if num_ranks <= 4 else 18.0 if num_ranks <= 8 else 13.0
    lanes = tuple(lane for lane in LANES if any(lane in timeline.lanes for timeline in shown))
    lower = max(11.0 if axes else 8.0, compute * 0.6)
    also = {"names": tuple(names), "axes": tuple(axes)}
    layout = Layout(width=width, end=end, compute=compute, lower=lower, lanes=lanes, **also)
    shared = title or shared_title(shown)
    head, y = _head(shared, shown, width)
    panels, grid = [], []
    for timeline, panel_title, mark in zip_longest(shown, panel_titles(shown), marks):
        panel_top = y + 28
        panels += _panel(timeline, panel_title, layout, y)
        panels += _mark(*mark, layout, panel_top) if mark else ()
        y = panel_top + timeline.num_ranks * layout.rank + _GAP
        with_labels = timeline is shown[-1]
        grid += time_axis(LEFT, width - LEFT - RIGHT, panel_top - 4, y - _GAP - 4, end, with_labels)
    items = [*head, *grid, *panels]
    return Scene(width=width, height=y + 14, title=shared, summary=_summary(shown), items=tuple(items))


def _mark(seconds: float, word: str, layout: Layout, top: float) -> Iterator[Line | Label]:
    x = layout.x(seconds)
    yield Line(x1=x, y1=top - 4, x2=x, y2=top + layout.rank, colour="ink", width=2, dashed=True)
    yield Label(x=x - 6, y=top + layout.compute / 2, text=word, size=11, anchor="end")


def _check(timelines: tuple[Timeline, ...]) -> None:
    if not timelines:
        raise ValueError(
            "timeline_scene got no timeline; give one or more, such as timeline_scene(predicted, measured)"
        )
    for number, timeline in enumerate(timelines):
        if not isinstance(timeline, Timeline):
            raise ValueError(f"argument {number} of timeline_scene is a {type(timeline).__name__}; give a Timeline")
        if not timeline.spans:
            raise ValueError(f"timeline {number} has no span, so there is nothing to draw; did the recorded block run?")


def _titles(timelines: list[Timeline]) -> set[str]:
    return {timeline.title for timeline in timelines if timeline.title}


def shared_title(timelines: list[Timeline]) -> str:
    titles = _titles(timelines)
    return titles.pop() if len(titles) == 1 else words("one_step")


def panel_titles(timelines: list[Timeline]) -> list[str]:
    """What each timeline is: its source and, where titles differ, its own one before that."""
    differ = len(_titles(timelines)) > 1
    return [_panel_title(timeline.title if differ else "", words(timeline.source)) for timeline in timelines]


def _panel_title(title: str, source: str) -> str:
    short = title if len(title) <= 44 else f"{title[:43]}…"
    return f"{short} · {source}" if title else source


def exposed_sentence(timeline: Timeline, *, whose: bool = False) -> str:
    """The sentence of the worst rank, since the others wait for it. whose: with its name."""
    worst = max(timeline.ranks, key=timeline.exposed_communication)
    exposed, whole = timeline.exposed_communication(worst), timeline.duration
    words = words("exposed", exposed=format_seconds(exposed), whole=format_seconds(whole))
    return words("exposed_by", rank=worst, words=words) if whose else words


def _summary(timelines: list[Timeline]) -> str:
    pairs = zip(timelines, panel_titles(timelines), strict=True)
    return " ".join(
        words("panel", title=title, num_ranks=timeline.num_ranks, says=exposed_sentence(timeline))
        for timeline, title in pairs
    )


def _head(title: str, timelines: list[Timeline], width: float) -> tuple[list[Rect | Label], float]:
    used = {span.kind for timeline in timelines for span in timeline.spans}
    return heading(title, [*kinds_legend([kind for kind in KINDS if kind in used]), (words("idle"), IDLE)], width)


def _panel(timeline: Timeline, text: str, layout: Layout, top: float) -> Iterator[Rect | Label]:
    yield Label(x=14, y=top + 12, text=text, size=12, bold=True, colour="muted")
    said = exposed_sentence(timeline, whose=bool(layout.axes))
    yield Label(x=layout.width - RIGHT, y=top + 12, text=said, size=12, anchor="end", colour="muted")
    for row, rank in enumerate(timeline.ranks):
        yield from rank_band(timeline, rank, layout, top + 28 + row * layout.rank, timeline.duration)


def rank_band(timeline: Timeline, rank: int, layout: Layout, top: float, duration: float) -> Iterator[Rect | Label]:
    """The lanes of one rank, `duration` seconds long from 0 on."""
    spans = [span for span in timeline.spans if span.rank == rank]
    compute = [span for span in spans if span.lane == "compute"]
    name = layout.names[rank] if layout.names else f"rank {rank}"
    yield Label(x=14, y=top + layout.compute / 2, text=name, size=12)
    until = layout.x(duration) - LEFT
    yield Rect(x=LEFT, y=top, width=until, height=layout.compute, fill="panel")
    for start, end in _idle(compute, duration, layout):
        yield Rect(x=start, y=top, width=end - start, height=layout.compute, **IDLE)
    yield from _bars(compute, layout, top, layout.compute)
    for number, (name, lane) in enumerate(layout.below(spans)):
        y = top + layout.compute + 1 + number * (layout.lower + 1)
        yield Rect(x=LEFT, y=y, width=until, height=layout.lower, fill="panel")
        if name:
            yield Label(x=LEFT - 6, y=y + layout.lower / 2, text=name, size=layout.small, anchor="end", colour="muted")
        yield from _lower_lane(lane, layout, y)


def _lower_lane(spans: list[Span], layout: Layout, top: float) -> Iterator[Rect | Label]:
    rows = _rows(spans, layout.scale)
    height = layout.lower / max(1, len(rows))
    for number, row in enumerate(rows):
        yield from _bars(row, layout, top + number * height, height)


def _idle(compute: list[Span], duration: float, layout: Layout) -> Iterator[tuple[float, float]]:
    """From where to where, in pixels, a rank computes nothing, as long as that can be seen."""
    busy_until = LEFT
    for span in sorted(compute, key=lambda span: span.start):
        start = layout.x(span.start)
        if start - busy_until >= _SHORTEST:
            yield busy_until, start
        busy_until = max(busy_until, layout.x(span.end))
    if layout.x(duration) - busy_until >= _SHORTEST:
        yield busy_until, layout.x(duration)


def _rows(spans: list[Span], scale: float) -> list[list[Span]]:
    """Spans that overlap in time go to different rows, unless by too little to see: messages together are seen so."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        row = next((row for row in rows if (row[-1].end - span.start) * scale < _SHORTEST), None)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    return rows


def _bars(spans: Iterable[Span], layout: Layout, top: float, height: float) -> Iterator[Rect | Label]:
    for spans_of_bar in _joined(sorted(spans, key=lambda span: span.start), layout.scale):
        first, last = spans_of_bar[0], spans_of_bar[-1]
        x = layout.x(first.start)
        width = max(_SHORTEST, layout.x(last.end) - x)
        paint = PAINTS[first.kind]
        room = 1.0 if width > 6 else 0.5 if width > 2 else 0.0  # a slit between neighbours
        look = {"texture": paint.texture if width > 3 else "", "radius": 2 if width > 8 and height > 8 else 0}
        tooltip = _tooltip(spans_of_bar)
        bar = Rect(x=x, y=top, width=width - room, height=height, fill=first.kind, tooltip=tooltip, **look)
        yield bar
        yield from _bar_label(first, bar)


def _joined(spans: list[Span], scale: float) -> Iterator[list[Span]]:
    """Groups of neighbours that belong in one bar: same kind, each too short to see, with no gap to see."""
    group: list[Span] = []
    for span in spans:
        short = span.duration * scale < _SHORTEST
        if group and (span.kind != group[0].kind or not short or (span.start - group[-1].end) * scale >= _SHORTEST):
            yield group
            group = []
        group.append(span)
        if not short:
            yield group
            group = []
    if group:
        yield group


def _tooltip(spans: list[Span]) -> str:
    first = spans[0]
    name = first.name if len(spans) == 1 else words["spans"].format(len(spans))
    seconds = format_seconds(sum(span.duration for span in spans))
    num_bytes = sum(span.num_bytes for span in spans)
    payload = f" · {format_bytes(num_bytes)}" if num_bytes else ""
    return f"rank {first.rank} · {name} · {kind_word(first.kind)} · {seconds}{payload}"


def _bar_label(span: Span, bar: Rect) -> Iterator[Label]:
    size = min(11.0, bar.height - 3)
    short = span.name[span.name.find("←") :] if span.kind == "waiting" else span.name.rpartition(".")[2]
    texts = [format_bytes(span.num_bytes)] if span.num_bytes else [span.name, short]
    text = next((text for text in texts if text_width(text, size) < bar.width - 6), None)
    if text and size >= SMALLEST:
        middle = bar.x + bar.width / 2
        yield Label(x=middle, y=bar.y + bar.height / 2, text=text, size=size, anchor="middle", on=span.kind)
