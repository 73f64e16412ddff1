"""Draws chapter 14: which token goes to which expert, how busy each expert is, and what of that exceeds a capacity.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. The explorer of experts uses `expert_load_scene` too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.axis import row_lines, ticks
from helpers.draw.palette import NUM_RANK_PAINTS, kind_style, rank_paint
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, centred_label, heading, labelled_box
from helpers.learner.words import book

words = book("experts").section("pictures")  # what a reader sees, in the learner's language: learner/words/experts.yaml
_LEFT, _RIGHT, _HEIGHT = 62.0, 100.0, 190.0  # pixels: beside the bars of experts, and the highest bar
_ROW, _ACROSS = 20.0, 8  # pixels from one square to the next, and how many of an expert stand beside each other


def expert_load_scene(
    load: Sequence[float], *, title: str, ranks: int = 1, capacity: float | None = None, summary: str = ""
) -> Scene:
    """A bar per expert, as high as its number of rows, in the colour of its rank; a line at the mean.

    ranks: among how many ranks the experts are divided, in order; if there are more than colours, all bars have one.
    capacity: the rows that an expert takes; what is above it is drawn as dropped.
    """
    ranks = ranks if ranks <= NUM_RANK_PAINTS else 1
    mean, most = sum(load) / len(load), max(*load, capacity or 0)
    entries = [(words("dropped"), kind_style("waiting"))] if capacity is not None and max(load) > capacity else []
    items, top = heading(title, entries)
    top += 8
    bottom, pitch = top + _HEIGHT, (WIDTH - _LEFT - _RIGHT) / len(load)
    scale = _HEIGHT / most
    items += row_lines([(bottom - value * scale, f"{value:,.0f}") for value in ticks(most, 4)], _LEFT, WIDTH - _RIGHT)
    for expert, rows in enumerate(load):
        x, width = _LEFT + expert * pitch, pitch - min(6.0, pitch / 4)
        kept, tip = min(rows, most if capacity is None else capacity), words("tip", expert=expert, rows=rows)
        paint = kind_style(rank_paint(expert * ranks // len(load)))
        items.append(Rect(x=x, y=bottom - kept * scale, width=width, height=kept * scale, tooltip=tip, **paint))
        if kept < rows:
            above = {"y": bottom - rows * scale, "height": (rows - kept) * scale}
            items.append(Rect(x=x, width=width, tooltip=tip, **above, **kind_style("waiting")))
        if len(load) <= 16:
            items.append(centred_label(x + width / 2, bottom + 11, f"{expert}", 11))
    items += _level(words("mean", rows=mean), bottom - mean * scale, text_below=3)
    if capacity is not None and (capacity - mean) * scale > 7:  # where both texts have room
        items += _level(words("capacity", rows=capacity), bottom - capacity * scale, text_below=-3)
    items.append(Label(x=_LEFT, y=bottom + 28, text=words("experts", ranks=ranks), size=11, colour="muted"))
    text = words("load", most=max(load), times=f"{max(load) / mean:.2f}")
    return Scene(height=bottom + 28 + MARGIN, title=title, summary=summary or text, items=items)


def _level(text: str, y: float, *, text_below: float) -> Iterator[Line | Label]:
    """A dashed line over all bars, with a text on the right, so many pixels lower."""
    yield Line(x1=_LEFT, y1=y, x2=WIDTH - _RIGHT, y2=y, colour="ink", width=1.5, dashed=True)
    yield Label(x=WIDTH - _RIGHT + 5, y=y + text_below, text=text, size=11)


def dispatch_scene(choices: Sequence[Sequence[Sequence[int]]], num_experts: int, *, title: str) -> Scene:
    """The rows of tokens before dispatch and after it. choices: [rank][token], the k experts of each token.

    A square is the copy of a token for one expert, whose number stands on it, in the colour of the token's rank. Before
    dispatch, the k squares of a token stand below each other.
    """
    size, share, k = len(choices), num_experts // len(choices), len(choices[0][0])
    column = (WIDTH - 2 * MARGIN) / size
    items, top = heading(title, [])
    first, second = top + 24, top + 24 + k * _ROW + 46
    items.append(Label(x=MARGIN, y=top + 6, text=words("before"), size=11, colour="muted"))
    items.append(Label(x=MARGIN, y=second - 22, text=words("after"), size=11, colour="muted"))
    bottom = second
    for rank in range(size):
        x, y = MARGIN + rank * column, second
        for number in range(k):
            chosen = [(rank, token[number]) for token in choices[rank]]
            items += _squares(chosen, x, first + 14 + number * _ROW, across=len(chosen))
        items.append(Label(x=x, y=first, text=f"rank {rank}", size=12, bold=True))
        for expert in range(rank * share, (rank + 1) * share):
            rows = [(source, expert) for source, tokens in enumerate(choices) for token in tokens if expert in token]
            items.append(Label(x=x, y=y, text=words("expert", expert=expert, rows=len(rows)), size=11))
            items += _squares(rows, x, y + 12)
            y += 12 + max(1, -(-len(rows) // _ACROSS)) * _ROW + 12
        bottom = max(bottom, y)
    counts = [sum(expert in token for tokens in choices for token in tokens) for expert in range(num_experts)]
    summary = " ".join(words("expert", expert=expert, rows=rows) + "." for expert, rows in enumerate(counts))
    return Scene(height=bottom + 4, title=title, summary=summary, items=items)


def _squares(rows: Sequence[tuple[int, int]], left: float, top: float, across: int = _ACROSS) -> Iterator[Rect | Label]:
    """A square for each row (rank of its token, expert), `across` of them beside each other."""
    for place, (source, expert) in enumerate(rows):
        x, y = left + place % across * _ROW, top + place // across * _ROW
        yield from labelled_box(x, y, _ROW - 2, _ROW - 2, f"{expert}", 11, **kind_style(rank_paint(source)))
