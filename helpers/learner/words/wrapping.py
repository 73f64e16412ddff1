"""Wraps and aligns text for a terminal, in which a Chinese character is two columns wide.

Lines break at spaces and before or after Chinese characters. As in Chinese typesetting, no line starts with a closing
punctuation mark or ends with an opening one. A text may contain ANSI codes for colours, which take no column. The
commands of the course report problems with `complain`, which wraps a sentence and prints it to stderr.
"""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NO_START = frozenset("，。、；：？！）》」』】”’…％,.;:?!)]}%")  # characters that may not start a line
NO_END = frozenset("（《「『【“‘([{")  # characters that may not end a line
MIN_COLUMNS = 10  # of text in a line, even if the prefix leaves less room


def width(text: str) -> int:
    """How many columns this text takes in a terminal; codes for colours take none."""
    return sum(_columns(character) for character in ANSI_COLOUR.sub("", text))


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled with spaces to this many columns, on its left if `right`."""
    spaces = " " * max(0, columns - width(text))
    return spaces + text if right else text + spaces


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """One line per row of a table, with the first `left` columns aligned left and the others aligned right."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(padded(cell, widths[i], right=i >= left) for i, cell in enumerate(row)) for row in rows]


def wrap(text: str, columns: int, *, first: str = "", rest: str | None = None, cut: bool = True) -> list[str]:
    """One paragraph in lines of at most `columns`. first, rest: prefixes of the first line and of the other lines.

    Without `rest`, the other lines are indented by the width of `first`.

    A word that is longer than a line is cut, or with `cut=False` is left too long.
    """
    rest = " " * width(first) if rest is None else rest
    columns = max(columns, width(rest) + MIN_COLUMNS)
    lines, line, start = [], first, first  # start: the prefix of `line`; a line with nothing else is not ended yet
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
    """Print a sentence to stderr, wrapped if that is a terminal. Long words, such as paths, are left in one piece."""
    lines = wrap(text, shutil.get_terminal_size().columns, cut=False) if sys.stderr.isatty() else [text]
    print(*lines, sep="\n", file=sys.stderr)


def _columns(character: str) -> int:
    """How many columns a character takes: 2 if it is wide (W) or full-width (F), as Chinese is, and otherwise 1.

    Combining accents (Mn) and invisible format characters (Cf), such as a zero-width space, take none.
    """
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pieces(text: str) -> list[str]:
    """The pieces that are never broken: words with the space before them, Chinese characters with their punctuation."""
    pieces: list[str] = []
    # Each match is one visible character, with the space and the codes for colours before it.
    for character in re.findall(r"\s*(?:\x1b\[[0-9;]*m)*\S", " ".join(text.split())):
        if pieces and not _may_break(pieces[-1], character):
            pieces[-1] += character
        else:
            pieces.append(character)
    return pieces


def _may_break(left: str, right: str) -> bool:
    """Whether a line may end between a piece and the next character, which may have a space before it."""
    before, after = ANSI_COLOUR.sub("", left)[-1:], ANSI_COLOUR.sub("", right)
    if after[:1].isspace():
        return after.strip() not in NO_START and before not in NO_END
    if after in NO_START or before in NO_END:
        return False
    return _columns(before) == 2 or _columns(after) == 2


def _cut(piece: str, columns: int) -> list[str]:
    """A piece in parts of at most `columns`. A code for a colour is not cut."""
    if width(piece.strip()) <= columns:
        return [piece]
    parts, part = [], ""
    for token in re.findall(r"\x1b\[[0-9;]*m|.", piece):
        if width(part + token) > columns:
            parts.append(part)
            part = ""
        part += token
    return [*parts, part]
