"""Where a learner's copies and progress lie: `work/` and the home, or the folder that WORK= names.

One read-only install serves a room that way. Copies go to WORK; progress stays in the home where WORK is in it, and
goes to WORK itself where it is elsewhere, on a stick say, so that it travels along, or where the home cannot be
written. Standard library only.

    python tools/own_folder.py WORK COMMAND …     runs a command with the progress of that folder
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "RANKS_HOME"  # helpers.learner.progress reads it: in whose .rank-by-rank/ the progress lies
EXAMPLE = "for example make course WORK=~/rank-by-rank"


def own_folder(given: str, root: Path = ROOT) -> Path:
    """The folder for the copies. given: what stands behind WORK=, "" for `work/`.

    Raises ValueError, with what to give instead, for a file or for a folder of the course itself.
    """
    work = Path(os.path.abspath(Path(given).expanduser() if given else root / "work"))
    if work.exists() and not work.is_dir():
        raise ValueError(f"WORK={given} is a file: give a folder, {EXAMPLE}")
    root = root.resolve()
    if work.resolve().is_relative_to(root) and not work.resolve().is_relative_to(root / "work"):
        raise ValueError(f"WORK={given} lies inside the course: give a folder of your own, {EXAMPLE}")
    return work


def keep_progress(work: Path, given: str) -> None:
    """Let this process, and those that it starts, keep progress in a WORK outside the home, or for want of a home."""
    if (given and not _is_in_home(work)) or not can_write_home():
        os.environ[VARIABLE] = str(work)


def can_write_home() -> bool:
    """Whether programs may keep something in the home; in some containers and exam rooms they may not."""
    try:
        home = Path.home()
    except RuntimeError:  # there is no home
        return False
    return os.access(next(folder for folder in (home, *home.parents) if folder.exists()), os.W_OK)


def _is_in_home(work: Path) -> bool:
    try:
        return work.resolve().is_relative_to(Path.home().resolve())
    except RuntimeError:  # there is no home
        return False


def cannot_write(work: Path, error: OSError) -> str:
    """The sentence for a folder in which nothing can be written."""
    reason = error.strerror or error
    return f"{work} cannot be written ({reason}): give a folder of your own, {EXAMPLE}"


def main(arguments: list[str]) -> int:
    given, *command = arguments
    try:
        keep_progress(own_folder(given), given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
