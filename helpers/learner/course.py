"""Finds the chapters of the course, reads the stations in their notebooks, and orders chapters by their needs.

chapters    every chapter, with stations, minutes, guesses and exercises, read from the notebooks
read_cells  the stations among the cells of one notebook
week        the chapters to take before an interview, in an order in which none comes before what it needs

A station is a section of a chapter's notebook. A heading `## ▶ A · Who holds what? (6 min)` begins a station, and the
next heading of that size ends it. ▶ marks the stations of the short path through a chapter: `on_path` says whether a
station is on the short path, and `path_minutes` adds up the minutes of these stations. The cells before the first
heading belong to the short path as well; the cells after the last station, under headings without a letter, belong to
no station. Chinese copies write the minutes as （6 分钟）. A guess is a question that a chapter asks before it shows a
result. An exercise is a task that is also in the chapter's lab, a notebook of its own.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.learner.yaml_file import read_texts

ROOT = Path(__file__).resolve().parents[2]  # the course's folder
NEEDS_FILE = Path(__file__).with_name("needs.yaml")  # what each chapter needs, and the week before an interview
STATION = re.compile(r"(?P<short>▶ )?(?P<letter>[A-Z]) · (?P<title>\S.*?)(?: \(|（)(?P<minutes>\d+) (?:min\)|分钟）)")
# The parts of a markdown cell, and of a notebook's name.
_FENCED_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)
_TITLE = re.compile(r"# (?:(\d\d) · )?(\S.*)")
_CHAPTER_NAME = re.compile(r"\d\d_\w+|interview")  # the name of a notebook
_TASK = re.compile(r'^check\("(\d\d\.\w+)"', re.MULTILINE)  # the line of a lab that checks a task

CellData = Mapping[str, Any]  # a cell as a notebook file has it


# -- stations --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Station:
    """One station of a chapter."""

    letter: str
    title: str
    minutes: int  # as its heading says
    on_path: bool  # whether it is on the short path, that is, marked ▶
    guesses: tuple[str, ...]  # the keys of its guesses
    exercises: tuple[str, ...]  # the keys of its exercises
    first: int  # index of its first cell in the notebook
    last: int  # index of its last cell


def source(cell: CellData) -> str:
    """The text of a cell, which a file may store as a list of lines."""
    return "".join(cell["source"])


def headings(cells: Sequence[CellData]) -> list[tuple[int, str]]:
    """Each heading `##` outside blocks of code: the index of its cell, and its text."""
    return [
        (index, text)
        for index, cell in enumerate(cells)
        if cell["cell_type"] == "markdown"
        for text in _HEADING.findall(_FENCED_CODE.sub("", source(cell)))
    ]


def chapter_title(cells: Sequence[CellData]) -> str:
    """The title in the first line of the notebook: ZeRO for `# 08 · ZeRO`; empty if there is no such line."""
    lines = source(cells[0]).splitlines() if cells else []
    match = _TITLE.fullmatch(lines[0].strip()) if lines else None
    return match[2] if match else ""


def read_cells(cells: Sequence[CellData]) -> tuple[Station, ...]:
    """The stations, in order; none for a notebook that has no headings with a letter."""
    bounds = [*headings(cells), (len(cells), "")]
    # `pairwise` gives each heading with the index of the cell at which the next one begins.
    return tuple(
        _station(match, cells, first, end - 1)
        for (first, text), (end, _) in pairwise(bounds)
        if (match := STATION.fullmatch(text))
    )


def _station(match: re.Match, cells: Sequence[CellData], first: int, last: int) -> Station:
    """The station whose heading matched STATION."""
    code = [source(cell) for cell in cells[first : last + 1] if cell["cell_type"] == "code"]
    # The keys of all calls of a function, each once, in their order.
    guesses, exercises = (
        tuple(dict.fromkeys(key for text in code for key in keys(text, function))) for function in ("guess", "exercise")
    )
    return Station(
        letter=match["letter"], title=match["title"], minutes=int(match["minutes"]), on_path=bool(match["short"]),
        guesses=guesses, exercises=exercises, first=first, last=last,
    )  # fmt: skip


def calls(text: str, function: str) -> Iterator[ast.Call]:
    """The calls of a function by its bare name in the code of a cell; none where the code is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield node


def keys(text: str, function: str) -> list[str]:
    """The keys of `guess(…, key="08.stage2")` or `exercise("08.shard", …)` in the code of a cell."""
    arguments = []
    for call in calls(text, function):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "key"]
        arguments += named if function == "guess" else call.args[:1]
    return [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]


# -- chapters --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One chapter.

    name: the name of its notebook, such as "08_zero". title: such as "ZeRO". tasks: the keys of the tasks in its lab,
    from easy to hard.
    """

    name: str
    title: str
    stations: tuple[Station, ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Its two digits, such as 08; empty for `interview`."""
        return self.name[:2] if self.name[:2].isdigit() else ""

    @property
    def minutes(self) -> int:
        """The minutes of all its stations together."""
        return sum(one.minutes for one in self.stations)

    @property
    def path_minutes(self) -> int:
        """The minutes of its stations on the short path together."""
        return sum(one.minutes for one in self.stations if one.on_path)

    @property
    def guesses(self) -> tuple[str, ...]:
        """The keys of all its guesses."""
        return tuple(key for one in self.stations for key in one.guesses)


def notebook_folders() -> list[Path]:
    """Where chapters may be: in the course's folders, or in the folder of the running notebook, or in its parent."""
    here = Path.cwd()
    return [ROOT / "notebooks", ROOT, here, here.parent]


def find_notebook(file_name: str) -> Path | None:
    """A notebook of the course by its path from the folder of the chapters: "03_ddp.ipynb", "labs/03_ddp.ipynb"."""
    return next((folder / file_name for folder in notebook_folders() if (folder / file_name).is_file()), None)


def chapters() -> tuple[Chapter, ...]:
    """Every chapter of the first folder that has any, by number, with `interview` last."""
    for folder in notebook_folders():
        if folder.name in ("labs", "solutions"):
            continue  # a lab's notebook has the name of its chapter
        if names := sorted(path.stem for path in folder.glob("*.ipynb") if _CHAPTER_NAME.fullmatch(path.stem)):
            return tuple(_chapter(folder, name) for name in names)
    return ()


def _chapter(folder: Path, name: str) -> Chapter:
    """The chapter whose notebook is `name`.ipynb in this folder, with the tasks of the lab of the same name."""
    lab, cells = find_notebook(f"labs/{name}.ipynb"), _cells(folder / f"{name}.ipynb")
    texts = [source(cell) for cell in _cells(lab)] if lab else []
    tasks = tuple(dict.fromkeys(key for text in texts for key in _TASK.findall(text)))
    return Chapter(name=name, title=chapter_title(cells) or name, stations=read_cells(cells), tasks=tasks)


def _cells(path: Path) -> list[dict]:
    """The cells of a notebook, which is read again only if the file has changed."""
    return _cells_of(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _cells_of(path: Path, modified: int) -> list[dict]:
    """The cells of a notebook without outputs; no cells if it is damaged. With a new `modified` it is read again."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [{"cell_type": cell["cell_type"], "source": cell["source"]} for cell in cells]
    except (OSError, ValueError, KeyError, TypeError):
        return []


# -- which chapters a chapter needs ----------------------------------------------------------------------------------
@functools.cache
def _needs_file() -> dict:
    return read_texts(NEEDS_FILE)


def needs() -> dict[str, tuple[str, ...]]:
    """Maps each chapter to the chapters that it needs: {"03": ("01",), …}."""
    return {chapter: tuple(before) for chapter, before in _needs_file()["needs"].items()}


def week() -> tuple[str, ...]:
    """The chapters to take in a week before an interview, in an order in which none comes before what it needs."""
    return order_by_needs(_needs_file()["week"], needs())


def order_by_needs(wanted: Sequence[str], needs_of: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The wanted chapters, each after all chapters that it needs; those are added where they are not wanted.

    Otherwise the order of `wanted` is kept. Raises ValueError for a circle and for a chapter without an entry.
    """
    order: list[str] = []

    def add(chapter: str, needed_by: tuple[str, ...]) -> None:
        # Add a chapter, and before it what it needs. needed_by: the chapters that need this one, to find a circle.
        if chapter in needed_by:
            circle = " needs ".join((*needed_by, chapter))
            raise ValueError(f"{circle}: a circle; take one of these out of {NEEDS_FILE.name}")
        if chapter not in needs_of:
            raise ValueError(f"chapter {chapter} has no entry in {NEEDS_FILE.name}; write what it needs, or []")
        for before in needs_of[chapter]:
            add(before, (*needed_by, chapter))
        if chapter not in order:
            order.append(chapter)

    for chapter in wanted:
        add(chapter, ())
    return tuple(order)
