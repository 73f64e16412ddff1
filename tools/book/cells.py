"""Reads the code of notebook cells as syntax trees, in which the blocks of a page look for what a cell calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(cell: str) -> list[ast.stmt]:
    """The statements of a cell; none of a cell that starts with %%ranks, which is not Python."""
    try:
        return ast.parse(cell).body
    except SyntaxError:
        return []


def calls(body: list[ast.stmt]) -> Iterator[tuple[str, ast.Call]]:
    """Each call of a plain name in these statements, such as f(x) but not a.f(x), with this name."""
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node
