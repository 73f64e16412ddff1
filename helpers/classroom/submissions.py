"""Which files were handed in, and by whom: the layouts of a plain folder, nbgrader, Moodle and Canvas."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.classroom.labs import source_of

MOST_BYTES = 20_000_000  # of a notebook; one of a lab with all its pictures has 1
MOST_CELL_CHARACTERS = 200_000
MOST_CELLS = 2_000
MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_file_?(?P<rest>.*)")
CANVAS = re.compile(r"(?P<name>[^_\d]+)_(?:LATE_)?(?P<id>\d+)_(?P<submission>\d+)_(?P<rest>.+)")
PROGRESS = "progress.jsonl"  # what checks write in the learner's home; handed in beside the notebook, it is read
IGNORED = {".ipynb_checkpoints", "__MACOSX", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One learner's file. name: as a gradebook has it, where the file tells. notes: what a teacher should know.

    progress: the progress file that came with it, if one did.
    """

    learner: str
    path: Path
    name: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    progress: Path | None = None


class Unreadable(Exception):
    """The file is no notebook that can be graded; the message is a sentence."""


def find(paths: Iterable[Path], lab: str | None = None) -> list[Submission]:
    """One submission a learner, ordered by learner. Raises ValueError for a path that is not there."""
    by_learner: dict[str, list[Submission]] = defaultdict(list)
    progress: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}: give a notebook, or a folder of them.")
        for submission in _in_folder(path, lab) if path.is_dir() else [_of_file(path, path.name, None)]:
            by_learner[submission.learner].append(submission)
        progress |= _progress_files(path)
    chosen = [_one_of(several) for _, several in sorted(by_learner.items())]
    return [replace(one, progress=progress.get(one.learner)) for one in chosen]


def _progress_files(root: Path) -> dict[str, Path]:
    """Learner to their progress file: any of a learner's folder, or ada_progress.jsonl beside ada.ipynb."""
    base, found = _base(root), {}
    for path in sorted(base.rglob(f"*{PROGRESS}")) if root.is_dir() else []:
        parts = path.relative_to(base).parts
        learner = _of_file(path, parts[0], parts).learner
        found[re.sub(rf"[-_.]{re.escape(PROGRESS)}$", "", learner)] = path
    return found


def _base(root: Path) -> Path:
    return root / "submitted" if (root / "submitted").is_dir() else root


def _in_folder(root: Path, lab: str | None) -> Iterator[Submission]:
    files = [path for path in sorted(root.rglob("*")) if _is_candidate(path, root)]
    base = _base(root)
    for path in files:
        if path.is_relative_to(base):
            parts = path.relative_to(base).parts
            if not (lab and len(parts) == 3 and parts[1] != lab and parts[1][:2].isdigit()):
                yield _of_file(path, parts[0], parts)


def _is_candidate(path: Path, root: Path) -> bool:
    inner = path.relative_to(root).parts
    if any(part in IGNORED or part.startswith(".") for part in inner):
        return False
    if path.name.endswith(PROGRESS):
        return False
    is_extra = len(inner) > 1 and path.suffix != ".ipynb"  # a learner's folder may hold other files beside the notebook
    return path.is_symlink() or (path.is_file() and not is_extra)


def _of_file(path: Path, first: str, parts: tuple[str, ...] | None) -> Submission:
    stem = first.removesuffix(".ipynb")
    if moodle := MOODLE.fullmatch(stem):
        return Submission(learner=moodle["id"], path=path, name=moodle["name"], source="moodle")
    if (canvas := CANVAS.fullmatch(stem)) and parts is not None and len(parts) == 1:
        return Submission(learner=canvas["id"], path=path, name=canvas["name"], source="canvas")
    return Submission(learner=stem, path=path)


def _one_of(several: list[Submission]) -> Submission:
    """The one handed in last, with a note about the others."""
    if len(several) == 1:
        return several[0]
    notebooks = [one for one in several if one.path.suffix == ".ipynb"] or several
    latest = max(notebooks, key=lambda one: (one.path.lstat().st_mtime_ns, str(one.path)))
    others = ", ".join(
        one.path.name if one.path.name != latest.path.name else str(one.path) for one in several if one is not latest
    )
    note = f"{len(several)} files of this learner: {latest.path.name}, changed last, was graded, not {others}."
    return replace(latest, notes=(note,))


def read(path: Path) -> tuple[list[dict], str]:
    """(the cells of a notebook, the hash of the file). Raises Unreadable with a sentence."""
    if path.is_symlink():
        raise Unreadable("The file is a link to another file, so it was not read.")
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise Unreadable(
                f"The file has {size / 1e6:,.0f} MB, more than {MOST_BYTES / 1e6:.0f} MB; it was not read."
            )
        body = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"The file cannot be read ({error.strerror}).") from None
    if not body.strip():
        raise Unreadable("The file is empty.")
    return _cells(body), hashlib.sha256(body).hexdigest()


def _cells(body: bytes) -> list[dict]:
    try:
        notebook = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"It is not a notebook: the file is no JSON ({str(error)[:80]}).") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("It is not a notebook: it has no list of cells.")
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"The notebook has {len(cells):,} cells, more than {MOST_CELLS:,}; it was not read.")
    cells = [cell for cell in cells if isinstance(cell, dict) and cell.get("cell_type") in ("code", "markdown", "raw")]
    if not cells:
        raise Unreadable("The notebook is empty: it has no cells.")
    if any(len(source_of(cell)) > MOST_CELL_CHARACTERS for cell in cells):
        raise Unreadable(f"A cell has more than {MOST_CELL_CHARACTERS:,} characters; the notebook was not read.")
    return cells
