"""Brings what saved notebooks show of other files up to date: sources, and the map of the course. --check only reports.

A cell that ends in `show(f)` saves the lines of f with their numbers. An edit above f in its file moves these numbers.
The map at the end of a chapter shows the minutes, tasks and guesses of all chapters. Nothing has to run again for
either. An output names what it shows, as in "[source] train · helpers/chapters/ddp.py".
"""

from __future__ import annotations

import importlib
import re
import sys
from functools import reduce
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from helpers.draw import show  # noqa: E402
from helpers.draw.picture import saved_bundle  # noqa: E402
from helpers.widgets.progress_view import CourseMap  # noqa: E402

NAMED = re.compile(r"^\[source\] (\S+) · (helpers/\S+)\.py$", re.MULTILINE)


def shown_object(name: str, path: str) -> object:
    """What stands under this name in the file, such as "Block.forward", or the file's module if that is its name."""
    module = path.replace("/", ".").removesuffix(".__init__")
    found = importlib.import_module(module)
    return found if name == module else reduce(getattr, name.split("."), found)


def refreshed(path: Path) -> nbformat.NotebookNode | None:
    """The notebook with today's sources and map, or None where nothing changes."""
    notebook, is_changed = nbformat.read(path, as_version=4), False
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = data.get("text/plain", "")
            named = NAMED.findall(text)
            if named and len(named) == len(text.splitlines()):
                is_folded = "<details>" in data["text/html"]
                html = show(*(shown_object(*one) for one in named), folded=is_folded)._repr_html_()
                is_changed |= html != data["text/html"]
                data["text/html"] = html
            elif text == CourseMap.TEXT:
                is_changed |= draw_map(output)
    return notebook if is_changed else None


def draw_map(output: nbformat.NotebookNode) -> bool:
    """Draws the map of the course into an output, unless the words that describe it are today's. Whether it did."""
    data, metadata = saved_bundle(CourseMap().saved, **CourseMap.PNG_OPTIONS)
    if output.metadata == metadata:
        return False
    output.data["image/png"] = data["image/png"]
    output.metadata = nbformat.from_dict(metadata)
    return True


def main() -> int:
    is_check, stale = "--check" in sys.argv[1:], 0
    for folder in ("notebooks", "solutions", "labs"):
        for path in sorted((ROOT / folder).glob("*.ipynb")):
            notebook = refreshed(path)
            if notebook is None:
                continue
            stale += 1
            print(f"{path.relative_to(ROOT)}: it shows sources or a map that have moved or changed")
            if not is_check:
                nbformat.write(notebook, path)
    if is_check and stale:
        print("Bring them up to date with: python tools/refresh_outputs.py")
    return int(is_check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
