"""Edits of a text, written as a diff is read, without what stays around them:

    - sent = steps * num_bytes / world_size
    + sent = steps * num_bytes

`- ` goes, `+ ` comes, `= ` stays and says where. A blank line ends an edit, and the next begins. What goes and stays is
a block of lines that the text must hold exactly once. How far the block is indented does not count, only its lines
among each other, and a comment at the end of a line of the text may be left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

MARKED = re.compile(r"[-+=]( |$)")
COMMENT = re.compile(r" +# .*$")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """lines[start:end] of a text become `new`, indented by so many blanks."""

    start: int
    end: int
    new: list[str]
    by: int


def edited(text: str, edits: str) -> str:
    """The text with its edits, each found in the text as it was. Raises ValueError for what is not written as above."""
    lines = text.splitlines()
    found = sorted((find(block, lines) for block in edits.strip("\n").split("\n\n")), key=lambda edit: edit.start)
    for edit, after in pairwise(found):
        if edit.end > after.start:
            raise ValueError(f"two edits change the line {lines[after.start].strip()!r}; make them one")
    for edit in reversed(found):
        lines[edit.start : edit.end] = [(" " * edit.by + line).rstrip() for line in edit.new]
    return "\n".join(lines) + "\n"


def find(block: str, lines: list[str]) -> Edit:
    """Where the text holds this block, and what becomes of it."""
    marked = block.split("\n")
    for line in marked:
        if not MARKED.match(line):
            raise ValueError(f"an edit has the line {line!r}; each begins with '- ', '+ ' or '= '")
    old, new = ([line[2:] for line in marked if line[0] in marks] for marks in ("-=", "+="))
    if not old:
        raise ValueError(f"an edit says what comes and not where: {block!r}; add the line beside it with '= '")
    places = [start for start in range(len(lines) - len(old) + 1) if begins(lines[start:], old)]
    if len(places) != 1:
        text = "\n".join(old)
        raise ValueError(f"these lines stand {len(places)} times where they must stand once:\n{text}")
    (start,) = places
    return Edit(start=start, end=start + len(old), new=new, by=indent(lines[start]) - indent(old[0]))


def begins(lines: list[str], old: list[str]) -> bool:
    """Whether the lines begin with the old ones, all of them moved to the right alike."""
    by = " " * (indent(lines[0]) - indent(old[0]))
    return all((by + one).rstrip() in (line, COMMENT.sub("", line)) for one, line in zip(old, lines, strict=False))


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())
