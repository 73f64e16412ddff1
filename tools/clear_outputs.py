"""A notebook without what its cells gave, so that a learner is asked before being told. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

OPENING = "opening"  # the tag of the cell whose picture every learner sees first


def cleared(content: bytes) -> bytes:
    """Without outputs and execution counts, but for cells with the tag `opening`. Other files stay the same."""
    notebook = _parsed(content)
    for cell in _code_cells(notebook):
        if OPENING not in cell.get("metadata", {}).get("tags", ()):  # nbval fails on an output with a null count
            cell["outputs"], cell["execution_count"] = [], None
    if notebook is None or notebook == _parsed(content):
        return content
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode() + b"\n"


def sources(content: bytes) -> str:
    """A hash of what is written in a notebook, whatever was run in it; "" for what is no notebook."""
    notebook = _parsed(content)
    if notebook is None:
        return ""
    cells = [[cell.get("cell_type"), _text(cell), cell.get("attachments")] for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        notebook = json.loads(content)
    except ValueError:
        return None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    return notebook if isinstance(cells, list) and all(isinstance(cell, dict) for cell in cells) else None


def _code_cells(notebook: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    yield from (cell for cell in (notebook or {"cells": ()})["cells"] if cell.get("cell_type") == "code")


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)
