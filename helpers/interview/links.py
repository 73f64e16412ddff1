"""Where a card or a drill leads: the chapter's cell, the lab's task, or the source, as a text and an address.

JupyterLab opens a notebook at a cell for the fragment `#cell-id=ID`. A card may name a cell by its tag, so the
notebook is read for the cell's id; where there is no notebook to read, the address is that of the file alone.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from helpers.interview.cards import Card, Cell, Source
from helpers.interview.words import say
from helpers.learner.course import find


def link(card: Card, base: str = "", *, language: str | None = None) -> tuple[str, str]:
    """What to read and its address: of the cell that shows the answer, or of the source.

    base: the way from the page to the folder of the chapters: "" in a chapter, "../" in a lab.
    """
    return place(card.shown_by, base, language=language)


def place(shown_by: Cell | Source, base: str = "", *, language: str | None = None) -> tuple[str, str]:
    """The same for a cell or a source."""
    if isinstance(shown_by, Source):
        return shown_by.source, shown_by.url
    text = say("cell", language, notebook=shown_by.notebook, cell=shown_by.anchor)
    return text, cell_address(f"{shown_by.notebook}.ipynb", shown_by.anchor, base)


def cell_address(path: str, anchor: str, base: str = "") -> str:
    """`03_ddp.ipynb#cell-id=bytes`. path: of the notebook, from the folder of the chapters; anchor: an id or a tag."""
    name = cell_id(path, anchor)
    return f"{_way(path, base)}#cell-id={name}" if name else _way(path, base)


def file_address(path: str, base: str = "") -> str | None:
    """The address of a notebook of the course, such as `labs/03_ddp.ipynb`; None where there is no such file."""
    return _way(path, base) if find(path) else None


def _way(path: str, base: str) -> str:
    """From the chapter that runs; in the repository labs lie beside the folder of the chapters, not below it."""
    is_beside = not base and path.startswith("labs/") and not Path(path).exists() and Path("..", path).exists()
    return f"../{path}" if is_beside else f"{base}{path}"


def cell_id(path: str, anchor: str) -> str | None:
    """The id of the cell with this id, else of the first one with this tag; None where it cannot be found."""
    file = find(path)
    if file is None:
        return None
    try:
        ids = _ids(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a notebook that is damaged, or no notebook: its own test says so
    return ids.get(anchor)


@functools.lru_cache(maxsize=64)
def _ids(file: Path, changed: int) -> dict[str, str]:
    """Ids and tags of a notebook's cells to the id of the cell. changed: when the file was; read once for each."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    ids: dict[str, str] = {}
    for cell in cells:
        for tag in cell["metadata"].get("tags", []):
            ids.setdefault(tag, cell["id"])
    return ids | {cell["id"]: cell["id"] for cell in cells}
