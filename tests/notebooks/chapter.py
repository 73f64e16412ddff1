"""A notebook as the tests of its shape read it: its cells, which of them are on the path, and what counts as a word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from helpers.learner.course import calls, read_cells

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ("sources", "strategies", "take_it_to_work")  # pages to look things up in, which are no chapters
PAGES = sorted((ROOT / "notebooks").glob("*.ipynb"))
CHAPTERS = [path for path in PAGES if path.stem not in REFERENCE]

FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
CHINESE = re.compile(r"[\u4e00-\u9fff]")
_GLOSS = re.compile(r"[（(][^()（）]*[\u4e00-\u9fff][^()（）]*[)）]")  # the Chinese term behind an English one
_TAG = re.compile(r"<[^>]*>")
_TARGET = re.compile(r"\]\([^)\s]*\)")
_WORD = re.compile(r"[A-Za-z0-9][\w.,'’×%/+-]*")


def load(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def tags(cell: dict) -> set[str]:
    return set(cell["metadata"].get("tags", []))


def is_code(cell: dict) -> bool:
    return cell["cell_type"] == "code" and bool(source(cell).strip())


def is_folded(cell: dict) -> bool:
    return bool(cell["metadata"].get("jupyter", {}).get("source_hidden"))


def asks(cell: dict, *functions: str) -> bool:
    """Does this cell call one of these functions by its bare name?"""
    return is_code(cell) and any(any(calls(source(cell), name)) for name in functions)


def on_path(cells: list[dict]) -> set[int]:
    """Places of the cells that the headings put on the path: before the first heading, and in stations with ▶."""
    stations = read_cells(cells)
    first = stations[0].first if stations else 0
    return set(range(first)).union(*(range(one.first, one.last + 1) for one in stations if one.on_path))


def words(cells: Iterable[dict]) -> int:
    """English words of Markdown: no code, no addresses, no Chinese terms in brackets, no cells and lines in Chinese."""
    return sum(len(_WORD.findall(_english(source(cell)))) for cell in cells if cell["cell_type"] == "markdown")


def _english(text: str) -> str:
    text = _GLOSS.sub(" ", _TARGET.sub("]", _TAG.sub(" ", FENCE.sub("", text))))
    return " ".join(part for part in re.split(r"[|\n]", text) if not CHINESE.search(part))


def lines(cells: Iterable[dict]) -> int:
    """Lines of code that are read: cells that are not folded, without blank lines."""
    return sum(lines_of(cell) for cell in cells if is_code(cell) and not is_folded(cell))


def lines_of(cell: dict) -> int:
    return sum(bool(line.strip()) for line in source(cell).splitlines())
