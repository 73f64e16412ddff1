"""Draws collectives: which rank holds which chunk after each step, one step with its messages, and time over bytes.

A collective, such as an all-reduce, moves a buffer between ranks in steps; the buffer is divided into chunks. A state
says what each rank holds of each chunk after a step. `collective_scene` shows one grid of ranks x chunks per step,
`collective_step_scene` the grids before and after one step with an arrow per message, and `all_reduce_times_scene` the
predicted time of four algorithms. Chapter 01 and the collective explorer use them. A message (ChunkMessage) carries
the chunks `first` to `last - 1` from `sender` to `receiver`. If `adds`, the receiver adds them to its own; otherwise it
copies them.

A cell names the ranks whose numbers its chunk already contains, or says Σ when that is every rank. It is blue while
partial, deeper with each contribution, and green when complete; a frame marks what arrived in this step.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

from helpers.draw.plot import Axis, Mark, curves_scene
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, centred_label, heading, text_width
from helpers.learner.words import book
from helpers.predict.traffic.algorithms import ChunkMessage
from helpers.quantities import costs
from helpers.specs import Link

words = book("collective")  # what a reader sees, by name, in the learner's language: learner/words/collective.yaml
_LEFT, _RIGHT = 66.0, 20.0  # pixels of both pictures: the ranks' names left of a grid, and the right margin
_FONT = 11.0  # pixels of most letters
State = Sequence[Sequence[frozenset[int]]]  # state[rank][chunk]: the ranks that contributed to what is held there

# Of the picture of all steps:
_GRID_GAP, _STEP_TITLE = 16.0, 34.0  # pixels between grids; above a grid, for its step and the chunks' numbers
_LARGEST_CELL = 44.0  # pixels of the side of a cell

# Of the picture of one step:
_TITLES = 24.0  # pixels above the two grids
_BETWEEN = 210.0  # pixels between the grids at least, for the arrows and their labels
_WIDEST, _TALLEST, _SLIT = 92.0, 44.0, 3.0  # pixels: a cell's largest size; in both pictures between two cells
# The frame around the chunks that are sent.
_SENT = {"stroke": "communication", "stroke_width": 2.0}

# "server": one rank collects every tensor, adds them up and sends the sum to each rank.
_ALGORITHMS = ("ring", "halving_doubling", "server", "tree")


# -- cells -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Where the cells of a state lie: a row per rank and a column per chunk, from the corner at `left` and `top`.

    `width` and `height` are the pixels from one cell to the next.
    """

    num_chunks: int
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The right edge of the cells."""
        return self.left + self.num_chunks * self.width

    def row(self, rank: int) -> float:
        """The middle of a rank's row."""
        return self.top + rank * self.height + (self.height - _SLIT) / 2

    def box(self, rank: int, first: int, last: int, **style: object) -> Rect:
        """A box around the chunks `first` to `last - 1` of a rank."""
        x, y = self.left + first * self.width, self.top + rank * self.height
        width, height = (last - first) * self.width - _SLIT, self.height - _SLIT
        return Rect(x=x, y=y, width=width, height=height, radius=3, **style)

    def cells(self, rank: int, state: list, before: list, complete: list) -> Iterator[Rect | Label]:
        """The cells of a rank, with a frame around those that differ from the state before.

        `complete` are the contributions that a complete chunk has, for each chunk.
        A cell is the bluer the more of all contributions it contains; ink stays legible on the deepest blue.
        """
        for chunk, contributors in enumerate(state[rank]):
            share = len(contributors) / max(1, len(complete[chunk]))  # 1 where the chunk is complete
            fill = "panel" if not contributors else "gradients" if share == 1 else "buffers"  # grey, green, blue
            style = {"fill": fill, "opacity": 0.1 + 0.44 * share if fill == "buffers" else 1.0}
            box = self.box(rank, chunk, chunk + 1)
            yield replace(box, tooltip=_cell_tooltip(rank, chunk, contributors), **style)
            if contributors != before[rank][chunk]:
                yield replace(box, stroke="ink", stroke_width=2.0)
            text, size = _cell_text(contributors, box.width, len(state))
            if text:
                # The fill on which the text must be legible; "" for the other fills, which are pale.
                on = fill if fill == "gradients" else ""
                yield centred_label(box.x + box.width / 2, box.y + box.height / 2, text, size, on=on)


# -- all steps -------------------------------------------------------------------------------------------------------
def collective_scene(states: Sequence[State], title: str) -> Scene:
    """A Scene of the states of a collective: the first is the start, each other one is after one more step.

    states[step][rank][chunk] is the set of ranks whose numbers this chunk contains; it is empty where the rank holds
    nothing. A cell is complete when it contains all that any rank has of that chunk in the last state.
    Raises ValueError when there is no state, or when the states differ in their number of ranks or chunks.
    """
    steps = [_frozen(step) for step in states]
    items, top = heading(title, _legend())  # title and legend, and the y where they end
    grids, columns = _grids(steps, top + 8)
    complete = _all_contributions(steps[-1])
    for number, (state, grid) in enumerate(zip(steps, grids, strict=True)):
        # The last argument is whether the grid is the first one in its row.
        items += _state(number, state, steps[max(0, number - 1)], complete, grid, number % columns == 0)
    height = grids[-1].top + len(steps[0]) * grids[-1].height + _GRID_GAP
    return Scene(height=height, title=title, summary=_summary(steps, complete), items=items)


def _frozen(state: State) -> list[list[frozenset[int]]]:
    """A copy of the state, which the caller may have as any kind of sets."""
    return [[frozenset(cell) for cell in rank] for rank in state]


def _all_contributions(state: list) -> list[frozenset[int]]:
    """Per chunk, the ranks whose numbers any rank holds in this state."""
    return [reduce(frozenset.union, (rank[chunk] for rank in state)) for chunk in range(len(state[0]))]


def _grids(steps: list, top: float) -> tuple[list[_Grid], int]:
    """A grid for each step, in rows of equal length, and how many of them stand side by side."""
    shapes = {(len(step), len(rank)) for step in steps for rank in step}  # (ranks, chunks)
    if len(shapes) != 1 or min(shapes)[1] == 0:
        got = sorted(shapes)
        raise ValueError(f"collective_scene got states of (ranks, chunks) {got}; give every step and rank the same")
    num_ranks, num_chunks = shapes.pop()
    smallest_cell = 30.0 if num_chunks <= 6 else 22.0
    available = WIDTH - _LEFT - _RIGHT + _GRID_GAP
    most_columns = max(1, min(len(steps), int(available / (num_chunks * smallest_cell + _GRID_GAP))))
    num_rows = math.ceil(len(steps) / most_columns)
    columns = math.ceil(len(steps) / num_rows)  # makes the rows equally long
    cell = min(_LARGEST_CELL, (available / columns - _GRID_GAP) / num_chunks)
    across, down = num_chunks * cell + _GRID_GAP, num_ranks * cell + _STEP_TITLE + _GRID_GAP
    size = {"num_chunks": num_chunks, "width": cell, "height": cell}
    places = (divmod(number, columns) for number in range(len(steps)))  # the row and the column of each grid
    grids = [_Grid(left=_LEFT + column * across, top=top + _STEP_TITLE + row * down, **size) for row, column in places]
    return grids, columns


def _state(
    number: int, state: list, before: list, complete: list, grid: _Grid, is_first_column: bool
) -> Iterator[Rect | Label]:
    """A grid with its step above it. The first one in a row of grids also has the names of chunks and ranks."""
    text = words("step", number=number) if number else words("start")
    has_numbers = grid.num_chunks > 1  # a single chunk needs no number
    title_y = grid.top - (24 if has_numbers else 10)
    yield Label(x=grid.left, y=title_y, text=text, size=_FONT, colour="muted", bold=True)
    if has_numbers and is_first_column:
        # "chunk", the heading of the numbers beside it
        yield Label(x=MARGIN, y=grid.top - 8, text=words("number_of"), size=_FONT, colour="muted")
    for chunk in range(grid.num_chunks if has_numbers else 0):
        x = grid.left + chunk * grid.width + (grid.width - _SLIT) / 2
        yield centred_label(x, grid.top - 8, str(chunk), 10, colour="muted")
    for rank in range(len(state)):
        if is_first_column:
            yield Label(x=MARGIN, y=grid.top + (rank + 0.5) * grid.height, text=f"rank {rank}", size=12)
        yield from grid.cells(rank, state, before, complete)


def _legend() -> list[tuple[str, dict]]:
    """The entries of `heading` for the three looks of a cell."""
    styles = {"partial": {"fill": "buffers", "opacity": 0.45}, "complete": {"fill": "gradients"}}
    styles["arrived"] = {"fill": "panel", "stroke": "ink", "stroke_width": 2}  # the frame of what arrived in a step
    return [(words(f"legend.{name}"), style) for name, style in styles.items()]


def _cell_tooltip(rank: int, chunk: int, contributors: frozenset[int]) -> str:
    """Which ranks' numbers a chunk contains, in words."""
    held = words("from", ranks=sorted(contributors)) if contributors else words("nothing")
    return words("cell", rank=rank, chunk=chunk, held=held)


def _cell_text(contributors: frozenset[int], side: float, num_ranks: int) -> tuple[str, float]:
    """The ranks, or their number where they do not fit, and the size of the letters; ("", 0) if nothing fits.

    The ranks are written as "0+1+2", or as "012" where that is too long and all have one digit.
    """
    ranks = sorted(contributors)
    if not ranks:
        return "", 0.0
    if len(ranks) == num_ranks > 1:
        return "Σ", 12.0
    separated = "+".join(map(str, ranks))
    joined = "".join(map(str, ranks)) if ranks[-1] < 10 else separated
    # Every text at every size, first the longest text at the largest size.
    candidates = product((separated, joined, f"{len(ranks)}×"), (12.0, 11.0, 10.0))
    return next((pair for pair in candidates if text_width(*pair) <= side - 2), ("", 0.0))


def _num_complete(state: list, complete: list) -> int:
    """How many cells are complete."""
    return sum(cell == complete[chunk] for rank in state for chunk, cell in enumerate(rank))


def _summary(steps: list, complete: list) -> str:
    """How many cells are complete after each step, for readers who cannot see the picture."""
    counts = [_num_complete(state, complete) for state in steps]
    sizes = {"ranks": len(steps[0]), "chunks": len(complete), "steps": len(steps) - 1}
    return words("summary", **sizes, cells=len(steps[0]) * len(complete), counts=counts)


# -- one step --------------------------------------------------------------------------------------------------------
def collective_step_scene(
    state_before: State,
    state_after: State,
    messages: Sequence[ChunkMessage] = (),
    *,
    title: str,
    step: int | None = None,
) -> Scene:
    """A Scene of one step, read from left to right: the state before, an arrow per message, and the state after.

    Rows are ranks and columns are chunks. The two states are neighbours in `CollectiveSchedule.replay()`, and messages
    are the `CollectiveSchedule.step(...)` between them; without messages the picture shows a state at rest. What is
    sent is framed in the arrows' colour. `step`, counted from 1, is named above the grids.
    Raises ValueError when the states differ in ranks or chunks, or when a message names a rank or chunk that they lack.
    """
    before, after = _frozen(state_before), _frozen(state_after)
    _check(before, after, messages)
    items, top = heading(title, [*_legend(), (words("legend.sent"), {"fill": "panel", **_SENT})])
    left, right = _step_grids(len(before[0]), top + 8 + _TITLES)
    complete = _all_contributions(before)  # a step moves contributions but makes none, so `before` has all of them
    items += _titles(left, right, step, messages)
    for rank in range(len(before)):
        items.append(Label(x=MARGIN, y=left.row(rank), text=f"rank {rank}"))
        items += left.cells(rank, before, before, complete)
    for rank in range(len(after)):
        items += right.cells(rank, after, before, complete)
    items += _arrows(left, right, messages)
    sentences = [_sentence(message, left.num_chunks) for message in _sorted(messages)]
    num_complete, cells = _num_complete(after, complete), len(after) * len(complete)
    summary = " ".join([*sentences, words("state", whole=num_complete, cells=cells)])
    return Scene(height=left.top + len(before) * left.height + 12, title=title, summary=summary, items=items)


def _check(before: list, after: list, messages: Sequence[ChunkMessage]) -> None:
    """Raises ValueError where the states differ in shape or a message does not fit them."""
    # (ranks, chunks); a state without ranks counts as (0, 0).
    shapes = {(len(state), len(rank)) for state in (before, after) for rank in state or [()]}
    if len(shapes) != 1 or 0 in min(shapes):
        got = sorted(shapes)
        raise ValueError(f"collective_step_scene got states of (ranks, chunks) {got}; both need the same, at least 1")
    num_ranks, num_chunks = shapes.pop()
    for message in messages:
        first, last, sender, receiver = message.first, message.last, message.sender, message.receiver
        are_ranks_known = all(0 <= rank < num_ranks for rank in (sender, receiver))
        if not are_ranks_known or sender == receiver or not 0 <= first < last <= num_chunks:
            raise ValueError(
                f"a message of chunks {first} to {last - 1} from rank {sender} to rank {receiver} does "
                f"not fit {num_ranks} ranks and {num_chunks} chunks; give messages of the same schedule"
            )


def _step_grids(num_chunks: int, top: float) -> tuple[_Grid, _Grid]:
    """The grids before and after the step, at both ends of the picture."""
    cell_width = min(_WIDEST, (WIDTH - _LEFT - _RIGHT - _BETWEEN) / (2 * num_chunks))
    size = {"num_chunks": num_chunks, "width": cell_width, "height": max(26.0, min(_TALLEST, cell_width))}
    lefts = (_LEFT, WIDTH - _RIGHT - num_chunks * cell_width)
    before, after = (_Grid(left=left, top=top, **size) for left in lefts)
    return before, after


def _titles(before: _Grid, after: _Grid, step: int | None, messages: Sequence[ChunkMessage]) -> Iterator[Label]:
    """Above the grids which state they show, and between them what the receivers do with what they get."""
    step_text = "" if step is None else words("named", step=step)
    if messages:
        left, right = words("before", step=step_text), words("after", step=step_text)
    else:
        left = right = words("held")  # both grids are the same: what the ranks hold
    style = {"y": before.top - 12, "size": _FONT, "colour": "muted", "bold": True}
    yield Label(x=before.left, text=left, **style)
    yield Label(x=after.left, text=right, **style)
    actions = {words("adds" if message.adds else "copies") for message in messages}  # one, unless receivers differ
    # Without messages "left" says that nothing is left to send.
    text = actions.pop() if len(actions) == 1 else "" if messages else words("left")
    yield Label(x=(before.right + after.left) / 2, text=text, anchor="middle", **style)


def _sorted(messages: Sequence[ChunkMessage]) -> list[ChunkMessage]:
    """By sender, receiver and first chunk, so that equal steps give equal pictures."""
    return sorted(messages, key=lambda message: (message.sender, message.receiver, message.first))


def _arrows(before: _Grid, after: _Grid, messages: Sequence[ChunkMessage]) -> Iterator[Rect | Label | Line]:
    """An arrow per message; each rank's label stands right of its row, and all arrows start behind the widest label."""
    by_sender: dict[int, list[ChunkMessage]] = {}
    for message in _sorted(messages):
        by_sender.setdefault(message.sender, []).append(message)
    texts = {rank: _sender_text(sent, before.num_chunks) for rank, sent in by_sender.items()}
    left = before.right + 8
    start = left + 8 + max((text_width(text, _FONT) for text in texts.values()), default=0.0)
    for rank, sent in by_sender.items():
        yield Label(x=left, y=before.row(rank), text=texts[rank], size=_FONT)
        for message in sent:
            box = before.box(rank, message.first, message.last, **_SENT)
            # The frame lies in the slit between cells, where only the background is behind it and no cell's fill.
            yield replace(box, x=box.x - 1.5, y=box.y - 1.5, width=box.width + 3, height=box.height + 3)
            ends = {"x1": start, "y1": before.row(rank), "x2": after.left - 7, "y2": before.row(message.receiver)}
            tooltip = _sentence(message, before.num_chunks)
            yield Line(**ends, colour="communication", width=1.8, arrow=True, tooltip=tooltip)


def _chunks_text(message: ChunkMessage, num_chunks: int) -> str:
    """Which chunks a message carries: `first` to `last - 1`, or all of them."""
    if message.first == 0 and message.last == num_chunks:
        return words("everything")
    name = "chunk" if message.last == message.first + 1 else "chunks"
    return words(name, first=message.first, last=message.last - 1)


def _sender_text(sent: list[ChunkMessage], num_chunks: int) -> str:
    """What a rank sends, in words, or how many messages it sends."""
    if len(sent) > 1:
        return words["messages"].say(None, len(sent))  # None is the learner's language
    return words("to", what=_chunks_text(sent[0], num_chunks), rank=sent[0].receiver)


def _sentence(message: ChunkMessage, num_chunks: int) -> str:
    """What a message does, in words."""
    name = "sentence_add" if message.adds else "sentence_copy"  # rank a sends to rank b, which adds or copies it
    return words(name, a=message.sender, what=_chunks_text(message, num_chunks), b=message.receiver)


# -- time over bytes -------------------------------------------------------------------------------------------------
def all_reduce_times_scene(num_ranks: int, link: Link) -> Scene:
    """Predicted time of an all-reduce of 1 kB to 10 GB by four algorithms, and where ring overtakes tree."""
    sizes = [10 ** (eighth / 8) for eighth in range(24, 81)]  # 10**3 to 10**10 bytes, eight sizes per power of ten

    def milliseconds(num_bytes: float, algorithm: str) -> float:
        return 1e3 * costs.seconds("all_reduce", num_bytes, num_ranks, link, algorithm)

    curves = {
        algorithm.replace("_", "-"): [(size / 1e6, milliseconds(size, algorithm)) for size in sizes]
        for algorithm in _ALGORITHMS
    }
    values = [ms for curve in curves.values() for _, ms in curve]
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    crossing = costs.crossover_bytes("all_reduce", num_ranks, link, "tree", "ring")
    text = f"ring overtakes tree at {crossing / 1e6:.1f} MB"
    return curves_scene(
        curves,
        x=Axis(name="MB of the tensor", ticks=[10.0**power for power in range(-3, 5)], log=True),
        y=Axis(name="ms, predicted", ticks=[10.0**power for power in powers], log=True),
        marks=[Mark(crossing / 1e6, milliseconds(crossing, "ring"), text, lower=16)],
        dashed=["tree", "halving-doubling"],
        title=f"All-reduce on {num_ranks} ranks, {link.latency * 1e6:g} µs, {link.bandwidth / 1e9:g} GB/s",
    )
