"""Who holds which chunk at which step of a collective: one grid of ranks x chunks for each step.

A cell names the ranks whose numbers its chunk already contains, or says Σ when that is every rank. It is blue while
partial, deeper with each contribution, and green when complete; a frame marks what arrived in this step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from helpers.draw.scene import WIDTH, Label, Rect, Scene, heading, text_width
from helpers.learner.words import book

say = book("collective")
_LEFT, _RIGHT = 66.0, 20.0
_GAP, _STEP_TITLE = 16.0, 34.0  # above a grid: the step, and the numbers of the chunks
_CELL = 44.0  # pixels of the largest cell

Step = Sequence[Sequence[frozenset[int]]]  # step[rank][chunk]: the ranks that contributed


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """num_ranks rows of num_chunks cells, `columns` grids beside each other, cells of `cell` pixels."""

    num_ranks: int
    num_chunks: int
    columns: int
    cell: float
    top: float

    @property
    def width(self) -> float:
        return self.num_chunks * self.cell + _GAP

    @property
    def height(self) -> float:
        return self.num_ranks * self.cell + _STEP_TITLE + _GAP

    def corner(self, number: int) -> tuple[float, float]:
        """Top left of the cells of grid `number`."""
        row, column = divmod(number, self.columns)
        return _LEFT + column * self.width, self.top + row * self.height + _STEP_TITLE


def collective_scene(states: Sequence[Step], title: str, *, width: float = WIDTH) -> Scene:
    """A Scene of the states of a collective: the first is the start, each other one is after one more step.

    states[step][rank][chunk] is the set of ranks whose numbers this chunk contains; empty where nothing is held. A cell
    is complete when it contains all that any rank has of that chunk in the last state.
    ValueError when there is no state or the states differ in their number of ranks or chunks.
    """
    steps = [[[frozenset(cell) for cell in rank] for rank in step] for step in states]
    head, top = heading(title, legend(), width)
    grid = _grid(steps, width, top + 8)
    complete = [reduce(frozenset.union, (rank[chunk] for rank in steps[-1])) for chunk in range(grid.num_chunks)]
    items: list[Rect | Label] = [*head]
    for number, step in enumerate(steps):
        items += _step(number, step, steps[max(0, number - 1)], complete, grid)
    num_rows = -(-len(steps) // grid.columns)
    height = grid.top + num_rows * grid.height
    return Scene(width=width, height=height, title=title, summary=_summary(steps, complete), items=tuple(items))


def _grid(steps: list, width: float, top: float) -> _Grid:
    shapes = {(len(step), len(rank)) for step in steps for rank in step}
    if len(shapes) != 1 or min(shapes)[1] == 0:
        found = sorted(shapes)
        raise ValueError(f"collective_scene got states of (ranks, chunks) {found}; give every step and rank the same")
    num_ranks, num_chunks = shapes.pop()
    smallest = 30.0 if num_chunks <= 6 else 22.0
    room = width - _LEFT - _RIGHT + _GAP
    columns = max(1, min(len(steps), int(room / (num_chunks * smallest + _GAP))))
    columns = -(-len(steps) // -(-len(steps) // columns))  # rows of equal length
    cell = min(_CELL, (room / columns - _GAP) / num_chunks)
    return _Grid(num_ranks=num_ranks, num_chunks=num_chunks, columns=columns, cell=cell, top=top)


def _step(number: int, step: list, before: list, complete: list, grid: _Grid) -> Iterator[Rect | Label]:
    left, top = grid.corner(number)
    text = say("step", number=number) if number else say("start")
    yield Label(x=left, y=top - (24 if grid.num_chunks > 1 else 10), text=text, size=11, colour="muted", bold=True)
    yield from _chunk_numbers(number % grid.columns == 0, left, top, grid)
    for rank, chunks in enumerate(step):
        y = top + rank * grid.cell
        if number % grid.columns == 0:
            yield Label(x=14, y=y + grid.cell / 2, text=f"rank {rank}", size=12)
        for chunk, held in enumerate(chunks):
            tooltip = words(rank, chunk, held)
            box = Rect(
                x=left + chunk * grid.cell, y=y, width=grid.cell - 3, height=grid.cell - 3, radius=3, tooltip=tooltip
            )
            share = len(held) / max(1, len(complete[chunk]))
            yield from cell(box, held, share, held != before[rank][chunk], len(step))


def _chunk_numbers(is_first: bool, left: float, top: float, grid: _Grid) -> Iterator[Label]:
    """Above the columns, where there are several; named once in each row of grids."""
    if grid.num_chunks == 1:
        return
    if is_first:
        yield Label(x=14, y=top - 8, text=say("number_of"), size=11, colour="muted")
    for chunk in range(grid.num_chunks):
        x = left + chunk * grid.cell + (grid.cell - 3) / 2
        yield Label(x=x, y=top - 8, text=str(chunk), size=10, colour="muted", anchor="middle")


def legend() -> list[tuple[str, dict]]:
    """What the cells' looks mean."""
    looks = {"partial": {"fill": "buffers", "opacity": 0.45}, "complete": {"fill": "gradients"}}
    looks["arrived"] = {"fill": "panel", "stroke": "ink", "stroke_width": 2}
    return [(say(f"legend.{name}"), look) for name, look in looks.items()]


def words(rank: int, chunk: int, held: frozenset[int]) -> str:
    """Where what a cell holds comes from."""
    return say("cell", rank=rank, chunk=chunk, held=say("from", ranks=sorted(held)) if held else say("nothing"))


def cell(box: Rect, held: frozenset[int], share: float, is_new: bool, num_ranks: int) -> Iterator[Rect | Label]:
    """The box in its colour, its frame above it, and its text."""
    fill = "panel" if not held else "gradients" if share == 1 else "buffers"
    yield replace(box, fill=fill, opacity=0.1 + 0.44 * share if fill == "buffers" else 1.0)
    if is_new:
        yield replace(box, tooltip="", stroke="ink", stroke_width=2.0)
    text, font = _cell_text(held, box.width, num_ranks)
    if text:
        on = fill if fill == "gradients" else ""
        x, y = box.x + box.width / 2, box.y + box.height / 2
        yield Label(x=x, y=y, text=text, size=font, anchor="middle", on=on)


def _cell_text(held: frozenset[int], side: float, num_ranks: int) -> tuple[str, float]:
    """The ranks, or how many there are when they do not fit; as large as fits, 10 to 12 pixels. Empty if none fits."""
    ranks = sorted(held)
    if not ranks:
        return "", 0.0
    if len(ranks) == num_ranks > 1:
        return "Σ", 12.0
    separated = "+".join(map(str, ranks))
    joined = "".join(map(str, ranks)) if ranks[-1] < 10 else separated
    for text in (separated, joined, f"{len(ranks)}×"):
        for font in (12.0, 11.0, 10.0):
            if text_width(text, font) <= side - 2:
                return text, font
    return "", 0.0


def _summary(steps: list, complete: list) -> str:
    counts = [sum(held == complete[chunk] for rank in step for chunk, held in enumerate(rank)) for step in steps]
    cells = len(steps[0]) * len(complete)
    sizes = {"ranks": len(steps[0]), "chunks": len(complete), "steps": len(steps) - 1}
    return say("summary", **sizes, cells=cells, counts=counts)
