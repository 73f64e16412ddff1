"""Which names the cells of the path use that only other cells define: what is missing when the path runs alone.

Read from the source, without running it. Cells of the notebook and cells for ranks (`%%ranks`) do not share names.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from tests.notebooks.chapter import is_code, source

_KNOWN = {*dir(builtins), "rank", "world_size", "device", "get_ipython", "display", "__file__", "__name__"}


def missing(cells: list[dict], path: set[int]) -> dict[str, str]:
    """Name -> id of the first cell of the path that uses it, for names that only cells off the path define before."""
    found: dict[str, str] = {}
    for on_ranks in (False, True):
        defined, elsewhere = set(_KNOWN), set()
        for place, cell in enumerate(cells):
            if not is_code(cell) or source(cell).startswith("%%ranks") != on_ranks:
                continue
            tree = _tree(source(cell))
            if place in path:
                for name in _used(tree) - _defined(tree):
                    if name in elsewhere and name not in defined:
                        found.setdefault(name, cell["id"])
                defined |= _defined(tree)
            else:
                elsewhere |= _defined(tree)
    return found


def _tree(text: str) -> ast.Module:
    lines = ["" if line.startswith(("%", "!")) else line for line in text.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return ast.parse("")


def _used(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _defined(tree: ast.Module) -> set[str]:
    return set(_names(tree))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.asname or name.name.partition(".")[0] for name in node.names)
