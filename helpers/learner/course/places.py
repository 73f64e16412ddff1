"""Which chapters there are, and where: in the repository, or beside the notebook that runs."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from helpers.learner.course.stations import Station, chapter_title, read_cells

ROOT = Path(__file__).resolve().parents[3]
_NAME = re.compile(r"\d\d_\w+|interview")
_TASK = re.compile(r'^check\("(\d\d\.\w+)"', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One chapter. name: of its notebook, "08_zero". title: "ZeRO". tasks: the keys of its lab, easy to hard."""

    name: str
    title: str
    stations: tuple[Station, ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """ "08"; "" for the chapter `interview`."""
        return self.name[:2] if self.name[:2].isdigit() else ""

    @property
    def minutes(self) -> int:
        return sum(one.minutes for one in self.stations)

    @property
    def path_minutes(self) -> int:
        return sum(one.minutes for one in self.stations if one.on_path)

    @property
    def guesses(self) -> tuple[str, ...]:
        return tuple(key for one in self.stations for key in one.guesses)


def folders() -> list[Path]:
    """Where chapters lie: in the course, or beside the notebook that runs (in `work/`, or a lab's folder below it)."""
    here = Path.cwd()
    return [ROOT / "notebooks", ROOT, here, here.parent]


def find(path: str) -> Path | None:
    """A notebook of the course by its path from the folder of the chapters: "03_ddp.ipynb", "labs/03_ddp.ipynb"."""
    return next((folder / path for folder in folders() if (folder / path).is_file()), None)


def chapters() -> tuple[Chapter, ...]:
    """Every chapter, by number, `interview` last; of the first folder that has any."""
    for folder in folders():
        if folder.name in ("labs", "solutions"):
            continue  # a lab has the name of its chapter
        if names := sorted(path.stem for path in folder.glob("*.ipynb") if _NAME.fullmatch(path.stem)):
            return tuple(_chapter(folder, name) for name in names)
    return ()


def _chapter(folder: Path, name: str) -> Chapter:
    lab = find(f"labs/{name}.ipynb")
    title, stations = _read(folder / f"{name}.ipynb")
    return Chapter(name=name, title=title or name, stations=stations, tasks=_tasks(lab) if lab else ())


def _read(path: Path) -> tuple[str, tuple[Station, ...]]:
    cells = _cells(path, path.stat().st_mtime_ns)
    return chapter_title(cells), read_cells(cells)


def _tasks(lab: Path) -> tuple[str, ...]:
    texts = ["".join(cell["source"]) for cell in _cells(lab, lab.stat().st_mtime_ns)]
    return tuple(dict.fromkeys(key for text in texts for key in _TASK.findall(text)))


@functools.lru_cache(maxsize=64)
def _cells(path: Path, changed: int) -> list[dict]:
    """The cells of a notebook, without outputs; none of a damaged one. changed: when; read once for each."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [{"cell_type": cell["cell_type"], "source": cell["source"]} for cell in cells]
    except (OSError, ValueError, KeyError, TypeError):
        return []
