"""Whether the cell that something of the interview points at exists, told with file and line."""

import functools
import json
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def missing(where: str, cell) -> str:
    """A sentence when the notebook or the cell is not there, "" when it is. `cell` is a NotebookCell."""
    path = NOTEBOOKS / f"{cell.notebook}.ipynb"
    if not path.exists():
        return f"{where}: `shown_by` names the notebook {path.name}, which is not there"
    if cell.anchor not in _anchors(path):
        return f"{where}: `shown_by` names the cell {cell.anchor!r}, but {path.name} has no cell or tag of that name"
    return ""


@functools.cache
def _anchors(path: Path) -> set[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {name for cell in cells for name in (cell["id"], *cell["metadata"].get("tags", []))}
