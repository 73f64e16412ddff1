"""What a learner who works alone is offered: the lab's own answer after three attempts, the rubric of a question.

Both stand in solutions/NN_topic.ipynb. Where a teacher has taken it away, nothing is offered.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from helpers.classroom import labs
from helpers.grading.registry import lab_of, task_of
from helpers.grading.verdict import NEVER_RAN, Verdict, words
from helpers.interview.drills import drills
from helpers.learner import progress
from helpers.learner.words import book

TELLS = book("offers")
ATTEMPTS_BEFORE_OFFER = 3
SOLUTION_MARKS = re.compile(r"(?m)^ *(<!-- )?### (BEGIN|END) SOLUTION( -->)?\n?")
UNTOUCHED = "YOUR ANSWER HERE"


class MarkdownText(str):
    """A text that a notebook shows as Markdown, and a terminal as it is."""

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)


def solution_of(number: str) -> Path:
    """Where the answers of lab "03" are, if they are."""
    return labs.ROOT / "solutions" / f"{lab_of(number).name}.ipynb"


# -- the lab's own answer --------------------------------------------------------------------------------------------
def solution_offer(verdict: Verdict, progress_file: str | os.PathLike | None = None) -> str:
    """A line for the end of a failed check, "" before the third attempt and where there is no answer to offer."""
    path = solution_of(verdict.key.partition(".")[0])
    never_ran = verdict.shown is None or getattr(verdict.shown.failure, "kind", "") in NEVER_RAN
    if (
        never_ran
        or not path.exists()
        or len(failed := failed_attempts(verdict.key, progress_file)) < ATTEMPTS_BEFORE_OFFER
    ):
        return ""
    also = words("also", verdict.lang) if any(one.more.get("place") == progress.CHAPTER for one in failed) else ""
    code = f'from helpers.grading import solution; solution("{verdict.key}")'
    return words("offer", verdict.lang, failed=len(failed), also=also, file=f"solutions/{path.name}", code=code)


def failed_attempts(key: str, progress_file: str | os.PathLike | None = None) -> list[progress.Entry]:
    """How a task was tried in vain, in its lab or its chapter, as the progress file knows."""
    try:
        entries = progress.read(progress_file).entries
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return []
    return [entry for entry in entries if entry.kind == "check" and entry.key == key and not entry.passed]


def solution(key: str) -> MarkdownText:
    """The lab's own answer to the task "03.average", or the drill's. Raises ValueError for a task that is not there."""
    task = task_of(key)
    if drilled := next((one.answer for one in drills() if one.key == key), ""):
        return MarkdownText(f"```python\n{drilled.strip()}\n```")
    path = solution_of(key.partition(".")[0])
    for _, marks, cell in labs.marked(path) if path.exists() else []:
        source = labs.source_of(cell)
        if marks.get("solution") and re.search(rf"^(def|class) +{task.name}\b", source, re.MULTILINE):
            return MarkdownText(f"```python\n{SOLUTION_MARKS.sub('', source).strip()}\n```")
    return MarkdownText(TELLS("no_solution", None, file=f"solutions/{path.name}"))


# -- answers in words ------------------------------------------------------------------------------------------------
def rubric(number: str, notebook: str | os.PathLike | None = None) -> MarkdownText:
    """What a good answer to the question of lab "03" says and what earns points, once the learner has written one.

    notebook: where it is written, as saved, if not in the one that calls. Raises ValueError for no lab.
    """
    name, path = lab_of(number).name, solution_of(number)
    if not path.exists():
        return MarkdownText(TELLS("no_rubric"))
    questions = {cell_id: SOLUTION_MARKS.sub("", text).strip() for cell_id, text in written_answers(path)}
    mine = Path(notebook) if notebook else calling_notebook(name)
    if not mine.exists():
        return MarkdownText(TELLS("no_notebook", None, call=f'rubric("{number}", "{name}.ipynb")'))
    answers = dict(written_answers(mine))
    if any(answers.get(one, UNTOUCHED).strip() in ("", UNTOUCHED) for one in questions):
        return MarkdownText(TELLS("not_written"))
    return MarkdownText("\n\n".join(questions.values()))


def calling_notebook(name: str) -> Path:
    """The notebook that a kernel runs: JupyterLab tells its path, else it has its own name and stands here."""
    told = Path(os.environ.get("JPY_SESSION_NAME", ""))
    return told if told.suffix == ".ipynb" and told.exists() else Path(f"{name}.ipynb")


def written_answers(path: Path) -> Iterator[tuple[str, str]]:
    """(grade_id, text) of each answer in words in a notebook; of a file that is none, nothing."""
    try:
        cells = list(labs.marked(path))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, OSError):
        return
    for grade_id, marks, cell in cells:
        if cell["cell_type"] == "markdown" and marks.get("grade") and marks.get("solution"):
            yield grade_id, labs.source_of(cell)
