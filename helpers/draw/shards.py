"""Draws matrices side by side, split into the parts that ranks own, with operators between them: X · A = Y.

`shards_scene` takes a list of `Matrix` and texts. A matrix is split ("cut") into parts by columns, by rows, or flat, as
one line of elements; the picture shows its elements as cells. Each part has its rank's colour and names its rank: above
columns, left of rows, inside the cells of a flat split. Chapters 07 and 08 use it for tensor parallelism and for ZeRO.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from helpers.draw.palette import NUM_RANK_PAINTS, kind_style, rank_paint
from helpers.draw.scene import SMALLEST, WIDTH, Label, Rect, Scene, centred_label, heading, text_width

CUTS = ("columns", "rows", "flat", None)
# Pixels: the margins, the width of an operator, and the ranks' names left of a matrix that is split by rows.
_SIDE, _OPERATOR, _RANK_NAMES = 20.0, 40.0, 50.0
_SMALLEST_CELL, _LARGEST_CELL = 8.0, 40.0  # pixels
_TALLEST, _GAP = 340.0, 6.0  # pixels: the largest height of a matrix, and the gap between two parts
_ABOVE, _LINE, _FONT = 40.0, 16.0, 11.0  # pixels: above the matrices, a line of text, the size of letters
_UNSPLIT = {"fill": "panel", "stroke": "muted"}


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix that is split into `num_parts` equal parts; part p is owned by ranks[p], by default rank p.

    cut: "columns", "rows", "flat" (as in ZeRO: all elements, row by row, as one line), or None for a matrix that every
    rank holds completely, or only the rank in `ranks`.
    num_rows and num_columns are what is drawn. `shape` replaces them in the text below, such as "4096 × 16384", and
    `part_text` replaces what is said about a rank's part. values: num_rows x num_columns numbers for the cells, or
    None. note: a further line of text below.
    Raises ValueError for an unknown cut, for parts that do not divide, or for values of another shape.
    """

    name: str
    num_rows: int
    num_columns: int
    cut: str | None = None
    num_parts: int = 1
    ranks: tuple[int, ...] = ()
    values: Sequence[Sequence[float]] | None = None
    shape: str = ""
    part_text: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.num_columns < 1:
            raise ValueError(f"matrix {self.name} is {self.num_rows} x {self.num_columns}; both must be at least 1")
        if self.cut not in CUTS:
            raise ValueError(f"the cut of matrix {self.name} is {self.cut!r}; it must be columns, rows, flat or None")
        if self.num_parts < 1 or (self.cut is None and self.num_parts > 1):
            raise ValueError(
                f"matrix {self.name} with cut {self.cut!r} has {self.num_parts} parts; give at least 1, and a cut"
            )
        if self.length % self.num_parts:
            raise ValueError(
                f"{self.num_parts} parts do not divide the {self.length} {self.unit} of matrix {self.name}; "
                f"choose a number of parts that divides {self.length}"
            )
        if self.ranks and len(self.ranks) != self.num_parts:
            raise ValueError(
                f"matrix {self.name} has {self.num_parts} parts but {len(self.ranks)} ranks; give one each"
            )
        # Without values there is nothing to check. With them, every row must have the same and right length.
        shapes = None if self.values is None else sorted({(len(self.values), len(row)) for row in self.values})
        if shapes not in (None, [(self.num_rows, self.num_columns)]):
            raise ValueError(f"matrix {self.name} is {self.num_rows} x {self.num_columns}, but its values are {shapes}")

    @property
    def length(self) -> int:
        """How many columns, rows or elements are split."""
        return {"columns": self.num_columns, "rows": self.num_rows}.get(self.cut, self.num_rows * self.num_columns)

    @property
    def unit(self) -> str:
        """The word for what is split; the picture calls the elements of a flat split numbers."""
        return self.cut if self.cut in ("columns", "rows") else "numbers"

    @property
    def owners(self) -> tuple[int | None, ...]:
        """The rank of each part; None stands for every rank."""
        return self.ranks or ((None,) if self.cut is None else tuple(range(self.num_parts)))

    def part(self, row: int, column: int) -> int:
        """The part in which a cell lies."""
        index = {"columns": column, "rows": row}.get(self.cut, row * self.num_columns + column)
        return index * self.num_parts // self.length

    @property
    def shape_words(self) -> str:
        """The shape as it stands below the matrix."""
        return self.shape or f"{self.num_rows} × {self.num_columns}"

    @property
    def cut_words(self) -> str:
        """How much of the matrix a rank holds."""
        if self.part_text:
            return self.part_text
        if self.cut is None:
            return "every rank: all of it" if not self.ranks else f"rank {self.ranks[0]}: all of it"
        return f"each: 1/{self.num_parts} of the {self.unit}"


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """Where the cells of a matrix are drawn: the top left corner of all, and the side of one."""

    x: float
    y: float
    side: float

    def corner(self, matrix: Matrix, row: int, column: int) -> tuple[float, float]:
        """The top left corner of a cell; the parts before its own each move it by a gap."""
        part = matrix.part(row, column)
        right, down = (part * _GAP if matrix.cut == cut else 0.0 for cut in ("columns", "rows"))
        return self.x + column * self.side + right, self.y + row * self.side + down


def shards_scene(
    items: Sequence[Matrix | str], *, title: str = "Which rank holds which part", largest: float = _LARGEST_CELL
) -> Scene:
    """A Scene of matrices and operators from left to right: [Matrix(name="X", ...), "·", Matrix(name="A", ...)].

    All matrices share one scale: every cell has the same size, at most `largest` pixels. Raises ValueError when there
    is no matrix, or when together they are too wide or too tall for cells that can be seen.
    """
    matrices = [item for item in items if isinstance(item, Matrix)]
    if not matrices:
        raise ValueError("shards_scene got no matrix; give a list such as [Matrix(...), '·', Matrix(...)]")
    side = _largest_fitting_side(items, matrices, largest)
    drawn, top = heading(title, _legend(matrices))  # title and legend, and the y where they end
    tallest = max(_height(matrix, side) for matrix in matrices)
    middle = top + _ABOVE + tallest / 2
    x = (WIDTH - sum(_space(item, side) for item in items)) / 2
    for item in items:
        space = _space(item, side)
        if isinstance(item, Matrix):
            drawn += _matrix(item, x, space, middle, side)
        else:
            drawn.append(centred_label(x + space / 2, middle, item, 20))
        x += space
    num_lines = 3.6 if any(matrix.note for matrix in matrices) else 2.6  # of text below; .6 is the bottom margin
    height = middle + tallest / 2 + _LINE * num_lines
    return Scene(height=height, title=title, summary=" ".join(map(_sentence, matrices)), items=drawn)


def _style(rank: int | None) -> dict[str, str]:
    """The style of a cell that this rank owns; None stands for every rank."""
    return _UNSPLIT if rank is None else kind_style(rank_paint(rank))


def _legend(matrices: list[Matrix]) -> list[tuple[str, dict]]:
    """The ranks' colours; with more ranks than colours only the names at the parts tell the ranks apart."""
    ranks = sorted({rank for matrix in matrices for rank in matrix.owners if rank is not None})
    entries = [(f"rank {rank}", _style(rank)) for rank in ranks] if len(ranks) <= NUM_RANK_PAINTS else []
    return entries + ([("every rank", _UNSPLIT)] if any(None in matrix.owners for matrix in matrices) else [])


def _largest_fitting_side(items: Sequence[Matrix | str], matrices: list[Matrix], largest: float) -> float:
    """The largest side of a cell with which everything fits, tried in steps of half a pixel."""
    for tenths in range(int(largest * 10), int(_SMALLEST_CELL * 10) - 1, -5):  # whole numbers, since a range needs them
        side = tenths / 10
        fits_width = sum(_space(item, side) for item in items) <= WIDTH - 2 * _SIDE
        if fits_width and max(_height(matrix, side) for matrix in matrices) <= _TALLEST:
            return side
    shapes = ", ".join(f"{matrix.name} {matrix.num_rows} x {matrix.num_columns}" for matrix in matrices)
    raise ValueError(
        f"{shapes} do not fit into {WIDTH:g} pixels; draw fewer rows and columns, and give `shape` as words"
    )


def _width(matrix: Matrix, side: float) -> float:
    """The pixels from the left to the right edge of the cells."""
    return matrix.num_columns * side + (_GAP * (matrix.num_parts - 1) if matrix.cut == "columns" else 0.0)


def _height(matrix: Matrix, side: float) -> float:
    """The pixels from the upper to the lower edge of the cells."""
    return matrix.num_rows * side + (_GAP * (matrix.num_parts - 1) if matrix.cut == "rows" else 0.0)


def _space(item: Matrix | str, side: float) -> float:
    """The pixels from left to right that an item needs; the texts of a matrix stand below its middle."""
    if isinstance(item, str):
        return max(_OPERATOR, text_width(item, 20) + 12)
    texts = [text_width(text, _FONT) for text in (item.shape_words, item.cut_words, item.note)]
    names = 2 * _RANK_NAMES if item.cut == "rows" else 0.0  # on both sides, so that the matrix stays in the middle
    return max(_width(item, side) + names, *texts) + 8


def _matrix(matrix: Matrix, left: float, space: float, middle: float, side: float) -> Iterator[Rect | Label]:
    """A matrix in the middle of its space, its name above, and its texts below."""
    x, y = left + (space - _width(matrix, side)) / 2, middle - _height(matrix, side) / 2
    cells = _Cells(x=x, y=y, side=side)
    for row in range(matrix.num_rows):
        for column in range(matrix.num_columns):
            yield from _cell(matrix, row, column, cells)
    if matrix.cut in ("columns", "rows"):
        yield from _rank_names(matrix, cells)
    centre, bottom = left + space / 2, middle + _height(matrix, side) / 2
    yield centred_label(centre, y - 26, matrix.name, 14, bold=True)
    texts = filter(None, (matrix.shape_words, matrix.cut_words, matrix.note))
    for number, text in enumerate(texts):
        yield centred_label(centre, bottom + 12 + number * _LINE, text, _FONT, colour="muted")


def _cell(matrix: Matrix, row: int, column: int, cells: _Cells) -> Iterator[Rect | Label]:
    """A cell with its value, if the matrix has values, and with its rank where the split is flat."""
    rank = matrix.owners[matrix.part(row, column)]
    x, y = cells.corner(matrix, row, column)
    side, style = cells.side - 1.5, _style(rank)
    tooltip = f"{matrix.name}, row {row}, column {column}: {'every rank' if rank is None else f'rank {rank}'}"
    yield Rect(x=x, y=y, width=side, height=side, tooltip=tooltip, radius=2 if side > 16 else 0, **style)
    lines = [f"{matrix.values[row][column]:.3g}"] if matrix.values is not None else []
    # Below a value the rank is "r3", so that it is not taken for a value, and alone it is "3".
    lines += [f"{'r' if lines else ''}{rank}"] if matrix.cut == "flat" else []
    on = "" if rank is None else style["fill"]
    for number, text in enumerate(lines):
        # The largest size at which the text and all lines fit the cell; letters below SMALLEST are left out.
        size = next((size for size in (12.0, 11.0, 10.0) if text_width(text, size) <= side - 1), 0.0)
        size = min(size, (side - 2) / len(lines))
        if size >= SMALLEST:
            yield centred_label(x + side / 2, y + side * (number + 0.5) / len(lines), text, size, on=on)


def _rank_names(matrix: Matrix, cells: _Cells) -> Iterator[Label]:
    """The rank at each part, as "rank 3" where there is room and as "3" elsewhere."""
    for part, rank in enumerate(matrix.owners):
        first = part * matrix.length // matrix.num_parts  # the first row or column of the part
        if matrix.cut == "rows":
            y = cells.corner(matrix, first, 0)[1] + matrix.num_rows / matrix.num_parts * cells.side / 2
            yield Label(x=cells.x - 8, y=y - 1, text=f"rank {rank}", size=_FONT, anchor="end")
            continue
        width = matrix.num_columns / matrix.num_parts * cells.side
        text = f"rank {rank}" if text_width(f"rank {rank}", _FONT) < width + _GAP - 3 else str(rank)
        yield centred_label(cells.corner(matrix, 0, first)[0] + width / 2, cells.y - 9, text, _FONT)


def _sentence(matrix: Matrix) -> str:
    """How the matrix is split and who holds it, for readers who cannot see the picture."""
    split = f"split by {matrix.cut} into {matrix.num_parts} parts" if matrix.cut else "not split"
    if matrix.cut == "flat":
        split = f"split as one flat vector into {matrix.num_parts} parts"
    is_on_all = matrix.owners == (None,)
    owners = "every rank holds all of it" if is_on_all else f"held by ranks {_ranges(matrix.owners)}"
    return f"{matrix.name}, {matrix.shape_words}, is {split}; {owners}."


def _ranges(ranks: tuple[int, ...]) -> str:
    """The ranks as text, neighbouring ones as a range: "0 to 3, 7"."""
    # Among neighbours, the difference of a rank and its index stays the same.
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
