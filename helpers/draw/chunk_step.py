"""One step of a collective: what each rank held before, the messages as arrows, what it holds after.

Read it from left to right. Cells look as in `helpers.draw.chunks`; what is sent is framed in the arrows' colour, what
arrived is framed in ink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from helpers.draw.chunks import cell, legend, say, words
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, text_width
from helpers.predict.traffic.algorithms import Message

_LEFT, _RIGHT, _TITLES = 66.0, 20.0, 24.0
_BETWEEN = 210.0  # pixels at least for the arrows and their labels
_WIDEST, _TALLEST, _SLIT = 92.0, 44.0, 3.0
_FONT = 11.0
_SENT = {"stroke": "communication", "stroke_width": 2.0}

Held = Sequence[Sequence[frozenset[int]]]  # held[rank][chunk]: the ranks that contributed


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Pixels. `before` and `after` are the left edges of the two grids."""

    num_ranks: int
    num_chunks: int
    width: float
    height: float
    before: float
    after: float
    top: float

    def row(self, rank: int) -> float:
        """The middle of a rank's row."""
        return self.top + rank * self.height + (self.height - _SLIT) / 2

    def box(self, left: float, rank: int, first: int, last: int, **look: object) -> Rect:
        """Around chunks first .. last - 1 of a rank."""
        x, y = left + first * self.width, self.top + rank * self.height
        width, height = (last - first) * self.width - _SLIT, self.height - _SLIT
        return Rect(x=x, y=y, width=width, height=height, radius=3, **look)


def collective_step_scene(
    held_before: Held,
    held_after: Held,
    messages: Sequence[Message] = (),
    *,
    title: str,
    step: int | None = None,
    width: float = WIDTH,
) -> Scene:
    """A Scene of one step: rows are ranks, columns are chunks, an arrow leads from each sender to its receiver.

    held_before and held_after are two neighbours in `Schedule.replay()`, messages the `Schedule.step(...)` between
    them; without messages it shows a state at rest. `step`, counted from 1, is named above the grids.
    ValueError when the two differ in ranks or chunks, or when a message names a rank or chunk that is not there.
    """
    before, after = ([[frozenset(held) for held in rank] for rank in state] for state in (held_before, held_after))
    _check(before, after, messages)
    head, top = heading(title, [*legend(), (say("legend.sent"), {"fill": "panel", **_SENT})], width)
    layout = _layout(len(before), len(before[0]), width, top + 8 + _TITLES)
    complete = [reduce(frozenset.union, (rank[chunk] for rank in before)) for chunk in range(layout.num_chunks)]
    items: list[Rect | Label | Line] = [*head, *_titles(layout, step, messages)]
    items += _grid(layout, layout.before, before, before, complete)
    items += _grid(layout, layout.after, after, before, complete)
    items += _messages(layout, messages)
    height = layout.top + layout.num_ranks * layout.height + 12
    summary = " ".join([*(_sentence(one, layout) for one in _sorted(messages)), _state(after, complete)])
    return Scene(width=width, height=height, title=title, summary=summary, items=tuple(items))


def _check(before: list, after: list, messages: Sequence[Message]) -> None:
    shapes = {(len(state), len(rank)) for state in (before, after) for rank in state or [()]}
    if len(shapes) != 1 or 0 in min(shapes):
        found = sorted(shapes)
        raise ValueError(f"collective_step_scene got states of (ranks, chunks) {found}; both need the same, at least 1")
    num_ranks, num_chunks = shapes.pop()
    for one in messages:
        ranks_known = all(0 <= rank < num_ranks for rank in (one.sender, one.receiver))
        if not ranks_known or one.sender == one.receiver or not 0 <= one.first < one.last <= num_chunks:
            raise ValueError(
                f"a message of chunks {one.first} to {one.last - 1} from rank {one.sender} to rank {one.receiver} does "
                f"not fit {num_ranks} ranks and {num_chunks} chunks; give messages of the same schedule"
            )


def _layout(num_ranks: int, num_chunks: int, width: float, top: float) -> _Layout:
    cell_width = min(_WIDEST, (width - _LEFT - _RIGHT - _BETWEEN) / (2 * num_chunks))
    height = max(26.0, min(_TALLEST, cell_width))
    after = width - _RIGHT - num_chunks * cell_width
    sizes = {"width": cell_width, "height": height, "before": _LEFT, "after": after, "top": top}
    return _Layout(num_ranks=num_ranks, num_chunks=num_chunks, **sizes)


def _titles(layout: _Layout, step: int | None, messages: Sequence[Message]) -> Iterator[Label]:
    named = "" if step is None else say("named", step=step)
    left, right = (say("before", step=named), say("after", step=named)) if messages else (say("held"), say("held"))
    look = {"y": layout.top - 12, "size": _FONT, "colour": "muted", "bold": True}
    yield Label(x=layout.before, text=left, **look)
    yield Label(x=layout.after, text=right, **look)
    deeds = {say("adds" if one.adds else "copies") for one in messages}
    text = deeds.pop() if len(deeds) == 1 else "" if messages else say("left")
    middle = (layout.before + layout.num_chunks * layout.width + layout.after) / 2
    yield Label(x=middle, text=text, anchor="middle", **look)


def _grid(layout: _Layout, left: float, state: list, before: list, complete: list) -> Iterator[Rect | Label]:
    for rank, chunks in enumerate(state):
        if left == layout.before:
            yield Label(x=14, y=layout.row(rank), text=f"rank {rank}")
        for chunk, held in enumerate(chunks):
            tooltip = words(rank, chunk, held)
            box = layout.box(left, rank, chunk, chunk + 1, tooltip=tooltip)
            share = len(held) / max(1, len(complete[chunk]))
            yield from cell(box, held, share, held != before[rank][chunk], layout.num_ranks)


def _sorted(messages: Sequence[Message]) -> list[Message]:
    return sorted(messages, key=lambda one: (one.sender, one.receiver, one.first))


def _messages(layout: _Layout, messages: Sequence[Message]) -> Iterator[Rect | Label | Line]:
    """Each rank's label stands right of its row; all arrows start behind the widest label."""
    of_rank: dict[int, list[Message]] = {}
    for one in _sorted(messages):
        of_rank.setdefault(one.sender, []).append(one)
    texts = {rank: _text(layout, sent) for rank, sent in of_rank.items()}
    left = layout.before + layout.num_chunks * layout.width + 8
    start = left + 8 + max((text_width(text, _FONT) for text in texts.values()), default=0.0)
    for rank, sent in of_rank.items():
        yield Label(x=left, y=layout.row(rank), text=texts[rank], size=_FONT)
        for one in sent:
            box = layout.box(layout.before, rank, one.first, one.last, **_SENT)
            # In the slit between cells, where it stands out against the surface and not against each fill.
            yield replace(box, x=box.x - 1.5, y=box.y - 1.5, width=box.width + 3, height=box.height + 3)
            tooltip = _sentence(one, layout)
            ends = {"x1": start, "y1": layout.row(rank), "x2": layout.after - 7, "y2": layout.row(one.receiver)}
            yield Line(**ends, colour="communication", width=1.8, arrow=True, tooltip=tooltip)


def _chunks(one: Message, num_chunks: int) -> str:
    if one.first == 0 and one.last == num_chunks:
        return say("everything")
    return say("chunk" if one.last == one.first + 1 else "chunks", first=one.first, last=one.last - 1)


def _text(layout: _Layout, sent: list[Message]) -> str:
    if len(sent) > 1:
        return say["messages"].say(None, len(sent))
    return say("to", what=_chunks(sent[0], layout.num_chunks), rank=sent[0].receiver)


def _sentence(one: Message, layout: _Layout) -> str:
    name = "sentence_add" if one.adds else "sentence_copy"
    return say(name, a=one.sender, what=_chunks(one, layout.num_chunks), b=one.receiver)


def _state(after: list, complete: list) -> str:
    whole = sum(held == complete[chunk] for rank in after for chunk, held in enumerate(rank))
    return say("state", whole=whole, cells=len(after) * len(complete))
