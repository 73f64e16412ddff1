"""Draws what fills the memory of ranks: stacked bars, a curve over the time of a step, and equal stacks of many ranks.

A MemoryBreakdown has the bytes of a rank by kind, which are MEMORY_KINDS: parameters, gradients, optimizer and so on.
`memory_scene` shows a bar per rank or plan against a device's limit, `memory_curve_scene` the bytes of one rank change
by change, and `replicas_scene` how often the same states are stored in data parallelism. Chapters 05, 07 and 08 and the
memory explorers use them.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from helpers.draw.axis import bytes_tick, row_lines, ticks
from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.rows import EXCESS, BarRow, BarStyle, memory_parts, rows_scene
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, centred_label, dot, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes
from helpers.records import MEMORY_KINDS, MemoryBreakdown, Timeline

words = book("memory")  # what a reader sees, by name, in the learner's language: learner/words/memory.yaml
pictures_words = book("pictures")  # likewise, for the picture of replicas: learner/words/pictures.yaml
# The bars, which are lower where there are many; right of the longest one stand its total and what is over the limit.
_FEW_BARS = BarStyle(height=28, pitch=38, right=116)
_MANY_BARS = BarStyle(height=20, pitch=30, right=116)
# Pixels of the curve: its left edge, its right margin, its height, and what stands below it.
_CURVE_LEFT, _CURVE_RIGHT, _CURVE_HEIGHT, _CURVE_BELOW = 64.0, 20.0, 240.0, 52.0
_PEAK_SPACE = 24.0  # pixels of the curve's height that stay free above its highest point, for that point's mark
_OVERLAP = 0.3  # pixels by which a rectangle covers its right neighbour, so that no pale line shows between the two
_PASSES = ("forward", "backward", "optimizer")  # the kinds of spans that are named below the axis of the curve
_MOST_COLUMNS = 220  # more could not be told apart; of the changes that share a column the highest level is shown
_REPLICAS_SIDE, _REPLICAS_HEIGHT = 14.0, 190.0  # pixels: the margins, and the height of the highest stack
Level = dict[str, int]  # bytes by kind


# -- bars ------------------------------------------------------------------------------------------------------------
def memory_scene(
    breakdowns: Mapping[str, MemoryBreakdown],
    *,
    capacity: float | None = None,
    capacity_name: str = "",
    title: str = "",
) -> Scene:
    """One stacked bar for each name ("rank 0", "ZeRO-1"); a line marks `capacity` bytes, if given.

    The part of a bar beyond `capacity` is framed, and its bytes stand beside the bar. `capacity_name`, such as "H100",
    stands before the bytes at the line. Raises ValueError when there is nothing to draw, or for a capacity that is not
    above 0.
    """
    if capacity is not None and not capacity > 0:
        raise ValueError(f"capacity is {capacity!r} bytes, but a limit lies above 0; leave it out to draw none")
    if not capacity and not any(memory.total for memory in breakdowns.values()):
        raise ValueError("memory_scene got no bytes to draw; give a dict such as {'rank 0': MemoryBreakdown(...)}")
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(each, kind) for each in breakdowns.values())]
    rows = [_bar(name, memory, kinds, capacity) for name, memory in breakdowns.items()]
    legend = kinds_legend(kinds) + ([(words("over_limit"), EXCESS)] if any(row.over for row in rows) else [])
    limit = (capacity, f"{capacity_name or words('capacity')} {format_bytes(capacity)}") if capacity else None
    summary = " ".join(_bar_sentence(name, memory, capacity) for name, memory in breakdowns.items())
    style = _FEW_BARS if len(rows) <= 8 else _MANY_BARS
    # The text "where" is the title "where the memory goes".
    head = {"title": title or words("where"), "legend": legend, "summary": summary}
    return rows_scene(rows, style, **head, limit=limit, has_bytes_axis=True)


def _bar(name: str, memory: MemoryBreakdown, kinds: list[str], capacity: float | None) -> BarRow:
    """A bar with the bytes of each kind, its total, and how much of that is beyond the capacity."""

    def tooltip(kind: str, size: int) -> str:
        return words("part", name=name, kind=kind_word(kind), num_bytes=size)

    excess = _excess(memory, capacity)
    over = words("too_much", size=format_bytes(excess)) if excess else ""
    parts = memory_parts(memory, kinds, tooltip, format_bytes)
    return BarRow(name=name, parts=parts, end=format_bytes(memory.total), over=over)


def _excess(memory: MemoryBreakdown, capacity: float | None) -> float:
    """The bytes beyond the capacity, 0 without one."""
    return max(0.0, memory.total - capacity) if capacity else 0.0


def _bar_sentence(name: str, memory: MemoryBreakdown, capacity: float | None) -> str:
    """A bar for readers who cannot see it: its total, its kinds, and whether it fits where there is a limit."""
    parts, excess = _kind_texts(memory), _excess(memory, capacity)
    ending = words("ending_over" if excess else "ending_fits", size=format_bytes(excess)) if capacity else ""
    listed = words("parts", parts=parts) if parts else ""
    return words("bar", name=name, total=format_bytes(memory.total), parts=listed, ending=ending)


def _kind_texts(breakdown: MemoryBreakdown) -> list[str]:
    """A text such as "parameters 40 GB" for each kind of which there is something."""
    kinds = (kind for kind in MEMORY_KINDS if getattr(breakdown, kind))
    return [f"{kind_word(kind)} {format_bytes(getattr(breakdown, kind))}" for kind in kinds]


# -- a curve over time -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Curve:
    """Where the curve lies. A column, `column` pixels wide, shows one change, or several where there are many.

    `scale` is in pixels per byte; `bottom` is the y of 0 bytes.
    """

    column: float
    scale: float
    bottom: float


def memory_curve_scene(timeline: Timeline, *, title: str) -> Scene:
    """The bytes that a rank holds, stacked by kind, after each allocation and free that `timeline.held` records.

    The axis counts allocations and frees instead of seconds, so the picture is the same on every machine. The highest
    point has a mark, and below the axis stands the pass in which the rank was, where the timeline has spans.
    Raises ValueError where nothing was held.
    """
    if not timeline.held:
        raise ValueError("memory_curve_scene got a timeline that holds nothing; record it with record_memory")
    changes = _changes(timeline)
    size = -(-len(changes) // _MOST_COLUMNS)  # how many changes share a column, rounded up
    levels = _columns(list(_levels(changes)), size)
    totals = [sum(level.values()) for level in levels]
    peak, kinds = max(totals), [kind for kind in MEMORY_KINDS if any(level[kind] for level in levels)]
    items, y = heading(title, kinds_legend(kinds))
    column = (WIDTH - _CURVE_LEFT - _CURVE_RIGHT) / len(levels)
    curve = _Curve(column=column, scale=(_CURVE_HEIGHT - _PEAK_SPACE) / peak, bottom=y + _CURVE_HEIGHT)
    marks = ((curve.bottom - num_bytes * curve.scale, bytes_tick(num_bytes)) for num_bytes in ticks(peak, 5))
    items += row_lines(marks, _CURVE_LEFT - 4, WIDTH - _CURVE_RIGHT)
    middle = (_CURVE_LEFT + WIDTH - _CURVE_RIGHT) / 2
    items.append(centred_label(middle, curve.bottom + 38, words("curve.axis"), colour="muted"))
    for number, kind in enumerate(kinds):
        # The bytes of the kinds that are stacked below this one, for each column.
        below = [sum(level[lower_kind] for lower_kind in kinds[:number]) for level in levels]
        items += _band(kind, [level[kind] for level in levels], below, curve)
    items += _passes(timeline, [seconds for seconds, *_ in changes], size, curve)
    items += _peak_mark(totals.index(peak), peak, curve)
    summary, height = words("curve.says", top=format_bytes(peak)), curve.bottom + _CURVE_BELOW
    return Scene(height=height, title=title, summary=summary, items=items)


def _changes(timeline: Timeline) -> list[tuple[float, str, int]]:
    """(seconds, kind, bytes more or less), in the order of time."""
    # A holding is a tensor that the rank holds from `start` to `end`. What is held at the end is never freed.
    changes = [(holding.start, holding.kind, holding.num_bytes) for holding in timeline.held]
    freed = (holding for holding in timeline.held if holding.end < timeline.end)
    changes += [(holding.end, holding.kind, -holding.num_bytes) for holding in freed]
    return sorted(changes)


def _levels(changes: list[tuple[float, str, int]]) -> Iterator[Level]:
    """The bytes by kind after each change."""
    level = dict.fromkeys(MEMORY_KINDS, 0)
    for _, kind, num_bytes in changes:
        level[kind] += num_bytes
        yield dict(level)


def _columns(levels: list[Level], size: int) -> list[Level]:
    """A level for each column: the highest one of the `size` changes that share it."""
    groups = (levels[start : start + size] for start in range(0, len(levels), size))
    return [max(group, key=lambda level: sum(level.values())) for group in groups]


def _passes(timeline: Timeline, seconds: list[float], size: int, curve: _Curve) -> Iterator[Line | Label]:
    """The name of each pass below the changes that it made.

    A pass lasts until the next one starts, so what the loss allocates between forward and backward counts as forward.
    """
    spans = sorted((span for span in timeline.spans if span.kind in _PASSES), key=lambda span: span.start)
    # The first span of each pass: where spans that follow each other have the same kind, they are one pass.
    first_spans = [next(of_kind) for _, of_kind in groupby(spans, key=lambda span: span.kind)]
    # A pass begins at its first change, whose number bisection finds in the ascending times of all changes.
    starts = [_CURVE_LEFT + bisect_left(seconds, span.start) / size * curve.column for span in first_spans]
    for span, start, end in zip(first_spans, starts, [*starts, WIDTH - _CURVE_RIGHT][1:], strict=True):
        yield Line(x1=start, y1=curve.bottom, x2=start, y2=curve.bottom + 24, colour="muted")
        yield centred_label((start + end) / 2, curve.bottom + 15, kind_word(span.kind), 11)


def _band(kind: str, sizes: list[int], below: list[int], curve: _Curve) -> Iterator[Rect]:
    """The rectangles of one kind; neighbouring columns of the same height and place become one rectangle."""
    columns = enumerate(zip(sizes, below, strict=True))
    for (size, lower), run in groupby(columns, key=lambda column: column[1]):
        numbers, height = [number for number, _ in run], size * curve.scale  # the numbers of equal columns
        if height >= 0.5:
            x, y = _CURVE_LEFT + numbers[0] * curve.column, curve.bottom - (lower + size) * curve.scale
            yield Rect(x=x, y=y, width=len(numbers) * curve.column + _OVERLAP, height=height, fill=kind)


def _peak_mark(column: int, peak: float, curve: _Curve) -> Iterator[Rect | Label]:
    """A ring around the highest point, and its bytes on the side where there is room."""
    x, y = _CURVE_LEFT + (column + 0.5) * curve.column, curve.bottom - peak * curve.scale
    text = words("curve.peak", top=format_bytes(peak))
    yield dot(x, y, 12, stroke="ink", stroke_width=2.5)
    text_pixels = text_width(text, 13, bold=True)
    left = x + 14 if x + 20 + text_pixels < WIDTH else x - 14 - text_pixels
    yield Label(x=left, y=y - 6, text=text, size=13, bold=True)


# -- equal stacks ----------------------------------------------------------------------------------------------------
def replicas_scene(per_rank: MemoryBreakdown, num_ranks: int, *, capacity: float, title: str) -> Scene:
    """`num_ranks` equal stacks of what each rank holds, and a dashed line at `capacity` bytes, a device's memory.

    Raises ValueError for no rank or no bytes.
    """
    if num_ranks < 1 or not per_rank.total > 0:
        raise ValueError(
            f"replicas_scene got {num_ranks} ranks of {per_rank.total} bytes; give at least one rank and byte"
        )
    kinds = [kind for kind in MEMORY_KINDS if getattr(per_rank, kind)]
    items, top = heading(title, kinds_legend(kinds))
    scale = _REPLICAS_HEIGHT / max(per_rank.total, capacity)
    bottom, pitch = top + 10 + _REPLICAS_HEIGHT, (WIDTH - 2 * _REPLICAS_SIDE) / num_ranks
    for rank in range(num_ranks):
        items += _stack(per_rank, kinds, rank, _REPLICAS_SIDE + rank * pitch, bottom, max(1.0, pitch * 0.75), scale)
    items += _device_limit(capacity, bottom - capacity * scale)
    text = f"{num_ranks} × {format_bytes(per_rank.total)}"
    items.append(centred_label(WIDTH / 2, bottom + 18, text, 13, bold=True))
    total, parts = format_bytes(per_rank.total), _kind_texts(per_rank)
    summary = pictures_words("copies.summary", num=num_ranks, total=total, parts=parts)
    return Scene(height=bottom + 34, title=title, summary=summary, items=items)


def _stack(
    per_rank: MemoryBreakdown, kinds: list[str], rank: int, x: float, bottom: float, width: float, scale: float
) -> Iterator[Rect]:
    """The kinds of one rank, one above the other."""
    y = bottom
    for kind in kinds:
        height = getattr(per_rank, kind) * scale
        y -= height
        size = format_bytes(getattr(per_rank, kind))
        tooltip = f"{pictures_words('copies.gpu', number=rank)} · {kind_word(kind)} · {size}"
        texture = PAINTS[kind].texture if width > 4 else ""
        yield Rect(x=x, y=y, width=width, height=max(0.5, height - 1), fill=kind, texture=texture, tooltip=tooltip)


def _device_limit(capacity: float, y: float) -> Iterator[Rect | Label | Line]:
    """The line and its words, which stand on a background of their own because they lie over the stacks."""
    text = pictures_words("copies.limit", limit=bytes_tick(capacity))
    text_pixels = text_width(text, 13, bold=True) + 16
    yield Line(x1=_REPLICAS_SIDE - 6, y1=y, x2=WIDTH - _REPLICAS_SIDE + 6, y2=y, colour="ink", width=2, dashed=True)
    box = {"x": WIDTH / 2 - text_pixels / 2, "y": y - 12, "width": text_pixels, "height": 24, "radius": 4}
    yield Rect(**box, fill="surface")
    yield Rect(**box, stroke="ink")
    yield centred_label(WIDTH / 2, y, text, 13, bold=True)
