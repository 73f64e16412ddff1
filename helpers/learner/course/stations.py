"""The stations of a notebook: `## ▶ A · Who holds what? (6 min)` begins one, the next heading of that size ends it.

▶ marks the path. What stands before the first heading belongs to the path as well, what stands after the last station
under headings without a letter to no station. In Chinese copies the minutes stand as （6 分钟）.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

STATION = re.compile(r"(?P<path>▶ )?(?P<letter>[A-Z]) · (?P<title>\S.*?)(?: \(|（)(?P<minutes>\d+) (?:min\)|分钟）)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)
_TITLE = re.compile(r"# (?:(\d\d) · )?(\S.*)")

Cell = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Station:
    """One station. minutes: what its heading states. guesses, exercises: their keys. first, last: cells, by place."""

    letter: str
    title: str
    minutes: int
    on_path: bool
    guesses: tuple[str, ...]
    exercises: tuple[str, ...]
    first: int
    last: int


def source(cell: Cell) -> str:
    """The text of a cell, which a file may keep in lines."""
    return "".join(cell["source"])


def headings(cells: Sequence[Cell]) -> list[tuple[int, str]]:
    """Place of the cell and text of each heading of the second size; what stands in a block of code is none."""
    return [
        (place, text)
        for place, cell in enumerate(cells)
        if cell["cell_type"] == "markdown"
        for text in _HEADING.findall(_FENCE.sub("", source(cell)))
    ]


def chapter_title(cells: Sequence[Cell]) -> str:
    """ "ZeRO" of `# 08 · ZeRO`; "" where the notebook does not begin with such a line."""
    lines = source(cells[0]).splitlines() if cells else []
    match = _TITLE.fullmatch(lines[0].strip()) if lines else None
    return match[2] if match else ""


def read_cells(cells: Sequence[Cell]) -> tuple[Station, ...]:
    """The stations, in order; none for a notebook that has no headings with a letter."""
    found = [*headings(cells), (len(cells), "")]
    return tuple(
        _station(match, cells, first, last - 1)
        for (first, text), (last, _) in pairwise(found)
        if (match := STATION.fullmatch(text))
    )


def _station(match: re.Match, cells: Sequence[Cell], first: int, last: int) -> Station:
    code = [source(cell) for cell in cells[first : last + 1] if cell["cell_type"] == "code"]
    return Station(
        letter=match["letter"],
        title=match["title"],
        minutes=int(match["minutes"]),
        on_path=bool(match["path"]),
        guesses=tuple(dict.fromkeys(key for text in code for key in keys(text, "guess"))),
        exercises=tuple(dict.fromkeys(key for text in code for key in keys(text, "exercise"))),
        first=first,
        last=last,
    )


def calls(text: str, function: str) -> Iterator[ast.Call]:
    """The calls of a function by its bare name in the code of a cell; none where it is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield node


def keys(text: str, function: str) -> list[str]:
    """The keys of `guess(…, key="08.stage2")` or `exercise("08.shard", …)` in the code of a cell."""
    given = []
    for call in calls(text, function):
        named = [word.value for word in call.keywords if word.arg == "key"]
        given += named if function == "guess" else call.args[:1]
    return [node.value for node in given if isinstance(node, ast.Constant) and isinstance(node.value, str)]
