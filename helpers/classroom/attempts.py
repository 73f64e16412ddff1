"""How often a learner tried the checks, where they handed in the progress file beside their notebook.

`~/.rank-by-rank/progress.jsonl` is what checks write. It comes as `progress.jsonl` in the learner's folder (also in
`.rank-by-rank`, as on a stick), or as `ada_progress.jsonl` beside `ada.ipynb`. A saved notebook does not tell: it keeps
what is passed and not how often. What a file says is the learner's own word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from helpers.classroom.results import Result
from helpers.classroom.submissions import Submission
from helpers.learner import progress

MOST_BYTES = 5_000_000  # a check notes 150 bytes


def attempts_of(submissions: Iterable[Submission], results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Learner to task to the number of attempts; a learner without a file is left out."""
    files = {one.learner: one.progress for one in submissions if one.progress}
    found = {}
    for result in results:
        counted = _counted(files[result.learner]) if result.learner in files else None
        if counted is not None:
            found[result.learner] = {task.key: counted.get(task.key, 0) for task in result.tasks}
    return found


def _counted(path: Path) -> dict[str, int] | None:
    """None for a file that is no progress file of somebody's own."""
    try:
        if path.is_symlink() or path.stat().st_size > MOST_BYTES:
            return None
        labs = progress.done(path)
    except (OSError, ValueError, OverflowError):
        return None
    return {key: standing.attempts for tasks in labs.values() for key, standing in tasks.items()}


def in_short(attempts: Mapping[str, int] | None) -> str:
    """All attempts of a learner; "–" where it is not known."""
    return "–" if attempts is None else str(sum(attempts.values()))
