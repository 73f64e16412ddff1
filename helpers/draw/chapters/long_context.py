"""Draws chapter 13: which rank computes which part of causal attention, and how much work that is for each rank.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.palette import kind_style, rank_paint
from helpers.draw.rows import BarStyle, Part
from helpers.draw.scene import MARGIN, WIDTH, Label, Rect, Scene, heading
from helpers.learner.words import book

words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
_CELL, _LEFT, _BARS = 13.0, 76.0, 400.0  # pixels: a cell of the triangle, its left edge, the left edge of the bars
_BAR = BarStyle(height=26, pitch=38)


def causal_work_scene(shards: Sequence[Sequence[int]], work: Sequence[float], *, title: str) -> Scene:
    """The pairs of a query and a key that a causal mask keeps, in the colour of the rank that has the query.

    shards: for each rank the indices of its tokens, of a sequence short enough to draw. work: for each rank the pairs
    that it computes, of any sequence. Bars beside the triangle compare them with the mean of the ranks, and what a rank
    waits for the busiest one is drawn as waiting.
    """
    owner = {token: rank for rank, tokens in enumerate(shards) for token in tokens}
    waits = [(words("causal.waits"), kind_style("waiting"))] if min(work) < max(work) else []
    items, top = heading(title, waits)
    top += 22
    items.append(Label(x=_LEFT, y=top - 10, text=words("causal.keys"), size=11, colour="muted"))
    for query in range(len(owner)):
        y, kind = top + query * _CELL, rank_paint(owner[query])
        if query == 0 or owner[query] != owner[query - 1]:
            items.append(Label(x=_LEFT - 8, y=y + _CELL / 2, text=f"rank {owner[query]}", size=11, anchor="end"))
        items += [
            Rect(x=_LEFT + key * _CELL, y=y, width=_CELL - 1, height=_CELL - 1, **kind_style(kind))
            for key in range(query + 1)
        ]
    items += _work_bars(work, top)
    shares = [each / (sum(work) / len(work)) for each in work]
    summary = " ".join(words("causal.row", rank=rank, share=f"{share:.2f}") for rank, share in enumerate(shares))
    return Scene(height=top + len(owner) * _CELL + MARGIN, title=title, summary=summary, items=items)


def _work_bars(work: Sequence[float], top: float) -> Iterator[Rect | Label]:
    """A bar for each rank: its work, and how long it waits, in means of the ranks."""
    mean, most = sum(work) / len(work), max(work)
    scale = (WIDTH - _BARS - 70) / most
    yield Label(x=_BARS, y=top - 10, text=words("causal.work"), size=11, colour="muted")
    for rank, pairs in enumerate(work):
        y = top + 8 + rank * _BAR.pitch
        yield Label(x=_BARS - 8, y=y + _BAR.height / 2, text=f"rank {rank}", size=12, anchor="end")
        parts = [Part(text="", kind=rank_paint(rank), size=pairs), Part(text="", kind="waiting", size=most - pairs)]
        yield from _BAR.parts(parts, _BARS, y, scale)
        yield Label(x=_BARS + most * scale + 8, y=y + _BAR.height / 2, text=f"{pairs / mean:.2f}", size=12, bold=True)
