"""Parses the source of strangers' cells within limits, so that reading a notebook takes time in proportion to its size.

The parser needs time and memory for each character, and what comes after it (the search for what a task needs, the
scan, the comparison of answers) for each node of the syntax tree, some of it once more for each node above it. So
the limits are on the characters, the statements and nodes of a whole notebook, and on how deeply a cell is nested. The
largest honest notebook is the solution of a lab: `tests/classroom/test_cell_source.py` checks that every lab has a
tenth of each limit at most, and half of the depth. A cell beyond a limit is left out, with a sentence that names it.
"""

from __future__ import annotations

import ast
import re

from helpers.classroom.labs import parse

MAX_CELL_CHARACTERS = 100_000
MAX_CHARACTERS = 400_000  # characters of all cells with code together
MAX_STATEMENTS = 5_000  # statements of all cells together, also inside functions
MAX_NODES = 50_000  # nodes of all syntax trees together
MAX_NESTING = 100  # nodes above each other in the syntax tree of a cell
MAGIC = re.compile(r"^(\s*)(%|!|\?).*$|^(\s*)[\w.]+\?{1,2}\s*$")  # the groups 1 and 3 are the indentation


class SourceRefused(Exception):
    """A cell cannot be parsed, or exceeds a limit. The message says why: "it is nested more than 100 deep"."""


class CellParser:
    """Parses the cells of one notebook one after the other, as long as they keep the limits together.

    characters, statements, nodes: how many the cells so far have.
    """

    def __init__(self) -> None:
        self.characters = self.statements = self.nodes = 0

    def parse(self, source: str) -> tuple[str, ast.Module]:
        """The source without magics, and its syntax tree. Raises SourceRefused, and SyntaxError for no Python."""
        if len(source) > MAX_CELL_CHARACTERS:
            raise SourceRefused(f"it has {len(source):,} characters, more than {MAX_CELL_CHARACTERS:,}")
        if self.characters + len(source) > MAX_CHARACTERS:
            raise SourceRefused(f"with it the notebook's code has more than {MAX_CHARACTERS:,} characters")
        self.characters += len(source)
        try:
            text, tree = _parsed(source)
        except (RecursionError, MemoryError):
            raise SourceRefused("it is nested too deeply to be parsed") from None
        except UnicodeEncodeError:
            raise SourceRefused("it has a character that no text may hold (half of a surrogate pair)") from None
        except ValueError:
            raise SourceRefused("it holds a null byte") from None
        self._count(tree)
        return text, tree

    def _count(self, tree: ast.Module) -> None:
        """Add the nodes of a cell to the counts. Raises SourceRefused, and does not add them, beyond a limit."""
        statements, nodes = self.statements, self.nodes
        waiting: list[tuple[ast.AST, int, int]] = [(tree, 0, 1)]  # a node, how many are above it, its line
        while waiting:
            node, depth, line = waiting.pop()
            line = getattr(node, "lineno", line)
            nodes += 1
            statements += isinstance(node, ast.stmt)
            if depth > MAX_NESTING:
                raise SourceRefused(f"its line {line} is nested more than {MAX_NESTING} deep")
            if statements > MAX_STATEMENTS:
                raise SourceRefused(f"with it the notebook has more than {MAX_STATEMENTS:,} statements")
            if nodes > MAX_NODES:
                raise SourceRefused(f"with it the notebook has more than {MAX_NODES:,} names, numbers and operations")
            waiting += [(child, depth + 1, line) for child in ast.iter_child_nodes(node)]
        self.statements, self.nodes = statements, nodes


def _parsed(source: str) -> tuple[str, ast.Module]:
    """The source without magics, and its syntax tree. Raises what `ast.parse` raises."""
    lines = _without_cell_magic(source.split("\n"))
    text = "\n".join(lines)
    # Only a cell that is no Python as it stands is changed further, because a line that begins with % may also continue
    # an expression of the line above it.
    try:
        return text, parse(text)
    except SyntaxError:
        text = "\n".join(_without_line_magics(lines))
        return text, parse(text)


def _without_cell_magic(lines: list[str]) -> list[str]:
    """The lines without a magic for the whole cell; below some of these magics the cell is Python, below others not."""
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if not lines[first].startswith("%%"):
        return lines
    runs_cell = re.match(r"%%(time|timeit|capture)\b", lines[first]) is not None
    return [*[""] * (first + 1), *lines[first + 1 :]] if runs_cell else [""] * len(lines)


def _without_line_magics(lines: list[str]) -> list[str]:
    return [MAGIC.sub(lambda match: (match[1] or match[3] or "") + "pass", line) for line in lines]
