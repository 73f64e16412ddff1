"""Finds which files were handed in and by whom, in the layouts of a plain folder, nbgrader, Moodle and Canvas.

The layouts, with the learner "ada" and the lab "03_ddp":

plain      ada.ipynb, or ada/anything.ipynb
nbgrader   submitted/ada/03_ddp/03_ddp.ipynb
Moodle     Ada Lovelace_123_assignsubmission_file_/03_ddp.ipynb, where 123 is the number of the participant
Canvas     lovelaceada_123_456_03_ddp.ipynb, where 123 is the id of the learner and 456 the id of the submission

A progress file may come with a notebook: checks write `~/.rank-by-rank/progress.jsonl`, and it says how often they were
tried. It may lie as `progress.jsonl` in the learner's folder, also below `.rank-by-rank`, or as `ada_progress.jsonl`
beside `ada.ipynb`. Nobody can verify what it says.

Names of files and what is in them come from strangers. The grader's own process reads only bytes (`read_bytes`).
`cells_of` and `attempts_in`, which parse them, run in a sandbox (reader.py).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.classroom.plain_text import one_line
from helpers.learner import progress

MAX_BYTES = 10_000_000  # bytes of a notebook; a lab with all its pictures has 1 MB
MAX_PROGRESS_BYTES = 5_000_000  # bytes of a progress file; a check adds 150 bytes
MAX_CELLS = 2_000
MAX_DEPTH = 20  # folders in each other in which notebooks are looked for
KINDS = ("code", "markdown", "raw")  # the kinds of cells
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
    """The file is no notebook that can be graded. The message is a sentence for the teacher.

    is_notebook: whether it is a notebook, but of no lab.
    """

    def __init__(self, message: str, is_notebook: bool = False):
        super().__init__(message)
        self.is_notebook = is_notebook


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
    for path in _paths_below(base) if root.is_dir() else []:
        if path.name.endswith(PROGRESS):
            parts = path.relative_to(base).parts
            learner = _of_file(path, parts[0], parts).learner
            # "ada" for ada_progress.jsonl; the folder of a learner has the learner's name already.
            found[re.sub(rf"[-_.]{re.escape(PROGRESS)}$", "", learner)] = path
    return found


def _paths_below(root: Path) -> list[Path]:
    """Everything below a folder that may be read, sorted. Links are not followed."""
    found, waiting = [], [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                found.append(folder / entry.name)
                if depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                    waiting.append((folder / entry.name, depth + 1))
    return sorted(found)


def _base(root: Path) -> Path:
    """The folder that holds a file or folder per learner."""
    return root / "submitted" if (root / "submitted").is_dir() else root


def _in_folder(root: Path, lab: str | None) -> Iterator[Submission]:
    """A submission for each file in the folder that may be one."""
    base = _base(root)
    paths = [path for path in _paths_below(root) if path.is_relative_to(base) and _is_candidate(path, root)]
    with_files = {folder for path in paths if not _is_folder(path) for folder in path.parents}
    for path in paths:
        parts = path.relative_to(base).parts
        # In nbgrader's layout, learner/lab/file, the folder names the lab. Other folders begin with no number.
        is_of_other_lab = lab and len(parts) == 3 and parts[1] != lab and parts[1][:2].isdigit()
        if not is_of_other_lab and path not in with_files:
            yield _of_file(path, parts[0], parts)


def _is_candidate(path: Path, root: Path) -> bool:
    """Whether a path below `root` may be a submission.

    A link, a pipe, or a folder that is named like a notebook may be one, so that it has a row with a reason in the
    report, but it is not read.
    """
    inner = path.relative_to(root).parts
    if path.name.endswith(PROGRESS) or any(part in IGNORED or part.startswith(".") for part in inner):
        return False
    if _is_folder(path):
        return path.suffix == ".ipynb"
    # A learner's folder may hold other files beside the notebook. A renamed notebook, "a.ipynb.txt", is none of them.
    return len(inner) == 1 or ".ipynb" in path.name


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _of_file(path: Path, first: str, parts: tuple[str, ...] | None) -> Submission:
    """The submission in this file. first: the file or folder that is named after the learner.

    parts: the path below the folder of the class; None for a file that was given by itself.
    """
    stem = one_line(first.removesuffix(".ipynb"))  # safe to print, because whoever handed in chose the name
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


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a stranger's file. Raises UnreadableNotebook for anything but a file of at most `max_bytes`."""
    try:
        _raise_unless_file(path.lstat().st_mode)
        # If it has become a link or a pipe meanwhile, this fails or does not wait, and the second look refuses it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            _raise_unless_file(os.fstat(descriptor).st_mode)
            size = os.fstat(descriptor).st_size
            body = file.read(max_bytes + 1) if size <= max_bytes else b""
    except OSError as error:
        raise UnreadableNotebook(f"The file cannot be read ({error.strerror}).") from None
    if max(size, len(body)) > max_bytes:
        limit = f"more than {max_bytes / 1e6:.0f} MB; it was not read. Outputs of cells can be cleared in JupyterLab."
        raise UnreadableNotebook(f"The file has {size / 1e6:,.0f} MB, {limit}")
    if not body.strip():
        raise UnreadableNotebook("The file is empty.")
    return body


def _raise_unless_file(mode: int) -> None:
    """Raise UnreadableNotebook unless the mode, from `os.stat`, is the mode of a file."""
    if stat.S_ISLNK(mode):
        raise UnreadableNotebook("The file is a link to another file, so it was not read.")
    if stat.S_ISDIR(mode):
        raise UnreadableNotebook("It is a folder with the name of a notebook, and there is no notebook in it.")
    if not stat.S_ISREG(mode):
        raise UnreadableNotebook("It is a pipe, a socket or a device and not a file, so it was not read.")


def cells_of(body: bytes) -> tuple[list[dict], list[str]]:
    """The cells in the bytes of a notebook file, and sentences about those that are none. Raises UnreadableNotebook.

    What is no cell becomes an empty one, so that every cell keeps its number.
    """
    notebook = _json_of(body)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UnreadableNotebook("It is not a notebook: it has no list of cells.")
    if len(cells) > MAX_CELLS:
        raise UnreadableNotebook(f"The notebook has {len(cells):,} cells, more than {MAX_CELLS:,}; it was not read.")
    if not cells:
        raise UnreadableNotebook("The notebook is empty: it has no cells.")
    found, problems = [], []
    for number, cell in enumerate(cells, 1):
        kind = cell.get("cell_type") if isinstance(cell, dict) else None
        if isinstance(kind, str) and kind in KINDS:
            found.append(cell)
            continue
        found.append({"cell_type": "raw", "metadata": {}, "source": ""})
        what = f"its type {str(kind)[:40]!r} is none of {', '.join(KINDS)}" if kind else "it has no type"
        problems.append(f"cell {number}: {what}, so it was left out.")
    return found, problems


def _json_of(body: bytes) -> object:
    """The JSON in the bytes of a notebook file. Raises UnreadableNotebook."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = "save it as UTF-8, as JupyterLab does"
        raise UnreadableNotebook(
            f"It is not a notebook: the file is no UTF-8 text, so it is no JSON (byte {error.start + 1:,}); {hint}."
        ) from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # A file that was cut off, or changed by hand, is a notebook up to this place.
        number = text.count('"cell_type"', 0, error.pos)
        place = f" in or after cell {number}" if number else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise UnreadableNotebook(
            f"It is not a notebook: the file is no JSON{place} ({error.msg}, {where}); it may have been cut off."
        ) from None
    except RecursionError:
        raise UnreadableNotebook("It is not a notebook: its lists are nested too deeply, so it is no JSON.") from None
    except ValueError:  # a number with more than 4,300 digits
        raise UnreadableNotebook("It is not a notebook: a number in the file is too long, so it is no JSON.") from None


def attempts_in(body: bytes, keys: Sequence[str]) -> dict[str, int]:
    """Key of a task to the number of attempts, from the bytes of a progress file. keys: of the tasks to count."""
    entries = (one for one in progress.entries_in(body.decode(errors="replace")).entries if one.kind == "check")
    of_key = Counter(entry.key for entry in entries)
    return {key: of_key[key] for key in keys}


def attempts_summary(attempts: Mapping[str, int] | None) -> str:
    """The number of all attempts of a learner; "–" if it is not known."""
    return "–" if attempts is None else str(sum(attempts.values()))
