"""Draws chapter 13: which rank computes which part of causal attention, and how blocks and gradients travel in a ring.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.palette import kind_style, rank_paint
from helpers.draw.rows import BarStyle, Part
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, heading, labelled_box
from helpers.learner.words import book

words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
_CELL, _LEFT, _BARS = 13.0, 76.0, 400.0  # pixels: a cell of the triangle, its left edge, the left edge of the bars
_BAR = BarStyle(height=26, pitch=38)
_BOX, _HOP_GAP, _RANK_PITCH = 24.0, 22.0, 60.0  # pixels: height of a block, between two hops, from rank to rank


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


def ring_scene(num_ranks: int, *, title: str) -> Scene:
    """Which block each rank has after each hop of a ring, of contiguous shards, and the gradients one hop behind.

    A box has the colour of the rank that owns the block, and is pale where the causal mask hides the block completely.
    The box below it is what arrives in backward: the gradient of the same block, and of how many ranks it is the sum.
    """
    items, top = heading(title, [])
    width = (WIDTH - _LEFT - MARGIN) / (num_ranks + 1) - _HOP_GAP
    items += [
        Label(x=MARGIN, y=top + 34 + rank * _RANK_PITCH, text=f"rank {rank}", size=12) for rank in range(num_ranks)
    ]
    for hop in range(num_ranks + 1):
        x = _LEFT + hop * (width + _HOP_GAP)
        name = {0: words("ring.own"), num_ranks: words("ring.last")}.get(hop, words("ring.hop", hop=hop))
        items.append(Label(x=x, y=top + 8, text=name, size=11, colour="muted"))
        for rank in range(num_ranks):
            y, owner = top + 22 + rank * _RANK_PITCH, (rank - hop) % num_ranks
            if hop < num_ranks:
                items += labelled_box(x, y, width, _BOX, _block_text(rank, owner), 11, **_block_style(rank, owner))
            if hop > 1:
                text = words("ring.gradient", owner=owner, parts=hop - 1)
                items += labelled_box(x, y + _BOX + 2, width, _BOX - 4, text, 10, fill="surface", stroke="muted")
            if rank and 0 < hop < num_ranks:  # the way from the rank before, which had this block
                before = y - _RANK_PITCH + _BOX / 2
                items.append(Line(x1=x - _HOP_GAP, y1=before, x2=x - 2, y2=y + _BOX / 2, colour="muted", arrow=True))
    hops = [
        ", ".join(_block_text(rank, (rank - hop) % num_ranks) for rank in range(num_ranks)) for hop in range(num_ranks)
    ]
    summary = " ".join(words("ring.row", hop=hop, blocks=blocks) for hop, blocks in enumerate(hops))
    return Scene(height=top + 22 + num_ranks * _RANK_PITCH, title=title, summary=summary, items=items)


def _block_text(rank: int, owner: int) -> str:
    part = "hidden" if owner > rank else "half" if owner == rank else "all"
    return words(f"ring.{part}", owner=owner)


def _block_style(rank: int, owner: int) -> dict[str, str]:
    return {"fill": "panel", "stroke": "rule"} if owner > rank else kind_style(rank_paint(owner))
