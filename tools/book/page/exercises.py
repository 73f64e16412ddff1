"""Judges an exercise of a chapter in the page, as a notebook does, if its task needs neither ranks nor torch.

The page ends the worker in which this runs if it takes too long, because a loop may never end.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
from typing import Any

from helpers.grading.check import is_stub
from helpers.grading.judging import grade
from helpers.grading.registry import chapters_with_tasks, keys_of, task_of
from helpers.grading.run_in_process import InProcessRunner
from helpers.grading.task import Task
from helpers.learner.words import Words, book, use_language
from helpers.ranks.board.errors import describe_raised, frames_of_error
from helpers.ranks.board.sites import CELL_PREFIX

words = book("verdict")  # texts of a check, among them those of a page
FILE = f"{CELL_PREFIX} of the page>"  # the name under which errors know the learner's code: they call it "cell"
CALLS = ("exercise", "check")  # of a notebook, which a learner may have copied with the function


def keys() -> list[str]:
    """The keys of all tasks that can be judged here, also those of labs.

    Without torch, the modules of the others cannot be imported.
    """
    found = []
    for key in (key for number in chapters_with_tasks() for key in keys_of(number)):
        with contextlib.suppress(ImportError):
            found += [key] if not task_of(key).needs_torch else []
    return found


def load(key: str) -> None:
    """Import what a task needs, so that `judge` takes no longer than the learner's code and its check."""
    task_of(key)


def judge(key: str, source: str, language: str, seed: int | None = None) -> dict[str, Any]:
    """Judge a learner's code, the source of a cell.

    Returns "passed", "text" (what a check says) and "printed" (what the code printed). seed: one that a failed check
    named, to get the same inputs again. Raises ValueError for a key or a language that is not there.
    """
    task = task_of(key)
    with use_language(language):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                submitted = definition(task, source)
        except ValueError as error:
            return {"passed": False, "text": str(error), "printed": printed.getvalue()}
        if is_stub(submitted):
            return {"passed": False, "text": words("page.yours_to_write", key=key), "printed": printed.getvalue()}
        verdict = grade(key, runner=InProcessRunner(task, submitted), lang=language, seed=seed)
    return {"passed": verdict.passed, "text": verdict.text(), "printed": printed.getvalue() + verdict.printed}


def definition(task: Task, source: str) -> Any:
    """What the code defines under the name that the task wants.

    Raises ValueError, with a sentence for the learner, where it defines nothing so, or cannot be run.
    """
    # Errors and `is_stub` read the lines from here. The None is a file's time, and this text has none.
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        tree = ast.parse(source, FILE)
    except SyntaxError as error:
        values = {"line": error.lineno or 1, "problem": error.msg, "code": (error.text or "").strip()}
        raise ValueError(words("page.syntax", key=task.key, **values)) from None
    tree.body = [one for one in tree.body if not _is_call_of_check(one)]
    names: dict[str, Any] = {"__name__": "__main__"}  # a module that exists, where a dataclass looks up its annotations
    try:
        exec(compile(tree, FILE, "exec"), names)
    except (Exception, SystemExit) as error:
        frames = [frame for frame in frames_of_error(error) if frame[0] != __file__]
        text, place = describe_raised(type(error).__name__, Words.of(str(error)), frames)
        raise ValueError(words("page.raised", key=task.key, text=text, place=place)) from None
    if task.name not in names:
        raise ValueError(words("page.missing", key=task.key, name=task.name, signature=task.signature))
    return names[task.name]


def _is_call_of_check(statement: ast.stmt) -> bool:
    """Whether this is the notebook's own call of the judge, such as exercise("08.cost", cost)."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CALLS
