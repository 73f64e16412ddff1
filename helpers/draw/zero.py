"""Draws one step of training with ZeRO: every number that a rank holds, the bytes they take, and a model of real size.

ZeRO shards the optimizer state (stage 1), also the gradients (2) and also the parameters (3) over the ranks. The small
model has three LAYERS of three NUMBERS each; of every number there are three KINDS: a parameter, a gradient and the
optimizer's state. A ZeroStep says what each rank holds after one action, such as an all-gather. The state of a number
is OWN (this rank keeps it), EVERY (all ranks have the same), TERM (from this rank's batch alone, to be averaged) or
STALE (averaged on another rank meanwhile). The ZeRO explorer shows each step of `predict.by_hand.zero_steps`.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from helpers.draw.bars import BarRow, BarStyle, memory_parts
from helpers.draw.palette import kind_style, kind_word
from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    heading,
    kinds_legend,
    text_width,
)
from helpers.draw.tensor_parallel import number_text
from helpers.learner.words import book
from helpers.predict.by_hand.zero_steps import (
    BYTES,
    EVERY,
    KINDS,
    LAYERS,
    NUMBERS,
    OWN,
    STALE,
    TERM,
    ElementCopy,
    ZeroStep,
)
from helpers.quantities.units import format_bytes
from helpers.records import MemoryBreakdown

# Pixels of the numbers: the left edge, a cell's width and height, between two kinds, and from rank to rank.
_LEFT, _CELL_WIDTH, _CELL_HEIGHT, _KINDS_GAP, _PITCH = 92.0, 36.0, 19.0, 24.0, 84.0
_BYTES_LEFT, _PIXELS_PER_BYTE, _BAR = 478.0, 1.5, 13.0  # pixels: where the bars of bytes begin, per byte, their height
_STAGES = BarStyle(height=20, pitch=27, hidden_below=0)  # of the bars of the model of real size; no part is left out
_OWNER_COLOURS = ("rank4", "rank1", "rank6")  # of ranks 0 to 2; blue and green stand for kinds in this picture
_PALE = 0.35  # the opacity of numbers in the state TERM; ink is legible on it in both themes
words = book("zero")  # what a reader sees, by name, in the learner's language: learner/words/zero.yaml
_STATE_NAMES = {TERM: "term", EVERY: "every", STALE: "stale", OWN: "own"}  # the states by their names in zero.yaml


@dataclass(frozen=True, kw_only=True)
class StageBar:
    """A model of real size at one stage of ZeRO. `words` stands right of the bar, after the bytes.

    `chosen` is whether this is the stage of the picture above.
    """

    name: str
    memory: MemoryBreakdown
    words: str
    chosen: bool


def zero_scene(step: ZeroStep, *, title: str, bars: Sequence[StageBar], bars_title: str) -> Scene:
    """A row for each rank with its parameters, gradients and optimizer state by layer, and their bytes; below, `bars`.

    What this step computed is framed in ink, what it sent in the colour of communication.
    """
    ranks = range(len(step.copies))  # copies[rank][kind] maps (layer, number) to what the rank holds of it
    items, top = heading(title, _legend(step), 0)  # width 0 puts the legend below the title, however short that is
    for kind in KINDS:
        items.append(centred_label(_kind_middle(kind), top + 14, words(f"heading.{kind}"), 11, bold=True))
    items.append(Label(x=_BYTES_LEFT, y=top + 14, text=words("heading.now"), size=11, bold=True))
    top += 30
    for rank in ranks:
        items += _rank(step, rank, top + rank * _PITCH)
    if step.message:
        items += _message_arrows(step, len(step.copies), top)
    below, height = _stages(bars, bars_title, top + len(step.copies) * _PITCH - 8)
    totals = [f"{bar.name} {format_bytes(bar.memory.total)}" for bar in bars]
    summary = words("summary", held=[_rank_text(step, rank) for rank in ranks], title=bars_title, real=totals)
    return Scene(height=height, title=title, summary=summary, items=(*items, *below))


def _legend(step: ZeroStep) -> list[tuple[str, dict]]:
    """The same entries at every step, so that nothing moves from one step to the next."""
    owners = [(words("own", rank=rank), _number_style(OWN, rank)) for rank in range(len(step.copies))]
    states = [(words(f"legend.{_STATE_NAMES[state]}"), _number_style(state, 0)) for state in (TERM, EVERY, STALE)]
    return owners + states


def _number_style(state: str, rank: int) -> dict[str, str | float]:
    """How a number looks in this state on this rank."""
    if state == EVERY:
        return {"fill": "panel", "stroke": "rule"}
    if state == STALE:
        return {"texture": "hatch", "stroke": "rule"}
    return {"fill": _OWNER_COLOURS[rank], "opacity": _PALE if state == TERM else 1.0}


def _kind_left(kind: str) -> float:
    """The left edge of the numbers of a kind."""
    return _LEFT + KINDS.index(kind) * (NUMBERS * _CELL_WIDTH + _KINDS_GAP)


def _kind_middle(kind: str) -> float:
    """The middle of the numbers of a kind."""
    return _kind_left(kind) + NUMBERS * _CELL_WIDTH / 2


def _rank(step: ZeroStep, rank: int, top: float) -> Iterator[Rect | Label]:
    """A row of the picture: the rank, its numbers by layer and kind, and the bytes of each kind."""
    middle = top + len(LAYERS) * _CELL_HEIGHT / 2
    yield Label(x=MARGIN, y=middle - 8, text=f"rank {rank}")
    yield Label(x=MARGIN, y=middle + 9, text=f"{step.total_bytes(rank)} B", bold=True)
    for row, layer in enumerate(LAYERS):
        y = top + row * _CELL_HEIGHT
        yield Label(x=_LEFT - 14, y=y + _CELL_HEIGHT / 2 - 1, text=layer, size=11, anchor="middle", colour="muted")
        for kind in KINDS:
            for column in range(NUMBERS):
                number = step.copies[rank][kind].get((layer, column))
                x = _kind_left(kind) + column * _CELL_WIDTH
                yield from _number(number, rank, f"{layer}{column}", kind, x, y)
        yield from _kind_bytes(step, rank, KINDS[row], y)  # there are as many kinds as layers, one bar per row
    yield from _frames(step, top)


def _number(number: ElementCopy | None, rank: int, name: str, kind: str, x: float, y: float) -> Iterator[Rect | Label]:
    """A number with its value; where the rank does not have it (None), an empty box."""
    box = {"x": x, "y": y, "width": _CELL_WIDTH - 2, "height": _CELL_HEIGHT - 2, "radius": 2}
    if number is None:
        yield Rect(**box, stroke="rule", tooltip=words("lacks", rank=rank, name=name, kind=kind_word(kind)))
        return
    text = number_text(number.value)
    state = words(f"state.{_STATE_NAMES[number.state]}")
    tooltip = words("number", rank=rank, kind=kind_word(kind), name=name, text=text, state=state)
    yield Rect(**box, **_number_style(number.state, rank), tooltip=tooltip)
    if number.state != STALE:  # a stale number is hatched, and its value is in the tooltip only
        on = _OWNER_COLOURS[rank] if number.state == OWN else ""
        yield centred_label(x + (_CELL_WIDTH - 2) / 2, y + (_CELL_HEIGHT - 2) / 2, text, 11, on=on)


def _frames(step: ZeroStep, top: float) -> Iterator[Rect]:
    """A frame around the layers that this step computed or sent: one layer, or all."""
    colour = "communication" if step.message else "ink"
    word = step.message.op.replace("_", "-") if step.message else words("computed")
    for kind in dict.fromkeys(kind for kind, _ in sorted(step.written)):  # `written` are (kind, layer); each kind once
        rows = [LAYERS.index(layer) for touched_kind, layer in step.written if touched_kind == kind]
        x, y = _kind_left(kind) - 2.5, top + min(rows) * _CELL_HEIGHT - 2
        box = {"x": x, "y": y, "width": NUMBERS * _CELL_WIDTH + 3, "height": len(rows) * _CELL_HEIGHT + 2}
        yield Rect(**box, radius=3, stroke=colour, stroke_width=2, tooltip=words("touched", word=word))


def _kind_bytes(step: ZeroStep, rank: int, kind: str, y: float) -> Iterator[Rect | Label]:
    """The bar of one kind, with its bytes."""
    num_bytes = step.num_bytes(rank, kind)
    width = num_bytes * _PIXELS_PER_BYTE
    if width:
        tooltip = words("bytes", rank=rank, num_bytes=num_bytes, kind=kind_word(kind), each=BYTES[kind])
        yield Rect(x=_BYTES_LEFT, y=y + 2, width=width, height=_BAR, tooltip=tooltip, **kind_style(kind))
    text, x = f"{kind_word(kind)} {num_bytes} B", _BYTES_LEFT + width + (6 if width else 0)
    yield Label(x=x, y=y + 2 + _BAR / 2, text=text, size=11)


def _message_arrows(step: ZeroStep, num_ranks: int, top: float) -> Iterator[Line | Label]:
    """Arrows both ways between neighbouring ranks, in the column of the numbers that are sent."""
    x = _kind_middle(step.message.kind)
    op_name = step.message.op.replace("_", "-")
    tooltip = words("of", op=op_name, kind=kind_word(step.message.kind))
    style = {"colour": "communication", "width": 2.0, "arrow": True, "tooltip": tooltip}
    for rank in range(num_ranks - 1):
        upper = top + rank * _PITCH + len(LAYERS) * _CELL_HEIGHT + 3
        lower = top + (rank + 1) * _PITCH - 5
        yield Line(x1=x - 36, y1=upper, x2=x - 36, y2=lower, **style)
        yield Line(x1=x - 46, y1=lower, x2=x - 46, y2=upper, **style)
        yield Label(x=x - 28, y=(upper + lower) / 2, text=op_name, size=11, bold=True)


def _stages(bars: Sequence[StageBar], title: str, top: float) -> tuple[list[SceneItem], float]:
    """The bars of the model of real size, and the y at which they end."""
    head, bottom = heading(title, kinds_legend(list(KINDS)))  # title and legend, and the y where they end
    items: list[SceneItem] = [Line(x1=MARGIN, y1=top, x2=WIDTH - MARGIN, y2=top)]
    items += [replace(item, y=item.y + top) for item in head]
    rows = [_stage(bar) for bar in bars]
    texts_width = max(text_width(row.end, 12, bold=True) for row in rows) + 30
    scale = (WIDTH - _LEFT - texts_width) / max(row.length for row in rows)
    first_y = top + bottom + 8
    items += _STAGES.rows(rows, _LEFT, first_y, scale)
    return items, first_y + len(bars) * _STAGES.pitch + 4


def _stage(bar: StageBar) -> BarRow:
    """The row of parts for a stage of ZeRO."""

    def tooltip(kind: str, num_bytes: float) -> str:
        return words("real", name=bar.name, num_bytes=num_bytes, kind=kind_word(kind))

    end = f"{format_bytes(bar.memory.total)}{bar.words}"
    return BarRow(name=bar.name, parts=memory_parts(bar.memory, KINDS, tooltip), end=end, is_chosen=bar.chosen)


def _rank_text(step: ZeroStep, rank: int) -> str:
    """What a rank holds, in words."""
    counts = [words("count", count=len(step.copies[rank][kind]), kind=kind_word(kind)) for kind in KINDS]
    return words("held", rank=rank, counts=counts, total=step.total_bytes(rank))
