"""Rows of matrices with their numbers, and operators and messages between them: X · A₀ = Y₀ on each rank.

A cell has the colour of the rank whose number it is, and its matrix the rank's number in its name. What is a term of a
sum over ranks, of no use before it is added, is framed in the colour of communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.draw.palette import PAINTS, rank_paint
from helpers.draw.scene import SMALLEST, WIDTH, Label, Line, Rect, text_width
from helpers.learner.words import book
from helpers.predict.by_hand.small_matrices import Block, Item, Operation

_LEFT, _RIGHT, _NAME, _GAP = 98.0, 16.0, 18.0, 12.0  # pixels: row names, margin, a matrix's name, between rows
_LARGEST, _SMALLEST, _TALLEST = 34.0, 15.0, 19.0  # pixels of a cell: widths, and the most of its height
_FONT, _MESSAGE = 11.0, 54.0
say = book("tensor_split")
_EVERY = {"fill": "panel", "stroke": "rule"}
_TERM = {"stroke": "communication", "stroke_width": 2.0}


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """Pixels, and the digits after the point of numbers that are not whole."""

    width: float
    height: float
    digits: int = 2


def equations_items(
    rows: Mapping[str, Sequence[Item]], top: float, *, width: float = WIDTH
) -> tuple[list[Rect | Label | Line], float]:
    """The items of all rows, one below the other from `top`, and the y at which they end. Cells are equally large.

    ValueError when a row is too wide for cells that can be read.
    """
    cell = _cell(rows, width)
    items: list[Rect | Label | Line] = []
    for number, (name, row) in enumerate(rows.items()):
        height = max(len(item.values) for item in row if isinstance(item, Block)) * cell.height
        middle = top + _NAME + height / 2
        items.append(Label(x=14, y=middle, text=name, size=12))
        items += _row(name, row, middle, cell)
        top += _NAME + height + _GAP
        if number == 0 and len(rows) > 1:
            items.append(Line(x1=14, y1=top - 4, x2=width - 14, y2=top - 4))
            top += 6
    return items, top


def legend(rows: Mapping[str, Sequence[Item]]) -> list[tuple[str, dict]]:
    """The entries of `heading` for what occurs in the rows."""
    blocks = [item for row in rows.values() for item in row if isinstance(item, Block)]
    ranks = sorted({rank for block in blocks for rank in block.ranks if rank is not None})
    entries = [(f"rank {rank}", _look(rank)) for rank in ranks]
    entries += [(say("every"), _EVERY)] if any(None in block.ranks or not block.ranks for block in blocks) else []
    return entries + ([(say("joined"), {"fill": "panel", **_TERM})] if any(one.partial for one in blocks) else [])


def equations_words(row: Sequence[Item]) -> str:
    """A row as a sentence's part: "X · A₀ = Y₀, all-reduce of dX, dX"."""
    words = [f", {_operation(each)}," if isinstance(each, Operation) else _name(each) for each in row]
    return " ".join(filter(None, words)).replace(" ,", ",").strip(", ")


def _operation(one: Operation) -> str:
    return say("operation", op=one.op.replace("_", "-"), name=one.name)


def _name(item: Block | str) -> str:
    return item.name if isinstance(item, Block) else item


def _look(rank: int | None) -> dict[str, str]:
    return _EVERY if rank is None else {"fill": rank_paint(rank), "texture": PAINTS[rank_paint(rank)].texture}


def _cell(rows: Mapping[str, Sequence[Item]], width: float) -> _Cell:
    room = width - _LEFT - _RIGHT
    for wide in range(int(2 * _LARGEST), int(2 * _SMALLEST) - 1, -1):
        if all(sum(_space(item, wide / 2) for item in row) <= room for row in rows.values()):
            cell = _Cell(width=wide / 2, height=min(_TALLEST, wide / 2))
            blocks = [item for row in rows.values() for item in row if isinstance(item, Block)]
            return cell if min(_font(one, cell) for one in blocks) >= SMALLEST else replace(cell, digits=1)
    widest = max(rows, key=lambda name: sum(_space(item, _SMALLEST) for item in rows[name]))
    raise ValueError(
        f"row {widest!r} needs cells of less than {_SMALLEST:g} pixels to fit into {width:g}; show fewer columns"
    )


def _space(item: Item, cell: float) -> float:
    """Pixels from left to right."""
    if isinstance(item, Operation):
        return _MESSAGE
    if isinstance(item, str):
        return {"": 22.0, "·": 13.0, "=": 18.0, "→": 22.0}.get(item, text_width(item, _FONT) + 12)
    return max(len(item.values[0]) * cell, text_width(item.name, _FONT, bold=True) - 3) + 5


def _row(name: str, row: Sequence[Item], middle: float, cell: _Cell) -> Iterator[Rect | Label | Line]:
    x = _LEFT
    for item in row:
        space = _space(item, cell.width)
        if isinstance(item, Block):
            yield from _block(name, item, x + (space - len(item.values[0]) * cell.width) / 2, middle, cell)
        elif isinstance(item, Operation):
            yield from _message(item, x, middle)
        elif item:
            yield from _operator(item, x, space, middle)
        x += space


def _operator(text: str, x: float, space: float, middle: float) -> Iterator[Label | Line]:
    """A sign, or an equation's part such as "· W ="; a word stands above an arrow."""
    if not text.isidentifier() and not text.endswith("′"):
        size = 15 if len(text) == 1 else 12
        yield Label(x=x + space / 2, y=middle, text=text, size=size, anchor="middle")
        return
    yield Label(x=x + space / 2, y=middle - 9, text=text, size=_FONT, anchor="middle")
    yield Line(x1=x + 4, y1=middle + 3, x2=x + space - 4, y2=middle + 3, colour="muted", width=1.4, arrow=True)


def _message(item: Operation, x: float, middle: float) -> Iterator[Label | Line]:
    first, _, second = item.op.partition("_")
    tooltip = say("message", op=item.op.replace("_", "-"), name=item.name, count=item.count)
    for number, text in enumerate((f"{first}-", second)):
        at = {"x": x + _MESSAGE / 2, "y": middle - 22 + 12 * number}
        yield Label(text=text, size=_FONT, anchor="middle", bold=True, **at)
    ends = {"x1": x + 4, "y1": middle + 2, "x2": x + _MESSAGE - 5, "y2": middle + 2}
    yield Line(**ends, colour="communication", width=2.2, arrow=True, tooltip=tooltip)
    if item.word:
        yield Label(x=x + _MESSAGE / 2, y=middle + 14, text=item.word, size=_FONT, anchor="middle", colour="muted")


def _block(row_name: str, one: Block, left: float, middle: float, cell: _Cell) -> Iterator[Rect | Label]:
    num_rows, num_columns = one.shape
    top, width = middle - num_rows * cell.height / 2, num_columns * cell.width
    yield Label(x=left + width / 2, y=top - 9, text=one.name, size=_FONT, anchor="middle", bold=True)
    size = _font(one, cell)
    for row, numbers in enumerate(one.values):
        for column, number in enumerate(numbers):
            owner = one.owner(row, column)
            whose = say("on_every") if owner is None else say("of_rank", rank=owner)
            place = {"row_name": row_name, "name": one.name, "row": row, "column": column}
            tooltip = say("number", **place, number=number_text(number), whose=whose)
            x, y = left + column * cell.width, top + row * cell.height
            look = {"width": cell.width - 1.5, "height": cell.height - 1.5, "radius": 2, "tooltip": tooltip}
            yield Rect(x=x, y=y, **look, **_look(owner))
            on = "" if owner is None else rank_paint(owner)
            at = {"x": x + (cell.width - 1.5) / 2, "y": y + (cell.height - 1.5) / 2}
            yield Label(**at, text=number_text(number, cell.digits), size=size, anchor="middle", on=on)
    if one.partial:
        box = {"x": left - 2.5, "y": top - 2.5, "width": width + 3.5, "height": num_rows * cell.height + 3.5}
        yield Rect(**box, radius=3, tooltip=say("term", name=one.name), **_TERM)


def _font(one: Block, cell: _Cell) -> float:
    """The largest size at which every number of a matrix fits its cell."""
    texts = [number_text(number, cell.digits) for row in one.values for number in row]
    widest = max(text_width(text, 1.0) for text in texts)
    return min(_FONT, cell.height - 6, cell.width / widest)


def number_text(value: float, digits: int = 2) -> str:
    """A whole number as it is, another with at most so many digits after the point."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
