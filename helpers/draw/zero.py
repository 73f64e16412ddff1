"""One step of training with ZeRO: every number that a rank holds, what it weighs, and a model of real size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from helpers.draw.equations import number_text
from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.predict.by_hand.zero_steps import BYTES, EVERY, KINDS, LAYERS, NUMBERS, OWN, STALE, TERM, Number, ZeroStep
from helpers.quantities.units import format_bytes
from helpers.records import MemoryBreakdown

_LEFT, _CELL, _HIGH, _APART, _PITCH = 92.0, 36.0, 19.0, 24.0, 84.0  # pixels: grids, and from rank to rank
_BARS, _SCALE, _BAR = 478.0, 1.5, 13.0  # pixels: where bars start, of a byte, height
_OWNERS = ("rank4", "rank1", "rank6")  # colours of ranks 0 to 2 here: blue and green mean kinds in the same picture
_PALE = 0.35  # the opacity of what is not final; ink is legible on it in both themes
say = book("zero")
_STATES = {TERM: "term", EVERY: "every", STALE: "stale", OWN: "own"}  # names in zero.yaml


@dataclass(frozen=True, kw_only=True)
class StageBar:
    """A model of real size at one stage. words: what stands right of the bar, after the bytes."""

    name: str
    memory: MemoryBreakdown
    words: str
    chosen: bool


def zero_scene(step: ZeroStep, *, title: str, bars: Sequence[StageBar], bars_title: str, width: float = WIDTH) -> Scene:
    """A row for each rank: its parameters, gradients and optimizer state by layer, and their bytes. Below, `bars`.

    What this step computed is framed in ink, what it sent in the colour of communication.
    """
    ranks = range(len(step.held))
    head, top = heading(title, _legend(step), 0)  # below the title, whatever its length
    items: list[Rect | Label | Line] = [*head, *_headings(top + 14)]
    top += 30
    for rank in ranks:
        items += _rank(step, rank, top + rank * _PITCH)
    if step.message:
        items += _arrows(step, len(step.held), top)
    below, height = _model(bars, bars_title, top + len(step.held) * _PITCH - 8, width)
    real = [f"{one.name} {format_bytes(one.memory.total)}" for one in bars]
    summary = say("summary", held=[_said(step, rank) for rank in ranks], title=bars_title, real=real)
    return Scene(width=width, height=height, title=title, summary=summary, items=(*items, *below))


def _legend(step: ZeroStep) -> list[tuple[str, dict]]:
    """The same at every step, so that nothing moves from one to the next."""
    owners = [(say("own", rank=rank), _look(OWN, rank)) for rank in range(len(step.held))]
    return owners + [(say(f"legend.{_STATES[state]}"), _look(state, 0)) for state in (TERM, EVERY, STALE)]


def _look(state: str, rank: int) -> dict[str, str | float]:
    if state == EVERY:
        return {"fill": "panel", "stroke": "rule"}
    if state == STALE:
        return {"texture": "hatch", "stroke": "rule"}
    return {"fill": _OWNERS[rank], "opacity": _PALE if state == TERM else 1.0}


def _grid(kind: str) -> float:
    """Where the numbers of a kind start, from the left."""
    return _LEFT + KINDS.index(kind) * (NUMBERS * _CELL + _APART)


def _headings(y: float) -> Iterator[Label]:
    for kind in KINDS:
        x = _grid(kind) + NUMBERS * _CELL / 2
        yield Label(x=x, y=y, text=say(f"heading.{kind}"), size=11, anchor="middle", bold=True)
    yield Label(x=_BARS, y=y, text=say("heading.now"), size=11, bold=True)


def _rank(step: ZeroStep, rank: int, top: float) -> Iterator[Rect | Label]:
    middle = top + len(LAYERS) * _HIGH / 2
    yield Label(x=14, y=middle - 8, text=f"rank {rank}")
    yield Label(x=14, y=middle + 9, text=f"{step.total_bytes(rank)} B", bold=True)
    for row, layer in enumerate(LAYERS):
        y = top + row * _HIGH
        yield Label(x=_LEFT - 14, y=y + _HIGH / 2 - 1, text=layer, size=11, anchor="middle", colour="muted")
        for kind in KINDS:
            for number in range(NUMBERS):
                held = step.held[rank][kind].get((layer, number))
                yield from _number(held, rank, f"{layer}{number}", kind, _grid(kind) + number * _CELL, y)
        yield from _bytes(step, rank, KINDS[row], y)
    yield from _frames(step, top)


def _number(held: Number | None, rank: int, name: str, kind: str, x: float, y: float) -> Iterator[Rect | Label]:
    box = {"x": x, "y": y, "width": _CELL - 2, "height": _HIGH - 2, "radius": 2}
    if held is None:
        yield Rect(**box, stroke="rule", tooltip=say("lacks", rank=rank, name=name, kind=kind_word(kind)))
        return
    text = number_text(held.value)
    state = say(f"state.{_STATES[held.state]}")
    tooltip = say("number", rank=rank, kind=kind_word(kind), name=name, text=text, state=state)
    yield Rect(**box, **_look(held.state, rank), tooltip=tooltip)
    if held.state != STALE:  # the hatching says it; the number is in the tooltip
        on = _OWNERS[rank] if held.state == OWN else ""
        at = {"x": x + (_CELL - 2) / 2, "y": y + (_HIGH - 2) / 2}
        yield Label(**at, text=text, size=11, anchor="middle", on=on)


def _frames(step: ZeroStep, top: float) -> Iterator[Rect]:
    """Around the layers that this step computed or sent: one, or all."""
    colour = "communication" if step.message else "ink"
    word = step.message.op.replace("_", "-") if step.message else say("computed")
    for kind in dict.fromkeys(kind for kind, _ in sorted(step.touched)):
        rows = [LAYERS.index(layer) for touched, layer in step.touched if touched == kind]
        x, y = _grid(kind) - 2.5, top + min(rows) * _HIGH - 2
        box = {"x": x, "y": y, "width": NUMBERS * _CELL + 3, "height": len(rows) * _HIGH + 2}
        yield Rect(**box, radius=3, stroke=colour, stroke_width=2, tooltip=say("touched", word=word))


def _bytes(step: ZeroStep, rank: int, kind: str, y: float) -> Iterator[Rect | Label]:
    """The bar of one kind, with its bytes."""
    num_bytes = step.num_bytes(rank, kind)
    long = num_bytes * _SCALE
    if long:
        tooltip = say("bytes", rank=rank, num_bytes=num_bytes, kind=kind_word(kind), each=BYTES[kind])
        box = {"x": _BARS, "y": y + 2, "width": long, "height": _BAR, "tooltip": tooltip}
        yield Rect(**box, fill=kind, texture=PAINTS[kind].texture)
    text = f"{kind_word(kind)} {num_bytes} B"
    yield Label(x=_BARS + long + (6 if long else 0), y=y + 2 + _BAR / 2, text=text, size=11)


def _arrows(step: ZeroStep, num_ranks: int, top: float) -> Iterator[Line | Label]:
    """Between neighbouring ranks, where the numbers that are sent stand."""
    x = _grid(step.message.kind) + NUMBERS * _CELL / 2
    word = step.message.op.replace("_", "-")
    for rank in range(num_ranks - 1):
        upper, lower = top + rank * _PITCH + len(LAYERS) * _HIGH + 3, top + (rank + 1) * _PITCH - 5
        for start, end, side in ((upper, lower, -36), (lower, upper, -46)):
            look = {"colour": "communication", "width": 2.0, "arrow": True}
            tooltip = say("of", op=word, kind=kind_word(step.message.kind))
            yield Line(x1=x + side, y1=start, x2=x + side, y2=end, tooltip=tooltip, **look)
        yield Label(x=x - 28, y=(upper + lower) / 2, text=word, size=11, bold=True)


def _model(bars: Sequence[StageBar], title: str, top: float, width: float) -> tuple[list[Rect | Label | Line], float]:
    """The bars of the model of real size, and the y at which they end."""
    head, bottom = heading(title, kinds_legend(list(KINDS)), width)
    items: list[Rect | Label | Line] = [Line(x1=14, y1=top, x2=width - 14, y2=top)]
    items += [replace(item, y=item.y + top) for item in head]
    room = max(text_width(f"{format_bytes(one.memory.total)}{one.words}", 12, bold=True) for one in bars) + 30
    scale = (width - 92 - room) / max(one.memory.total for one in bars)
    for number, one in enumerate(bars):
        items += _stage(one, top + bottom + 8 + number * 27, scale)
    return items, top + bottom + 8 + len(bars) * 27 + 4


def _stage(one: StageBar, y: float, scale: float) -> Iterator[Rect | Label]:
    yield Label(x=80, y=y + 10, text=one.name, anchor="end", bold=one.chosen)
    x = 92.0
    for kind in KINDS:
        num_bytes = getattr(one.memory, kind)
        long = num_bytes * scale
        tooltip = say("real", name=one.name, num_bytes=num_bytes, kind=kind_word(kind))
        texture = PAINTS[kind].texture if long > 4 else ""
        yield Rect(x=x, y=y, width=max(0.5, long - 1), height=20, fill=kind, texture=texture, tooltip=tooltip)
        x += long
    yield Label(x=x + 8, y=y + 10, text=f"{format_bytes(one.memory.total)}{one.words}", bold=one.chosen)


def _said(step: ZeroStep, rank: int) -> str:
    """What a rank holds, in words."""
    counts = [say("count", count=len(step.held[rank][kind]), kind=kind_word(kind)) for kind in KINDS]
    return say("held", rank=rank, counts=counts, total=step.total_bytes(rank))
