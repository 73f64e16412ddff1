"""Draws what chapter 03 shows of DDP: gradients in buckets, messages as long as their bytes, and token weights.

DDP collects the gradients of backward in buckets of at most `cap` bytes, and sends each bucket as one all-reduce. A
token's weight is its share of the loss that the ranks average.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from helpers.draw.palette import rank_paint
from helpers.draw.rows import MESSAGES, BarRow, Part, rows_scene
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    heading,
    kinds_legend,
    labelled_box,
    text_width,
    title_label,
)
from helpers.learner.words import book
from helpers.quantities.units import format_bytes

# What a reader sees, by name, in the learner's language: learner/words/pictures.yaml. buckets_scene is in English.
words = book("pictures")
_BUCKETS_SIDE, _BUCKETS_GAP, _PAD = 16.0, 16.0, 6.0  # pixels: margin, between buckets, around a bucket's gradients
_GRADIENT, _LINE = 34.0, 22.0  # heights in pixels: of a gradient, and of a line of text
_BUCKETS_LEGEND = [
    ("gradient, as wide as its bytes", {"fill": "gradients"}),
    ("bucket: one message", {"fill": "panel", "stroke": "communication", "stroke_width": 2}),
]
_TALLEST, _RANKS_GAP = 96.0, 22.0  # pixels of token weights: the heaviest token, and between two ranks


# -- buckets ---------------------------------------------------------------------------------------------------------
def buckets_scene(
    buckets: Sequence[Sequence[tuple[str, int]]], *, cap: int, first_cap: int = 0, title: str = ""
) -> Scene:
    """A Scene of `buckets`, each a list of (name, bytes) of its gradients in the order of backward.

    `cap` is in bytes. A last bucket of fewer than `cap` bytes holds what was left over; all others are full.
    `first_cap` is the cap of the first bucket; with it, a line in each full bucket shows where the cap was reached.
    Raises ValueError for an empty bucket, or for a gradient without bytes.
    """
    if not buckets or not all(buckets) or min(size for bucket in buckets for _, size in bucket) <= 0:
        raise ValueError("buckets_scene got an empty bucket or gradient; give (name, bytes) pairs, bytes above 0")
    totals = [sum(size for _, size in bucket) for bucket in buckets]
    title = title or f"Gradients in the order of backward, in buckets of {format_bytes(cap)}"
    items, top = heading(title, _BUCKETS_LEGEND)  # title and legend, and the y where they end
    top += 10 + (_LINE if first_cap else 0)
    spaces = 2 * _BUCKETS_SIDE + _BUCKETS_GAP * (len(buckets) - 1) + 2 * _PAD * len(buckets)
    scale, x = (WIDTH - spaces) / sum(totals), _BUCKETS_SIDE  # scale: pixels per byte
    for number, bucket in enumerate(buckets):
        is_full = totals[number] >= cap or number < len(buckets) - 1
        items += _bucket(bucket, number, x, top, scale, is_full)
        cap_of_bucket = cap if number else first_cap  # only the first bucket has a cap of its own
        if first_cap and totals[number] >= cap_of_bucket:
            items += _cap_line(cap_of_bucket, x + _PAD + cap_of_bucket * scale, top)
        x += totals[number] * scale + 2 * _PAD + _BUCKETS_GAP
    summary = " ".join(f"Bucket {number}: {_bucket_text(bucket)}." for number, bucket in enumerate(buckets))
    return Scene(height=top + _GRADIENT + 2 * _PAD + 2 * _LINE + 12, title=title, summary=summary, items=items)


def _bucket(
    bucket: Sequence[tuple[str, int]], number: int, left: float, top: float, scale: float, is_full: bool
) -> Iterator[Rect | Label]:
    """A bucket as a frame around its gradients; below it the number of its message, its bytes, and whether it is
    full."""
    total = sum(size for _, size in bucket)
    width, height = total * scale + 2 * _PAD, _GRADIENT + 2 * _PAD
    style = {"fill": "panel", "stroke": "communication", "stroke_width": 2.0, "radius": 5}
    yield Rect(x=left, y=top, width=width, height=height, **style)
    x = left + _PAD
    for name, size in bucket:
        yield from _gradient(name, size, x, top + _PAD, size * scale)
        x += size * scale
    name, state = f"all_reduce {number}", f"{format_bytes(total)}, {'full' if is_full else 'not full'}"
    text_pixels = max(text_width(state, 11), text_width("all_reduce 0", 12, bold=True))
    middle, y = max(left + width / 2, 4 + text_pixels / 2), top + height + 16  # never beyond the left edge
    yield Label(x=middle, y=y, text=name, bold=True, anchor="middle")
    yield Label(x=middle, y=y + 20, text=state, size=11, anchor="middle", colour="muted")


def _cap_line(cap: int, x: float, top: float) -> Iterator[Line | Label]:
    """A line where a bucket reached its cap, with the cap above."""
    text = f"cap {format_bytes(cap)}"
    yield Line(x1=x, y1=top - 6, x2=x, y2=top + _GRADIENT + 2 * _PAD, colour="ink", width=2, dashed=True)
    middle = max(x, _BUCKETS_SIDE + text_width(text, 11) / 2)
    yield Label(x=middle, y=top - 13, text=text, size=11, anchor="middle")


def _gradient(name: str, size: int, x: float, y: float, width: float) -> Iterator[Rect | Label]:
    """A gradient with its name and bytes, its name alone, or no text, by what fits."""
    full_text = f"{name}: {format_bytes(size)}"
    style = {"radius": 3, "fill": "gradients", "tooltip": full_text}
    text = next((text for text in (full_text, name) if text_width(text, 11) <= width - 8), "")
    return labelled_box(x, y, max(1.0, width - 3), _GRADIENT, text, 11, **style)


def _bucket_text(bucket: Sequence[tuple[str, int]]) -> str:
    """The gradients of a bucket and the sum of their bytes, in words."""
    gradients = ", ".join(f"{name} {format_bytes(size)}" for name, size in bucket)
    return f"{gradients}; together {format_bytes(sum(size for _, size in bucket))}"


# -- messages --------------------------------------------------------------------------------------------------------
def payloads_scene(rows: Mapping[str, Sequence[int]], *, title: str) -> Scene:
    """A row of messages for each name, as long as their bytes; `rows` maps names to the bytes of messages, in order.

    A row without messages ends in "0 B". Raises ValueError if no row has a message.
    """
    totals = {name: sum(sizes) for name, sizes in rows.items()}
    if not any(totals.values()):
        raise ValueError("payloads_scene found no message; give a name to the bytes of its messages, above 0")
    bars = [BarRow(name=name, parts=_messages(rows[name]), end=format_bytes(total)) for name, total in totals.items()]
    sentences = [words("payloads.row", name=name, sizes=[*map(format_bytes, rows[name])] or ["0 B"]) for name in rows]
    legend, summary = kinds_legend(["communication"]), " ".join(sentences)
    return rows_scene(bars, MESSAGES, title=title, legend=legend, summary=summary)


def _messages(sizes: Sequence[int]) -> list[Part]:
    """The parts of a row; a message that is alone in its row has no text, since its bytes stand at the end."""
    texts = [format_bytes(size) for size in sizes]
    return [
        Part(text=text if len(sizes) > 1 else "", kind="communication", size=size, tooltip=text)
        for text, size in zip(texts, sizes, strict=True)
    ]


# -- token weights ---------------------------------------------------------------------------------------------------
def token_weights_scene(lengths: Sequence[int], *, title: str) -> Scene:
    """What each token weighs in the mean of the ranks' means, and below that in the mean of all tokens.

    Each token is as tall as its weight. `lengths` are the numbers of tokens of the ranks. Raises ValueError where a
    rank has none, since it then has no mean.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"the ranks have {list(lengths)} tokens; give each of them one or more")
    mean_of_means = [Fraction(1, len(lengths) * length) for length in lengths]
    mean_of_all = [Fraction(1, sum(lengths))] * len(lengths)
    token_width = (WIDTH - 2 * MARGIN - _RANKS_GAP * (len(lengths) - 1)) / sum(lengths)
    items: list[Rect | Label] = [title_label(title)]
    bottom, sentences = 30.0, []
    # (name of the text, weights, pixels above the tallest token): first "own", in which each rank averages its own
    # tokens.
    for name, weights, space in (("own", mean_of_means, 14), ("all", mean_of_all, 40)):
        heights = [float(weight / max(mean_of_means)) * _TALLEST for weight in weights]
        text = words(f"tokens.{name}")
        items.append(Label(x=WIDTH - MARGIN, y=bottom + 20, text=text, size=13, anchor="end", bold=True))
        bottom += max(heights) + space
        items += _tokens(lengths, weights, heights, token_width, bottom)
        sentences.append(words("tokens.row", way=text, weights=[*map(str, weights)]))
        bottom += 38
    return Scene(height=bottom + 4, title=title, summary=" ".join(sentences), items=items)


def _tokens(
    lengths: Sequence[int], weights: Sequence[Fraction], heights: Sequence[float], token_width: float, bottom: float
) -> Iterator[Rect | Label]:
    """The tokens of all ranks side by side; `weights` and `heights` have one entry for each rank's tokens."""
    x = MARGIN
    for rank, length in enumerate(lengths):
        height, weight = heights[rank], str(weights[rank])
        style = {"fill": rank_paint(rank), "tooltip": weight, "height": height, "y": bottom - height}
        yield from (Rect(x=x + token * token_width, width=token_width - 2, **style) for token in range(length))
        middle = x + length * token_width / 2
        yield Label(x=middle, y=bottom + 12, text=f"rank {rank}", size=12, anchor="middle", colour="muted")
        yield Label(x=middle, y=bottom + 28, text=weight, size=13, anchor="middle", bold=True)
        x += length * token_width + _RANKS_GAP
