"""A stretch of a run's traces: a band per rank with the lanes of a profile, and where each step begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from helpers.draw.axis import time_axis
from helpers.draw.palette import SAYS
from helpers.draw.scene import Label, Line, Scene, heading, kinds_legend, text_width
from helpers.draw.timelines import IDLE, LEFT, RIGHT, Layout, rank_band
from helpers.records import KINDS, Timeline

_STEPS, _GAP = 20.0, 3.0
_HEIGHTS = {"compute": 22.0, "lower": 15.0, "small": 12.0}
_WIDTH = 640.0  # what a window of 1100 pixels leaves for an output: there the letters keep their size
_IN_LEGEND = [kind for kind in KINDS if kind not in ("data", "other")]  # a lane has their name


def trace_scene(
    timeline: Timeline,
    *,
    start: float,
    end: float,
    ranks: Collection[int],
    steps: Mapping[int, Sequence[tuple[float, str]]],
    title: str,
    summary: str,
    width: float = _WIDTH,
) -> Scene:
    """What lies between `start` and `end`, in seconds of the timeline, on an axis that begins at 0.

    steps: rank -> when each of its steps begins, and its name. Lanes and legend are those of the whole timeline: they
    stay while the stretch moves. ValueError where it has no length.
    """
    if not end > start:
        raise ValueError(f"trace_scene got a stretch from {start!r} s to {end!r} s; its end must lie behind its start")
    layout = Layout(width=width, end=end - start, lanes=timeline.lanes, **_HEIGHTS)
    used = {span.kind for span in timeline.spans}
    kinds = kinds_legend([kind for kind in _IN_LEGEND if kind in used])
    head, y = heading(title, [*kinds, (SAYS("idle"), IDLE)], width)
    top = y + _STEPS
    bottom = top + len(ranks) * (layout.rank + _GAP) - _GAP
    cut = _between(timeline, start, end)
    items = [*head, *time_axis(LEFT, width - LEFT - RIGHT, top - 4, bottom, end - start, with_labels=True)]
    for row, rank in enumerate(ranks):
        y = top + row * (layout.rank + _GAP)
        items += rank_band(cut, rank, layout, y, end - start)
        items += _begins(steps.get(rank, ()), layout, start, y, is_named=not row)
    return Scene(width=width, height=bottom + 24, title=title, summary=summary, items=items)


def _between(timeline: Timeline, start: float, end: float) -> Timeline:
    """What overlaps with the stretch, cut off at its ends; its start becomes 0.

    Of messages that wait together the later ones are drawn from where the wait of those before ends: in one row.
    """
    spans, waited = [], dict.fromkeys(timeline.ranks, start)
    near = (span for span in timeline.spans if span.start < end and span.end > start)
    for span in sorted(near, key=lambda span: span.start):
        begins, ends = max(span.start, start), min(span.end, end)
        if span.lane == "waiting":
            begins = max(begins, waited[span.rank])
            waited[span.rank] = max(ends, waited[span.rank])
        if begins < ends:
            kind = "other" if span.lane == "host" else span.kind  # what it works for is not what it does
            spans.append(replace(span, start=begins - start, end=ends - start, kind=kind))
    return replace(timeline, spans=spans, held=())


def _begins(
    steps: Sequence[tuple[float, str]], layout: Layout, start: float, top: float, *, is_named: bool
) -> Iterator[Line | Label]:
    """A line where a step of this rank begins, and above it its name; at the left end, of the one that is under way."""
    shown = [(layout.x(max(0.0, at - start)), at >= start, name) for at, name in steps if at < start + layout.end]
    ends = [*(x for x, *_ in shown[1:]), layout.width]
    for (x, begins, name), end in zip(shown, ends, strict=True):
        if begins:
            yield Line(x1=x, y1=top - 4, x2=x, y2=top + layout.rank - 4, colour="ink", width=1.5, dashed=True)
        if is_named and x + 4 + text_width(name, 12, bold=True) < end:
            yield Label(x=x + 4, y=top - 12, text=name, size=12, bold=True)
