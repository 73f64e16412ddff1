"""What a rank holds over time, stacked by kind: stairs up in forward, stairs down in backward, and the highest point.

The axis counts allocations and frees, not seconds, so the picture is the same on every machine. Below it stands what
the rank was doing, where the timeline has spans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.draw.axis import round_step
from helpers.draw.palette import kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, Timeline

say = book("memory")
_LEFT, _RIGHT, _HIGH, _BELOW = 64.0, 20.0, 240.0, 52.0
_PASSES = ("forward", "backward", "optimizer")
_COLUMNS = 220  # as many as are worth seeing; of the changes in a column the highest is shown
Level = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """column: pixels; scale: pixels per byte; bottom: the y of no bytes."""

    column: float
    scale: float
    bottom: float


def memory_curve_scene(timeline: Timeline, *, title: str, width: float = WIDTH) -> Scene:
    """The bytes that `timeline.held` says, change by change; the highest point has a mark, and each pass its name.

    ValueError where nothing was held.
    """
    if not timeline.held:
        raise ValueError("memory_curve_scene got a timeline that holds nothing; record it with record_memory")
    changes = _changes(timeline)
    levels = _columns(list(_levels(changes)))
    totals = [sum(level.values()) for level in levels]
    top, kinds = max(totals), [kind for kind in MEMORY_KINDS if any(level[kind] for level in levels)]
    head, y = heading(title, kinds_legend(kinds), width)
    column = (width - _LEFT - _RIGHT) / len(levels)
    frame = _Frame(column=column, scale=(_HIGH - 24) / top, bottom=y + _HIGH)
    items = [*head, *_grid(top, frame, width)]
    for kind_number, kind in enumerate(kinds):
        below = [sum(level[one] for one in kinds[:kind_number]) for level in levels]
        items += _band(kind, [level[kind] for level in levels], below, frame)
    items += _passes(timeline, [seconds for seconds, *_ in changes], frame, width)
    items += _mark(totals.index(top), top, frame, width)
    summary = say("curve.says", top=format_bytes(top))
    return Scene(width=width, height=frame.bottom + _BELOW, title=title, summary=summary, items=tuple(items))


def _changes(timeline: Timeline) -> list[tuple[float, str, int]]:
    """(seconds, kind, bytes more or less), in the order of time."""
    changes = [(held.start, held.kind, held.num_bytes) for held in timeline.held]
    changes += [(held.end, held.kind, -held.num_bytes) for held in timeline.held if held.end < timeline.end]
    return sorted(changes)


def _levels(changes: list[tuple[float, str, int]]) -> Iterator[Level]:
    """Bytes by kind after each change."""
    now = dict.fromkeys(MEMORY_KINDS, 0)
    for _, kind, num_bytes in changes:
        now[kind] += num_bytes
        yield dict(now)


def _passes(timeline: Timeline, seconds: list[float], frame: _Frame, width: float) -> Iterator[Line | Label]:
    """The name of each pass below the changes that it made; what the loss does belongs to forward."""
    spans = sorted((span for span in timeline.spans if span.kind in _PASSES), key=lambda span: span.start)
    first = [
        span for before, span in zip([None, *spans], spans, strict=False) if not before or before.kind != span.kind
    ]
    size = -(-len(seconds) // _COLUMNS)
    starts = [_LEFT + bisect_left(seconds, span.start) / size * frame.column for span in first]
    for span, start, end in zip(first, starts, [*starts, width - _RIGHT][1:], strict=True):
        yield Line(x1=start, y1=frame.bottom, x2=start, y2=frame.bottom + 24, colour="muted")
        yield Label(x=(start + end) / 2, y=frame.bottom + 15, text=kind_word(span.kind), size=11, anchor="middle")


def _columns(levels: list[Level]) -> list[Level]:
    size = -(-len(levels) // _COLUMNS)
    groups = (levels[start : start + size] for start in range(0, len(levels), size))
    return [max(group, key=lambda level: sum(level.values())) for group in groups]


def _band(kind: str, sizes: list[int], below: list[int], frame: _Frame) -> Iterator[Rect]:
    """Rectangles of one kind; neighbours of the same height and place are one."""
    start = 0
    for end in range(1, len(sizes) + 1):
        same = end < len(sizes) and (sizes[end], below[end]) == (sizes[start], below[start])
        if same:
            continue
        if sizes[start] * frame.scale >= 0.5:
            y = frame.bottom - (below[start] + sizes[start]) * frame.scale
            wide = (end - start) * frame.column
            high = sizes[start] * frame.scale
            yield Rect(x=_LEFT + start * frame.column, y=y, width=wide + 0.3, height=high, fill=kind)
        start = end


def _grid(top: float, frame: _Frame, width: float) -> Iterator[Label | Line]:
    step = round_step(top, 5)
    for number in range(int(top / step) + 1):
        y = frame.bottom - number * step * frame.scale
        yield Line(x1=_LEFT - 4, y1=y, x2=width - _RIGHT, y2=y)
        text = format_bytes(number * step).replace(".0 ", " ") if number else "0"
        yield Label(x=_LEFT - 10, y=y, text=text, size=12, anchor="end", colour="muted")
    middle = (_LEFT + width - _RIGHT) / 2
    yield Label(x=middle, y=frame.bottom + 38, text=say("curve.axis"), size=12, anchor="middle", colour="muted")


def _mark(place: int, top: float, frame: _Frame, width: float) -> Iterator[Rect | Label]:
    x, y, text = (
        _LEFT + (place + 0.5) * frame.column,
        frame.bottom - top * frame.scale,
        say("curve.peak", top=format_bytes(top)),
    )
    yield Rect(x=x - 6, y=y - 6, width=12, height=12, radius=5.9, stroke="ink", stroke_width=2.5)
    left = x + 14 if x + 20 + text_width(text, 13, bold=True) < width else x - 14 - text_width(text, 13, bold=True)
    yield Label(x=left, y=y - 6, text=text, size=13, bold=True)
