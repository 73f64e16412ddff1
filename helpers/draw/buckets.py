"""Gradients in the order in which they become ready, packed into buckets: each bucket is one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, text_width
from helpers.quantities.units import format_bytes

_SIDE, _GAP, _PAD = 16.0, 16.0, 6.0  # pixels: margin, between two buckets, around the gradients of a bucket
_BOX, _WORDS = 34.0, 22.0  # heights: of a gradient, of a line of words
LEGEND = [
    ("gradient, as wide as its bytes", {"fill": "gradients"}),
    ("bucket: one message", {"fill": "panel", "stroke": "communication", "stroke_width": 2}),
]


def buckets_scene(
    buckets: Sequence[Sequence[tuple[str, int]]],
    *,
    cap: int,
    first_cap: int = 0,
    title: str = "",
    width: float = WIDTH,
) -> Scene:
    """A Scene of `buckets`: of each the (name, bytes) of its gradients, in the order of backward. cap: bytes.

    The last bucket, where it has fewer than `cap` bytes, is what was left; the others are full, each by its own cap.
    first_cap: bytes of the first bucket's; with it a line in each full bucket says where its cap was reached.
    ValueError for an empty bucket, or a gradient without bytes.
    """
    if not buckets or not all(buckets) or min(size for bucket in buckets for _, size in bucket) <= 0:
        raise ValueError("buckets_scene got an empty bucket or gradient; give (name, bytes) pairs, bytes above 0")
    totals = [sum(size for _, size in bucket) for bucket in buckets]
    title = title or f"Gradients in the order of backward, in buckets of {format_bytes(cap)}"
    head, top = heading(title, LEGEND, width)
    top += _WORDS if first_cap else 0
    room = width - 2 * _SIDE - _GAP * (len(buckets) - 1) - 2 * _PAD * len(buckets)
    scale, x = room / sum(totals), _SIDE
    items: list[Rect | Label | Line] = [*head]
    for number, bucket in enumerate(buckets):
        items += _bucket(bucket, number, x, top + 10, scale, totals[number] >= cap or number < len(buckets) - 1)
        own = cap if number else first_cap
        if first_cap and totals[number] >= own:
            items += _cap(own, x + _PAD + own * scale, top + 10)
        x += totals[number] * scale + 2 * _PAD + _GAP
    words = [f"Bucket {number}: {_sentence(bucket)}." for number, bucket in enumerate(buckets)]
    height = top + 10 + _BOX + 2 * _PAD + 2 * _WORDS + 12
    return Scene(width=width, height=height, title=title, summary=" ".join(words), items=tuple(items))


def _bucket(
    bucket: Sequence[tuple[str, int]], number: int, left: float, top: float, scale: float, is_full: bool
) -> Iterator[Rect | Label]:
    total = sum(size for _, size in bucket)
    width = total * scale + 2 * _PAD
    outside = {"x": left, "y": top, "width": width, "height": _BOX + 2 * _PAD, "radius": 5}
    yield Rect(**outside, fill="panel", stroke="communication", stroke_width=2.0)
    x = left + _PAD
    for name, size in bucket:
        yield from _gradient(name, size, x, top + _PAD, size * scale)
        x += size * scale
    middle, y = left + width / 2, top + _BOX + 2 * _PAD + 16
    state = f"{format_bytes(total)}, {'full' if is_full else 'what was left'}"
    middle = max(middle, 4 + max(text_width(state, 11), text_width("all_reduce 0", 12, bold=True)) / 2)
    yield Label(x=middle, y=y, text=f"all_reduce {number}", bold=True, anchor="middle")
    yield Label(x=middle, y=y + 20, text=state, size=11, anchor="middle", colour="muted")


def _cap(cap: int, x: float, top: float) -> Iterator[Line | Label]:
    text = f"cap {format_bytes(cap)}"
    yield Line(x1=x, y1=top - 6, x2=x, y2=top + _BOX + 2 * _PAD, colour="ink", width=2, dashed=True)
    yield Label(x=max(x, _SIDE + text_width(text, 11) / 2), y=top - 13, text=text, size=11, anchor="middle")


def _gradient(name: str, size: int, x: float, y: float, width: float) -> Iterator[Rect | Label]:
    words = f"{name}: {format_bytes(size)}"
    yield Rect(x=x, y=y, width=max(1.0, width - 3), height=_BOX, radius=3, fill="gradients", tooltip=words)
    fits = next((text for text in (words, name) if text_width(text, 11) <= width - 8), "")
    if fits:
        yield Label(x=x + (width - 3) / 2, y=y + _BOX / 2, text=fits, size=11, anchor="middle", on="gradients")


def _sentence(bucket: Sequence[tuple[str, int]]) -> str:
    gradients = ", ".join(f"{name} {format_bytes(size)}" for name, size in bucket)
    return f"{gradients}; together {format_bytes(sum(size for _, size in bucket))}"
