"""Draws tensor parallelism: a layer number by number on each rank, and where a layer communicates.

`tensor_split_scene` shows one pass over a split layer as rows of small matrices, X · A₀ = Y₀, and below them how long
each pass takes in a layer of real size; the tensor-split explorer uses it. A pass is the forward, or one half of
the backward: the gradients of the inputs or of the weights. Each item of a row (PassItem) is a ShardedMatrix, which has
its numbers as `values` and the ranks that own its rows or columns as `ranks`, an Operation (a collective), or a text
such as "·". `equations_items` draws the rows. `tensor_layer_scene` shows Megatron's
f and g, which are an all-reduce in backward and in forward, around attention and MLP, for chapter 07.

A cell has the colour of the rank whose number it is, and its matrix has the rank's number in its name. A partial sum,
which is of no use before an all-reduce adds it to the others, is framed in the colour of communication.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.palette import kind_style, kind_word, rank_paint
from helpers.draw.rows import BarRow, BarStyle, Part, rows_scene
from helpers.draw.scene import (
    MARGIN,
    SMALLEST,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    heading,
    kinds_legend,
    labelled_box,
    stacked_scene,
    text_width,
)
from helpers.learner.words import book
from helpers.predict.by_hand.tensor_split import Operation, Pass, PassItem, ShardedMatrix
from helpers.quantities.units import format_seconds

words = book("tensor_split")  # what a reader sees, by name, in the learner's language: learner/words/tensor_split.yaml
pictures_words = book("pictures")  # what a reader sees, by name, in the learner's language: learner/words/pictures.yaml
# Pixels: left of the matrices for the rows' names, the right margin, a matrix's name, and between two rows.
_LEFT, _RIGHT, _NAME, _GAP = 98.0, 16.0, 18.0, 12.0
_LARGEST, _SMALLEST, _TALLEST = 34.0, 15.0, 19.0  # pixels: a cell's largest and smallest width, its largest height
_CELL_GAP = 1.5  # pixels between two cells
_FONT, _MESSAGE = 11.0, 54.0  # pixels: letters, and the width of a message between two matrices
_OPERATOR_WIDTHS = {"": 22.0, "·": 13.0, "=": 18.0, "→": 22.0}  # pixels; "" is an empty space between two equations
_EVERY_RANK = {"fill": "panel", "stroke": "rule"}
_PARTIAL_SUM = {"stroke": "communication", "stroke_width": 2.0}

_BARS = BarStyle(height=20, pitch=28, gap=1.5)
Bars = Mapping[str, Mapping[str, tuple[str, float]]]  # name -> part -> (kind of the palette, seconds)

_LAYER_PARTS = (("f", 0.5), ("attention", 1.5), ("g", 0.5), ("f", 0.5), ("MLP", 1.5), ("g", 0.5))  # name, width
_LAYER_GAP = 0.35  # between two parts, in the unit of their widths
# Pixels of the layer: left of it, right of it, the height of a part, and from forward to backward.
_LAYER_LEFT, _LAYER_RIGHT, _LAYER_HEIGHT, _LAYER_PITCH = 100.0, 30.0, 34.0, 58.0


# -- matrices with their numbers -------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Cell:
    """The size of a cell in pixels, and the digits after the decimal point of numbers that are not whole."""

    width: float
    height: float
    digits: int = 2


def equations_items(rows: Mapping[str, Sequence[PassItem]], top: float) -> tuple[list[SceneItem], float]:
    """The items of all rows, one below the other from `top`, and the y at which they end. All cells have one size.

    Raises ValueError when a row is too wide for cells that can be read.
    """
    cell = _cell(rows)
    items: list[SceneItem] = []
    for number, (name, row) in enumerate(rows.items()):
        height = max(len(item.values) for item in row if isinstance(item, ShardedMatrix)) * cell.height
        middle = top + _NAME + height / 2
        items.append(Label(x=MARGIN, y=middle, text=name, size=12))
        items += _row(name, row, middle, cell)
        top += _NAME + height + _GAP
        if number == 0 and len(rows) > 1:  # the first row is one process; a line separates it from the ranks
            items.append(Line(x1=MARGIN, y1=top - 4, x2=WIDTH - MARGIN, y2=top - 4))
            top += 6
    return items, top


def equations_legend(rows: Mapping[str, Sequence[PassItem]]) -> list[tuple[str, dict]]:
    """The entries of `heading` for what occurs in the rows."""
    blocks = _matrices(rows)
    ranks = sorted({rank for block in blocks for rank in block.ranks if rank is not None})  # None: on every rank
    entries = [(f"rank {rank}", _style(rank)) for rank in ranks]
    if any(None in block.ranks or not block.ranks for block in blocks):
        entries.append((words("every"), _EVERY_RANK))
    if any(block.partial for block in blocks):
        entries.append((words("joined"), {"fill": "panel", **_PARTIAL_SUM}))
    return entries


def _matrices(rows: Mapping[str, Sequence[PassItem]]) -> list[ShardedMatrix]:
    """All matrices of all rows."""
    return [item for row in rows.values() for item in row if isinstance(item, ShardedMatrix)]


def equations_words(row: Sequence[PassItem]) -> str:
    """A row as a part of a sentence: "X · A₀ = Y₀, all-reduce of dX, dX"."""
    texts = []
    for item in row:
        if isinstance(item, Operation):
            texts.append(f", {words('operation', op=item.op.replace('_', '-'), name=item.name)},")
        else:
            texts.append(item.name if isinstance(item, ShardedMatrix) else item)
    # A comma follows its word without a space, and none stands at either end.
    return " ".join(filter(None, texts)).replace(" ,", ",").strip(", ")


def _style(rank: int | None) -> dict[str, str]:
    """The style of a cell that this rank owns; None stands for every rank."""
    return _EVERY_RANK if rank is None else kind_style(rank_paint(rank))


def _cell(rows: Mapping[str, Sequence[PassItem]]) -> _Cell:
    """The largest cell, in steps of half a pixel, with which every row fits; one digit where two are too small."""
    available = WIDTH - _LEFT - _RIGHT
    for half_pixels in range(int(2 * _LARGEST), int(2 * _SMALLEST) - 1, -1):
        cell_width = half_pixels / 2
        if all(sum(_space(item, cell_width) for item in row) <= available for row in rows.values()):
            cell = _Cell(width=cell_width, height=min(_TALLEST, cell_width))
            smallest = min(_font_size(block, cell) for block in _matrices(rows))
            return cell if smallest >= SMALLEST else replace(cell, digits=1)
    widest = max(rows, key=lambda name: sum(_space(item, _SMALLEST) for item in rows[name]))
    raise ValueError(
        f"row {widest!r} needs cells of less than {_SMALLEST:g} pixels to fit into {WIDTH:g}; show fewer columns"
    )


def _space(item: PassItem, cell_width: float) -> float:
    """The pixels from left to right that an item takes."""
    if isinstance(item, Operation):
        return _MESSAGE
    if isinstance(item, str):
        return _OPERATOR_WIDTHS.get(item, text_width(item, _FONT) + 12)
    # The matrix, or its name where that is wider; five pixels stay free, and a name may use three of them.
    return max(len(item.values[0]) * cell_width, text_width(item.name, _FONT, bold=True) - 3) + 5


def _row(name: str, row: Sequence[PassItem], middle: float, cell: _Cell) -> Iterator[Rect | Label | Line]:
    """The items of a row from left to right, their middles at the height `middle`."""
    x = _LEFT
    for item in row:
        space = _space(item, cell.width)
        if isinstance(item, ShardedMatrix):
            yield from _block(name, item, x + (space - len(item.values[0]) * cell.width) / 2, middle, cell)
        elif isinstance(item, Operation):
            yield from _message(item, x, middle)
        elif item:
            yield from _operator(item, x, space, middle)
        x += space


def _operator(text: str, x: float, space: float, middle: float) -> Iterator[Label | Line]:
    """A sign, or a part of an equation such as "· W ="; the name of a function stands above an arrow."""
    if not text.isidentifier() and not text.endswith("′"):  # not a function such as ReLU or its derivative ReLU′
        yield centred_label(x + space / 2, middle, text, 15 if len(text) == 1 else 12)
        return
    yield centred_label(x + space / 2, middle - 9, text, _FONT)
    yield Line(x1=x + 4, y1=middle + 3, x2=x + space - 4, y2=middle + 3, colour="muted", width=1.4, arrow=True)


def _message(operation: Operation, x: float, middle: float) -> Iterator[Label | Line]:
    """A collective as an arrow, its name in two lines above: "all-", "reduce"."""
    first, _, second = operation.op.partition("_")
    op_name = operation.op.replace("_", "-")
    tooltip = words("message", op=op_name, name=operation.name, count=operation.count)
    for number, text in enumerate((f"{first}-", second)):
        yield centred_label(x + _MESSAGE / 2, middle - 22 + 12 * number, text, _FONT, bold=True)
    ends = {"x1": x + 4, "y1": middle + 2, "x2": x + _MESSAGE - 5, "y2": middle + 2}
    yield Line(**ends, colour="communication", width=2.2, arrow=True, tooltip=tooltip)
    if operation.word:  # the reduction, such as "max", where it is not a sum
        yield centred_label(x + _MESSAGE / 2, middle + 14, operation.word, _FONT, colour="muted")


def _block(row_name: str, block: ShardedMatrix, left: float, middle: float, cell: _Cell) -> Iterator[Rect | Label]:
    """A matrix: its name above, a cell per number in the colour of the rank that owns it, and a frame if partial.

    A matrix is partial if it is one term of a sum over the ranks.
    """
    num_rows, num_columns = block.shape
    top, width = middle - num_rows * cell.height / 2, num_columns * cell.width
    yield centred_label(left + width / 2, top - 9, block.name, _FONT, bold=True)
    font_size, box_width, box_height = _font_size(block, cell), cell.width - _CELL_GAP, cell.height - _CELL_GAP
    for row, numbers in enumerate(block.values):
        for column, number in enumerate(numbers):
            owner = block.owner(row, column)
            whose = words("on_every") if owner is None else words("of_rank", rank=owner)
            place = {"row_name": row_name, "name": block.name, "row": row, "column": column}
            tooltip = words("number", **place, number=number_text(number), whose=whose)
            x, y = left + column * cell.width, top + row * cell.height
            style, text = {"radius": 2, "tooltip": tooltip, **_style(owner)}, number_text(number, cell.digits)
            yield from labelled_box(x, y, box_width, box_height, text, size=font_size, **style)
    if block.partial:
        box = {"x": left - 2.5, "y": top - 2.5, "width": width + 3.5, "height": num_rows * cell.height + 3.5}
        yield Rect(**box, radius=3, tooltip=words("term", name=block.name), **_PARTIAL_SUM)


def _font_size(block: ShardedMatrix, cell: _Cell) -> float:
    """The largest size at which every number of a matrix fits its cell."""
    texts = [number_text(number, cell.digits) for row in block.values for number in row]
    widest = max(text_width(text, 1.0) for text in texts)
    return min(_FONT, cell.height - 6, cell.width / widest)


def number_text(value: float, digits: int = 2) -> str:
    """A whole number as it is, and any other with at most so many digits after the decimal point."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text  # "-0" is a small negative number, rounded


# -- one pass over a split layer -------------------------------------------------------------------------------------
def tensor_split_scene(layer_pass: Pass, *, title: str, bars: Bars, bars_title: str) -> Scene:
    """A row for one process, a row for each rank, and below them `bars`, the layer's time at real size.

    All bars share one scale, and each ends with its sum.
    """
    rows = {words("one_process"): layer_pass.one_process}
    rows |= {f"rank {rank}": row for rank, row in enumerate(layer_pass.by_rank)}
    head, top = heading(title, equations_legend(rows))  # title and legend, and the y where they end
    items, bottom = equations_items(rows, top + 6)
    summary = " ".join(words("row", name=name, says=equations_words(row)) for name, row in rows.items())
    equations = Scene(height=bottom - _GAP, title=title, summary=summary, items=(*head, *items))
    totals = ", ".join(f"{name} {_total_text(parts)}" for name, parts in bars.items())
    real = rows_scene([_bar(name, parts) for name, parts in bars.items()], _BARS, title=bars_title, summary=totals)
    return stacked_scene(equations, real, title=title)


def _bar(name: str, parts: Mapping[str, tuple[str, float]]) -> BarRow:
    """A row with the name and the time of each part, or its time alone where there is no room for both."""
    drawn = []
    for part, (kind, seconds) in parts.items():
        time = format_seconds(seconds)
        texts = {"text": f"{part} {time}", "short": time, "tooltip": f"{name}, {part}: {time}"}
        drawn.append(Part(kind=kind, size=seconds, **texts))
    return BarRow(name=name, parts=drawn, end=_total_text(parts))


def _total_text(parts: Mapping[str, tuple[str, float]]) -> str:
    """The sum of the parts' seconds."""
    return format_seconds(sum(seconds for _, seconds in parts.values()))


# -- where a layer communicates --------------------------------------------------------------------------------------
def tensor_layer_scene(*, title: str) -> Scene:
    """f, attention, g, f, MLP, g in a row for forward and a row for backward.

    An f or g that communicates has the colour of communication; one that does nothing is empty.
    """
    items, top = heading(title, kinds_legend(["forward", "backward", "communication"]))
    items += [*_layer_row("forward", top + 18), *_layer_row("backward", top + 18 + _LAYER_PITCH)]
    return Scene(height=top + 18 + 2 * _LAYER_PITCH, title=title, summary=pictures_words("layer"), items=items)


def _layer_row(kind: str, y: float) -> Iterator[Rect | Label | Line]:
    """Boxes from left to right, and arrows between them: to the right in forward, to the left in backward."""
    total = sum(size for _, size in _LAYER_PARTS) + _LAYER_GAP * (len(_LAYER_PARTS) - 1)
    scale = (WIDTH - _LAYER_LEFT - _LAYER_RIGHT) / total  # pixels per unit of the widths
    communicates = "g" if kind == "forward" else "f"
    middle, x = y + _LAYER_HEIGHT / 2, _LAYER_LEFT
    yield Label(x=MARGIN, y=middle, text=kind_word(kind), size=13)
    for number, (name, size) in enumerate(_LAYER_PARTS):
        if number:
            left, right = x - 0.32 * scale, x - 0.03 * scale  # within the gap before this part
            x1, x2 = (left, right) if kind == "forward" else (right, left)
            yield Line(x1=x1, y1=middle, x2=x2, y2=middle, colour="ink", width=1.5, arrow=True)
        computes = name in ("attention", "MLP")
        fill = "communication" if name == communicates else kind if computes else ""
        style = kind_style(fill) if fill else {"stroke": "muted"}
        yield from labelled_box(x, y, size * scale, _LAYER_HEIGHT, name, size=14, bold=True, radius=4, **style)
        if fill == "communication":
            yield centred_label(x + size * scale / 2, y + _LAYER_HEIGHT + 9, "all-reduce", 11)
        x += (size + _LAYER_GAP) * scale
