"""Reads the notebooks of the labs and offers a learner what stands in them: the lab's own answer, a question's rubric.

Both stand in solutions/NN_topic.ipynb. A rubric says what a good answer in words contains and what earns points. A
learner who works alone is pointed to the answer after three failed attempts (`solution_offer`, at the end of a failed
check), sees it with `solution`, and sees the rubric of a question with `rubric` once an answer is written. Where a
teacher has taken solutions/ away, nothing is offered. The grading of a whole class reads the cells of notebooks with
the functions at the end. The labs are made with nbgrader, whose metadata in a cell has its "grade_id", and whether it
is graded ("grade") and holds an answer ("solution").
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.grading.registry import lab_of, task_of
from helpers.grading.verdict import NEVER_RAN, Verdict
from helpers.grading.verdict import words as verdict_words
from helpers.learner import progress
from helpers.learner.words import book

words = book("offers")  # texts in English and Chinese; verdict_words are those of a verdict
ROOT = Path(__file__).resolve().parents[2]  # the folder of the repository
ATTEMPTS_BEFORE_OFFER = 3  # failed attempts at a task before the lab's own answer is offered
SOLUTION_MARKS = re.compile(r"(?m)^ *(<!-- )?### (BEGIN|END) SOLUTION( -->)?\n?")  # nbgrader cuts out what is between
UNTOUCHED_ANSWER = "YOUR ANSWER HERE"  # what nbgrader writes into a cell for an answer in words


class MarkdownText(str):
    """A text that a notebook shows as Markdown, and a terminal as it is."""

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)


def solution_path(number: str) -> Path:
    """Where the answers to lab "03" are, if a teacher has not taken them away."""
    return ROOT / "solutions" / f"{lab_of(number).name}.ipynb"


# -- the lab's own answer --------------------------------------------------------------------------------------------
def solution_offer(verdict: Verdict, progress_file: str | os.PathLike | None = None) -> str:
    """A line for the end of a failed check; "" before the third attempt and where there is no answer to offer."""
    path = solution_path(verdict.key.partition(".")[0])
    # `shown` is the failing result that the verdict describes, and NEVER_RAN lists how an answer fails without a run.
    never_ran = verdict.shown is None or getattr(verdict.shown.failure, "kind", "") in NEVER_RAN
    if never_ran or not path.exists():
        return ""
    failed = failed_attempts(verdict.key, progress_file)
    if len(failed) < ATTEMPTS_BEFORE_OFFER:
        return ""
    is_in_chapter = any(entry.more.get("place") == progress.CHAPTER for entry in failed)
    also = verdict_words("also", verdict.lang) if is_in_chapter else ""  # says that attempts in the chapter count too
    code = f'from helpers.grading import solution; solution("{verdict.key}")'
    file = f"solutions/{path.name}"
    return verdict_words("offer", verdict.lang, failed=len(failed), also=also, file=file, code=code)


def failed_attempts(key: str, progress_file: str | os.PathLike | None = None) -> list[progress.ProgressEntry]:
    """The failed attempts at a task that the progress file knows, in its lab or in its chapter."""
    try:
        entries = progress.read(progress_file).entries
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return []
    return [entry for entry in entries if entry.kind == "check" and entry.key == key and not entry.passed]


def solution(key: str) -> MarkdownText:
    """The lab's or drill's own answer to the task "03.average". Raises ValueError for a task that is not there."""
    from helpers.interview.drills import drills  # here, because a check needs none

    task = task_of(key)
    # A drill is a task for a whiteboard, whose answer stands with the drill and not in a notebook.
    drill_answer = next((drill.answer for drill in drills() if drill.key == key), "")
    if drill_answer:
        return MarkdownText(f"```python\n{drill_answer.strip()}\n```")
    path = solution_path(key.partition(".")[0])
    for _, metadata, cell in graded_cells(path) if path.exists() else []:
        source = source_of(cell)
        if metadata.get("solution") and re.search(rf"^(def|class) +{task.name}\b", source, re.MULTILINE):
            return MarkdownText(f"```python\n{SOLUTION_MARKS.sub('', source).strip()}\n```")
    # None, here and below, stands for the language that the learner has chosen.
    return MarkdownText(words("no_solution", None, file=f"solutions/{path.name}"))


# -- answers in words ------------------------------------------------------------------------------------------------
def rubric(number: str, notebook: str | os.PathLike | None = None) -> MarkdownText:
    """What a good answer to the question of lab "03" says and what earns points, once the learner has written one.

    notebook: the saved notebook with the learner's answer, if not the one that calls. Raises ValueError for no lab.
    """
    name, path = lab_of(number).name, solution_path(number)
    if not path.exists():
        return MarkdownText(words("no_rubric"))
    rubrics = {grade_id: SOLUTION_MARKS.sub("", text).strip() for grade_id, text in written_answers(path)}
    learners = Path(notebook) if notebook else calling_notebook(name)
    if not learners.exists():
        return MarkdownText(words("no_notebook", None, call=f'rubric("{number}", "{name}.ipynb")'))
    answers = dict(written_answers(learners))
    if any(answers.get(grade_id, UNTOUCHED_ANSWER).strip() in ("", UNTOUCHED_ANSWER) for grade_id in rubrics):
        return MarkdownText(words("not_written"))
    return MarkdownText("\n\n".join(rubrics.values()))


def calling_notebook(name: str) -> Path:
    """The notebook that this kernel runs. JupyterLab tells its path; otherwise it is taken to be NAME.ipynb, here."""
    session = Path(os.environ.get("JPY_SESSION_NAME", ""))
    return session if session.suffix == ".ipynb" and session.exists() else Path(f"{name}.ipynb")


def written_answers(path: Path) -> Iterator[tuple[str, str]]:
    """(grade_id, text) of each answer in words in a notebook; nothing for a file that is no notebook."""
    try:
        cells = list(graded_cells(path))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, OSError):  # JSON of another form, or no JSON
        return
    for grade_id, metadata, cell in cells:
        if cell["cell_type"] == "markdown" and metadata.get("grade") and metadata.get("solution"):
            yield grade_id, source_of(cell)


# -- cells of a notebook ---------------------------------------------------------------------------------------------
def graded_cells(path: Path) -> Iterator[tuple[str, dict, dict]]:
    """(grade_id, nbgrader's metadata, cell) of each cell of one of the course's notebooks that has a grade_id."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        metadata = marks_of(cell)
        if metadata.get("grade_id"):
            yield metadata["grade_id"], metadata, cell


def marks_of(cell: dict) -> dict[str, Any]:
    """nbgrader's metadata of a cell; {} where somebody has turned it into something else."""
    metadata = cell.get("metadata")
    marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return marks if isinstance(marks, dict) and isinstance(marks.get("grade_id", ""), str) else {}


def source_of(cell: dict) -> str:
    """The text of a cell, which a notebook stores as one string or as a list of lines; "" for anything else."""
    source = cell.get("source", "")
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""
