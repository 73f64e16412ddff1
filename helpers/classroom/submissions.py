"""Finds which files were handed in and by whom, in the layouts of a plain folder, nbgrader, Moodle and Canvas.

The layouts, with the learner "ada" and the lab "03_ddp":

plain      ada.ipynb, or ada/anything.ipynb
nbgrader   submitted/ada/03_ddp/03_ddp.ipynb
Moodle     Ada Lovelace_123_assignsubmission_file_/03_ddp.ipynb, where 123 is the number of the participant
Canvas     lovelaceada_123_456_03_ddp.ipynb, where 123 is the id of the learner and 456 that of the submission

It also counts how often learners tried the checks, if they handed in their progress file. Checks write that file to
`~/.rank-by-rank/progress.jsonl`. It may lie as `progress.jsonl` in the learner's folder, also below `.rank-by-rank`, or
as `ada_progress.jsonl` beside `ada.ipynb`. Nobody can verify what it says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.classroom.results import GradedSubmission
from helpers.grading.lab_notebooks import source_of
from helpers.learner import progress

MAX_BYTES = 20_000_000  # of a notebook; a lab with all its pictures has 1 MB
MAX_CELL_CHARACTERS = 200_000
MAX_CELLS = 2_000
MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_file_?(?P<rest>.*)")
CANVAS = re.compile(r"(?P<name>[^_\d]+)_(?:LATE_)?(?P<id>\d+)_(?P<submission>\d+)_(?P<rest>.+)")
PROGRESS = "progress.jsonl"  # the file that checks write in the learner's home folder
IGNORED = {".ipynb_checkpoints", "__MACOSX", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One learner's notebook file.

    learner: the id of the learner, from the name of the file or folder. path: of the notebook.
    name, source: the learner's name and "moodle" or "canvas", if the file name tells them. notes: sentences for the
    teacher. progress: the progress file that came with the notebook, if one did.
    """

    learner: str
    path: Path
    name: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    progress: Path | None = None


class UnreadableNotebook(Exception):
    """The file is no notebook that can be graded. The message is a sentence for the teacher."""


def find_submissions(paths: Iterable[Path], lab: str | None = None) -> list[Submission]:
    """One submission per learner, ordered by learner. Raises ValueError for a path that does not exist.

    lab: in nbgrader's layout, only submissions to this lab, such as "03_ddp"; None for those to any lab.
    """
    by_learner: dict[str, list[Submission]] = defaultdict(list)
    progress_of: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no file or folder {path}: give a notebook, or a folder of them.")
        for submission in _in_folder(path, lab) if path.is_dir() else [_of_file(path, path.name, None)]:
            by_learner[submission.learner].append(submission)
        progress_of |= _progress_files(path)
    chosen = [_latest_of(several) for _, several in sorted(by_learner.items())]
    return [replace(one, progress=progress_of.get(one.learner)) for one in chosen]


def _progress_files(root: Path) -> dict[str, Path]:
    """Learner to progress file: one in the learner's folder, or ada_progress.jsonl beside ada.ipynb."""
    base, found = _base(root), {}
    for path in sorted(base.rglob(f"*{PROGRESS}")) if root.is_dir() else []:
        parts = path.relative_to(base).parts
        learner = _of_file(path, parts[0], parts).learner
        # "ada" for ada_progress.jsonl; the folder of a learner has the learner's name already.
        found[re.sub(rf"[-_.]{re.escape(PROGRESS)}$", "", learner)] = path
    return found


def _base(root: Path) -> Path:
    """The folder that holds a file or folder per learner."""
    return root / "submitted" if (root / "submitted").is_dir() else root


def _in_folder(root: Path, lab: str | None) -> Iterator[Submission]:
    """A submission for each file in the folder that may be one."""
    base = _base(root)
    for path in sorted(root.rglob("*")):
        if not path.is_relative_to(base) or not _is_candidate(path, root):
            continue
        parts = path.relative_to(base).parts
        # In nbgrader's layout, learner/lab/file, the folder names the lab. Other folders begin with no number.
        is_of_other_lab = lab and len(parts) == 3 and parts[1] != lab and parts[1][:2].isdigit()
        if not is_of_other_lab:
            yield _of_file(path, parts[0], parts)


def _is_candidate(path: Path, root: Path) -> bool:
    """Whether a path below `root` may be a submission. A link may be one, so that it is reported, but is not read."""
    inner = path.relative_to(root).parts
    if path.name.endswith(PROGRESS) or any(part in IGNORED or part.startswith(".") for part in inner):
        return False
    is_extra = len(inner) > 1 and path.suffix != ".ipynb"  # a learner's folder may hold other files beside the notebook
    return path.is_symlink() or (path.is_file() and not is_extra)


def _of_file(path: Path, first: str, parts: tuple[str, ...] | None) -> Submission:
    """The submission in this file. first: the file or folder that is named after the learner.

    parts: the path below the folder of the class; None for a file that was given by itself.
    """
    stem = first.removesuffix(".ipynb")
    if moodle := MOODLE.fullmatch(stem):
        return Submission(learner=moodle["id"], path=path, name=moodle["name"], source="moodle")
    # Canvas puts all files into one folder, so a file in a folder of its own is not from Canvas.
    if (canvas := CANVAS.fullmatch(stem)) and parts is not None and len(parts) == 1:
        return Submission(learner=canvas["id"], path=path, name=canvas["name"], source="canvas")
    return Submission(learner=stem, path=path)


def _latest_of(several: list[Submission]) -> Submission:
    """The submission that was handed in last, with a note about the others."""
    if len(several) == 1:
        return several[0]
    notebooks = [one for one in several if one.path.suffix == ".ipynb"] or several
    latest = max(notebooks, key=lambda one: (one.path.lstat().st_mtime_ns, str(one.path)))
    paths = [one.path for one in several if one is not latest]
    others = ", ".join(path.name if path.name != latest.path.name else str(path) for path in paths)
    note = f"{len(several)} files of this learner: {latest.path.name}, changed last, was graded, not {others}."
    return replace(latest, notes=(note,))


def read_notebook(path: Path) -> tuple[list[dict], str]:
    """The cells of a notebook, and the hash of its file. Raises UnreadableNotebook."""
    if path.is_symlink():
        raise UnreadableNotebook("The file is a link to another file, so it was not read.")
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UnreadableNotebook(
                f"The file has {size / 1e6:,.0f} MB, more than {MAX_BYTES / 1e6:.0f} MB; it was not read."
            )
        body = path.read_bytes()
    except OSError as error:
        raise UnreadableNotebook(f"The file cannot be read ({error.strerror}).") from None
    if not body.strip():
        raise UnreadableNotebook("The file is empty.")
    return _cells(body), hashlib.sha256(body).hexdigest()


def _cells(body: bytes) -> list[dict]:
    """The cells in the bytes of a notebook file. Raises UnreadableNotebook."""
    try:
        notebook = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UnreadableNotebook(f"It is not a notebook: the file is no JSON ({str(error)[:80]}).") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UnreadableNotebook("It is not a notebook: it has no list of cells.")
    if len(cells) > MAX_CELLS:
        raise UnreadableNotebook(f"The notebook has {len(cells):,} cells, more than {MAX_CELLS:,}; it was not read.")
    cells = [cell for cell in cells if isinstance(cell, dict) and cell.get("cell_type") in ("code", "markdown", "raw")]
    if not cells:
        raise UnreadableNotebook("The notebook is empty: it has no cells.")
    if any(len(source_of(cell)) > MAX_CELL_CHARACTERS for cell in cells):
        raise UnreadableNotebook(f"A cell has more than {MAX_CELL_CHARACTERS:,} characters; the notebook was not read.")
    return cells


MAX_PROGRESS_BYTES = 5_000_000  # a check adds 150 bytes


def attempts_by_learner(
    submissions: Iterable[Submission], results: Iterable[GradedSubmission]
) -> dict[str, dict[str, int]]:
    """Learner -> key of a task -> number of attempts, for the learners who handed in a progress file."""
    files = {one.learner: one.progress for one in submissions if one.progress}
    found = {}
    for result in results:
        attempts = _attempts_in(files[result.learner]) if result.learner in files else None
        if attempts is not None:
            found[result.learner] = {task.key: attempts.get(task.key, 0) for task in result.tasks}
    return found


def _attempts_in(path: Path) -> dict[str, int] | None:
    """Key of a task to the number of attempts; None for a link, a huge file or one that is no progress file."""
    try:
        if path.is_symlink() or path.stat().st_size > MAX_PROGRESS_BYTES:
            return None
        labs = progress.read_standings(path)
    except (OSError, ValueError, OverflowError):
        return None
    return {key: standing.attempts for tasks in labs.values() for key, standing in tasks.items()}


def attempts_summary(attempts: Mapping[str, int] | None) -> str:
    """The number of all attempts of a learner; "–" if it is not known."""
    return "–" if attempts is None else str(sum(attempts.values()))
