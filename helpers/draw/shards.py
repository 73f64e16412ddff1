"""Matrices side by side, cut into the parts that ranks own, with operators between them: X · A = Y.

Each part has its rank's colour and carries its rank: above columns, left of rows, inside the cells of a flat cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from helpers.draw.matrix import Matrix
from helpers.draw.palette import NUM_RANK_PAINTS, PAINTS, rank_paint
from helpers.draw.scene import SMALLEST, WIDTH, Label, Rect, Scene, heading, text_width

_SIDE, _OPERATOR, _RANKS = 20.0, 40.0, 50.0  # pixels: margins, an operator, the ranks left of a matrix cut by rows
_SMALLEST, _LARGEST, _TALLEST, _GAP = 8.0, 40.0, 340.0, 6.0  # pixels: a cell; a matrix; between two parts
_ABOVE, _LINE, _FONT = 40.0, 16.0, 11.0
_WHOLE = {"fill": "panel", "stroke": "muted"}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a matrix is drawn: the top left corner of its cells, and the side of a cell."""

    x: float
    y: float
    cell: float

    def corner(self, one: Matrix, row: int, column: int) -> tuple[float, float]:
        part = one.part(row, column)
        right, down = (part * _GAP if one.cut == cut else 0.0 for cut in ("columns", "rows"))
        return self.x + column * self.cell + right, self.y + row * self.cell + down


def shards_scene(
    items: Sequence[Matrix | str],
    *,
    title: str = "Which rank holds which part",
    largest: float = _LARGEST,
    width: float = WIDTH,
) -> Scene:
    """A Scene of matrices and operators from left to right: [Matrix(name="X", ...), "·", Matrix(name="A", ...)].

    All matrices share one scale: a cell is equally large everywhere, `largest` pixels at most. ValueError when there is
    no matrix, or when together they are too wide or too tall for cells that can be seen.
    """
    matrices = [item for item in items if isinstance(item, Matrix)]
    if not matrices:
        raise ValueError("shards_scene got no matrix; give a list such as [Matrix(...), '·', Matrix(...)]")
    cell = _cell(items, matrices, width, largest)
    head, top = heading(title, _legend(matrices), width)
    tallest = max(_height(one, cell) for one in matrices)
    middle = top + _ABOVE + tallest / 2
    drawn, x = [], (width - sum(_space(item, cell) for item in items)) / 2
    for item in items:
        space = _space(item, cell)
        if isinstance(item, Matrix):
            drawn += _matrix(item, x, space, middle, cell)
        else:
            drawn.append(Label(x=x + space / 2, y=middle, text=item, size=20, anchor="middle"))
        x += space
    height = middle + tallest / 2 + _LINE * (2.6 + any(one.note for one in matrices))
    summary = " ".join(map(_sentence, matrices))
    return Scene(width=width, height=height, title=title, summary=summary, items=(*head, *drawn))


def _look(rank: int | None) -> dict[str, str]:
    return _WHOLE if rank is None else {"fill": rank_paint(rank), "texture": PAINTS[rank_paint(rank)].texture}


def _legend(matrices: list[Matrix]) -> list[tuple[str, dict]]:
    """Ranks, unless there are more than colours; the ranks at the parts say it then."""
    ranks = sorted({rank for one in matrices for rank in one.owners if rank is not None})
    entries = [(f"rank {rank}", _look(rank)) for rank in ranks] if len(ranks) <= NUM_RANK_PAINTS else []
    return entries + ([("every rank", _WHOLE)] if any(None in one.owners for one in matrices) else [])


def _cell(items: Sequence[Matrix | str], matrices: list[Matrix], width: float, largest: float) -> float:
    """The largest side of a cell with which everything fits."""
    for tenths in range(int(largest * 10), int(_SMALLEST * 10) - 1, -5):
        cell = tenths / 10
        wide = sum(_space(item, cell) for item in items) <= width - 2 * _SIDE
        if wide and max(_height(one, cell) for one in matrices) <= _TALLEST:
            return cell
    shapes = ", ".join(f"{one.name} {one.num_rows} x {one.num_columns}" for one in matrices)
    raise ValueError(
        f"{shapes} do not fit into {width:g} pixels; draw fewer rows and columns, and give `shape` as words"
    )


def _width(one: Matrix, cell: float) -> float:
    return one.num_columns * cell + (_GAP * (one.num_parts - 1) if one.cut == "columns" else 0.0)


def _height(one: Matrix, cell: float) -> float:
    return one.num_rows * cell + (_GAP * (one.num_parts - 1) if one.cut == "rows" else 0.0)


def _space(item: Matrix | str, cell: float) -> float:
    """Pixels from left to right that an item needs, with its words; those of a matrix stand below its middle."""
    if isinstance(item, str):
        return max(_OPERATOR, text_width(item, 20) + 12)
    words = [text_width(text, _FONT) for text in (item.shape_words, item.cut_words, item.note)]
    return max(_width(item, cell) + 2 * (_RANKS if item.cut == "rows" else 0.0), *words) + 8


def _matrix(one: Matrix, left: float, space: float, middle: float, cell: float) -> Iterator[Rect | Label]:
    x, y = left + (space - _width(one, cell)) / 2, middle - _height(one, cell) / 2
    place = _Place(x=x, y=y, cell=cell)
    for row in range(one.num_rows):
        for column in range(one.num_columns):
            yield from _cell_of(one, row, column, place)
    if one.cut in ("columns", "rows"):
        yield from _ranks(one, place)
    centre, bottom = left + space / 2, middle + _height(one, cell) / 2
    yield Label(x=centre, y=y - 26, text=one.name, size=14, bold=True, anchor="middle")
    for number, text in enumerate(filter(None, (one.shape_words, one.cut_words, one.note))):
        at = bottom + 12 + number * _LINE
        yield Label(x=centre, y=at, text=text, size=_FONT, anchor="middle", colour="muted")


def _cell_of(one: Matrix, row: int, column: int, place: _Place) -> Iterator[Rect | Label]:
    rank = one.owners[one.part(row, column)]
    x, y = place.corner(one, row, column)
    side, look = place.cell - 1.5, _look(rank)
    tooltip = f"{one.name}, row {row}, column {column}: {'every rank' if rank is None else f'rank {rank}'}"
    yield Rect(x=x, y=y, width=side, height=side, tooltip=tooltip, radius=2 if side > 16 else 0, **look)
    lines = [f"{one.values[row][column]:.3g}"] if one.values is not None else []
    lines += [f"{'r' if lines else ''}{rank}"] if one.cut == "flat" else []
    on = "" if rank is None else look["fill"]
    for number, text in enumerate(lines):
        size = next((size for size in (12.0, 11.0, 10.0) if text_width(text, size) <= side - 1), 0.0)
        size = min(size, (side - 2) / len(lines))
        if size >= SMALLEST:
            at = y + side * (number + 0.5) / len(lines)
            yield Label(x=x + side / 2, y=at, text=text, size=size, anchor="middle", on=on)


def _ranks(one: Matrix, place: _Place) -> Iterator[Label]:
    """The rank at each part, as a word where it fits."""
    for part, rank in enumerate(one.owners):
        first = part * one.length // one.num_parts
        if one.cut == "rows":
            y = place.corner(one, first, 0)[1] + one.num_rows / one.num_parts * place.cell / 2
            yield Label(x=place.x - 8, y=y - 1, text=f"rank {rank}", size=_FONT, anchor="end")
            continue
        wide = one.num_columns / one.num_parts * place.cell
        text = f"rank {rank}" if text_width(f"rank {rank}", _FONT) < wide + _GAP - 3 else str(rank)
        x = place.corner(one, 0, first)[0] + wide / 2
        yield Label(x=x, y=place.y - 9, text=text, size=_FONT, anchor="middle")


def _sentence(one: Matrix) -> str:
    held = f"cut by {one.cut} into {one.num_parts} parts" if one.cut else "not cut"
    if one.cut == "flat":
        held = f"cut as one line of numbers into {one.num_parts} parts"
    owners = "every rank holds all of it" if one.owners == (None,) else f"held by ranks {_list(one.owners)}"
    return f"{one.name}, {one.shape_words}, is {held}; {owners}."


def _list(ranks: tuple[int, ...]) -> str:
    """Neighbouring ranks as a range: 0 to 3."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
