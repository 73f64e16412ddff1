"""Lines for a terminal, in which a Chinese character is two columns wide.

Lines break at spaces and beside Chinese characters, but no line starts with a closing mark or ends with an opening one
(the rules that typesetters of Chinese keep).
"""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NO_START = frozenset("，。、；：？！）》」』】”’…％,.;:?!)]}%")
NO_END = frozenset("（《「『【“‘([{")


def width(text: str) -> int:
    """Columns that a terminal gives to this text; colours take none."""
    return sum(_columns(character) for character in COLOUR.sub("", text))


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Filled with spaces to so many columns."""
    spaces = " " * max(0, columns - width(text))
    return spaces + text if right else text + spaces


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """A line for each row; the first `left` columns are words and begin alike, the others are numbers and end alike."""
    wide = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(padded(cell, wide[i], right=i >= left) for i, cell in enumerate(row)) for row in rows]


def wrap(text: str, columns: int, *, first: str = "", rest: str | None = None, cut: bool = True) -> list[str]:
    """One paragraph in lines of at most `columns`. first, rest: what stands before the first line and the others.

    A word that is longer than a line is cut, or with `cut=False` stands out.
    """
    rest = " " * width(first) if rest is None else rest
    columns = max(columns, width(rest) + 10)
    lines, line, start = [], first, first
    pieces = _pieces(text)
    if cut:
        pieces = [part for piece in pieces for part in _cut(piece, columns - width(rest))]
    for piece in pieces:
        if width(line + piece.rstrip()) > columns and line != start:
            lines.append(line.rstrip())
            line = start = rest
            piece = piece.lstrip()
        line += piece
    return [*lines, line.rstrip()]


def complain(text: str) -> None:
    """A sentence to stderr: in the terminal's lines, and as it is where no terminal reads it."""
    whole = wrap(text, shutil.get_terminal_size().columns, cut=False) if sys.stderr.isatty() else [text]
    print(*whole, sep="\n", file=sys.stderr)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pieces(text: str) -> list[str]:
    """What is not parted: words with the space before them, single Chinese characters with the marks around them."""
    found: list[str] = []
    for piece in re.findall(r"\s*(?:\x1b\[[0-9;]*m)*\S", " ".join(text.split())):
        if found and not _may_part(found[-1], piece):
            found[-1] += piece
        else:
            found.append(piece)
    return found


def _may_part(left: str, right: str) -> bool:
    """Whether a line may end between these two."""
    before, after = COLOUR.sub("", left)[-1:], COLOUR.sub("", right)
    if after[:1].isspace():
        return after.strip() not in NO_START and before not in NO_END
    if after in NO_START or before in NO_END:
        return False
    return _columns(before) == 2 or _columns(after) == 2


def _cut(piece: str, columns: int) -> list[str]:
    if width(piece.strip()) <= columns:
        return [piece]
    parts, part = [], ""
    for token in re.findall(r"\x1b\[[0-9;]*m|.", piece):
        if width(part + token) > columns:
            parts.append(part)
            part = ""
        part += token
    return [*parts, part]
