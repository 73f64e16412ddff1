"""The calls that a notebook makes to the grader: `check`, `exercise`, and views of progress, drills and interviews.

check      for a cell of a lab: raises NotYet where the answer fails
exercise   for a cell of a chapter: the same judge, but nothing raises, so that "run all" reaches the end

Both get their Verdict, the outcome of a check, from `grade` in judging.py. A *drill* asks for a function at a
whiteboard; a *mock* is a mock interview with one drill in it. `words` are texts in English and Chinese.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from helpers.grading.judging import grade
from helpers.grading.registry import labs, task_of, tasks_of
from helpers.grading.verdict import Verdict
from helpers.grading.waiting import ProgressLine
from helpers.learner import progress
from helpers.learner.progress import CHAPTER
from helpers.learner.words import book, language

if TYPE_CHECKING:
    from helpers.widgets import DrillView, MockView, ProgressView

words = book("verdict")
LINE_WIDTH = 76  # characters: a notebook has room for so many, and would fold a longer line within a word
Definition = ast.FunctionDef | ast.ClassDef  # the syntax tree of what a learner has submitted


class NotYet(Exception):
    """Raised by a check that failed. A notebook shows the verdict alone, and nbgrader sees a cell that raised.

    verdict: the outcome of the check. offer: a line below it, which offers the lab's own answer; "" for none.
    """

    def __init__(self, verdict: Verdict, offer: str = ""):
        super().__init__("\n  ".join([verdict.text(), *([offer] if offer else [])]))
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: the text, in lines that a notebook need not fold."""
        return [part for line in str(self).splitlines() for part in _folded(line)]


def _folded(line: str) -> list[str]:
    """A line in parts of at most LINE_WIDTH characters, all with the indent of the first."""
    indent = " " * (len(line) - len(line.lstrip()))
    options = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(line, LINE_WIDTH, **options) or [""]


# -- a cell of a lab -------------------------------------------------------------------------------------------------
def check(
    key: str,
    submitted: Any,
    *,
    lang: str | None = None,
    seed: int | None = None,
    progress_file: str | os.PathLike | None = None,
) -> Verdict:
    """Run a task's check on `submitted` and note the attempt in the learner's progress file.

    key: "03.average". submitted: the function or class itself. lang: "en" or "zh", if not the one chosen. seed: one
    that a failed check named, to get the same inputs again. progress_file: where to note it, if not in the home.
    Raises NotYet, with the verdict, where it fails; ValueError for a key or a language that is not there.
    """
    names = functions_defined_in(sys._getframe(1).f_globals)  # the global variables of the cell that called
    verdict = _grade_with_progress(key, submitted, seed, language(lang), names)
    if verdict.printed:
        print(verdict.printed, end="")
    if verdict.was_tried and (problem := record_attempt(verdict, progress_file)):
        print(problem)
    if not verdict.passed:
        from helpers.grading.lab_notebooks import solution_offer  # here, because a right answer needs no offer

        raise NotYet(verdict, solution_offer(verdict, progress_file))
    return verdict


def _grade_with_progress(key: str, submitted: Any, seed: int | None, lang: str, names: Iterable[str]) -> Verdict:
    """`grade`, with a line that says what it does while it takes long."""
    with ProgressLine(key, lang) as progress_line:
        return grade(key, submitted, seed=seed, lang=lang, names=names, step=progress_line.step)


def functions_defined_in(names: Mapping[str, Any]) -> list[str]:
    """The functions and classes that a notebook itself defines. names: the notebook's global variables."""
    notebook = names.get("__name__")
    return [name for name, value in names.items() if callable(value) and getattr(value, "__module__", None) == notebook]


def record_attempt(verdict: Verdict, progress_file: str | os.PathLike | None, **more: str) -> str | None:
    """Note the attempt in the progress file; if something prevents that, return a sentence about it.

    more: what else is noted, such as the place of the attempt.
    """
    more |= {"seconds": round(verdict.seconds, 3), "mistake": verdict.mistake, "seed": verdict.seed}
    return progress.record_quietly("check", verdict.key, verdict.passed, path=progress_file, **more)


# -- a cell of a chapter ---------------------------------------------------------------------------------------------
def exercise(
    key: str,
    submitted: Any,
    *,
    lang: str | None = None,
    seed: int | None = None,
    progress_file: str | os.PathLike | None = None,
) -> None:
    """Judge `submitted` as `check` does, note the attempt, and print the verdict. Raises nothing for a wrong answer.

    After an interrupt it raises NotYet, so that Stop also ends a "run all", of which this cell is a part.
    key: a lab's task, or one that only the chapter asks. While a `...` stands in the answer as a line of its own,
    nothing is run or noted, and one line, the same on every machine, says that the answer is the learner's to write.
    """
    names = functions_defined_in(sys._getframe(1).f_globals)
    try:
        lines = exercise_lines(key, submitted, names, language(lang), seed, progress_file)
    except ValueError as error:  # a key or a language that is not there
        lines = [str(error)]
    print("\n".join(lines))


def exercise_lines(
    key: str, submitted: Any, names: Iterable[str], lang: str, seed: int | None, progress_file: str | os.PathLike | None
) -> list[str]:
    """The lines that `exercise` prints, with its arguments; names: what else the notebook defines.

    Raises ValueError for a key that is not there, NotYet after an interrupt.
    """
    if is_stub(submitted):
        return [words("yours_to_write", lang, key=task_of(key).key)]
    verdict = _grade_with_progress(key, submitted, seed, lang, names)
    if verdict.was_interrupted:
        raise NotYet(verdict)
    lines = [verdict.printed.rstrip("\n")] if verdict.printed else []
    if verdict.was_tried and (problem := record_attempt(verdict, progress_file, place=CHAPTER)):
        lines.append(problem)
    return [*lines, *([verdict.text()] if verdict.passed else NotYet(verdict)._render_traceback_())]


def is_stub(submitted: Any) -> bool:
    """Whether a `...` still stands where lines are to be written. Reads the source and runs nothing."""
    definition = _definition(submitted)
    expressions = [node.value for node in ast.walk(definition) if isinstance(node, ast.Expr)] if definition else []
    return any(isinstance(value, ast.Constant) and value.value is ... for value in expressions)


def _definition(submitted: Any) -> Definition | None:
    """The syntax tree of a function or class; None if its source cannot be read or parsed.

    `inspect.getsource` would not do, because it finds no class that a notebook defines.
    """
    function = inspect.unwrap(submitted) if callable(submitted) else submitted
    values = vars(function).values() if isinstance(function, type) else [function]  # of a class, its methods
    code = next((value.__code__ for value in values if isinstance(value, FunctionType)), None)
    if code is None:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    name, line = submitted.__name__, code.co_firstlineno  # of a class, the line of its first method
    definitions = [node for node in ast.walk(tree) if isinstance(node, Definition) and node.name == name]
    return next((node for node in definitions if _first_line(node) <= line <= node.end_lineno), None)


def _first_line(node: Definition) -> int:
    """The line where a definition begins, with its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


# -- views -----------------------------------------------------------------------------------------------------------
# They import the widgets when they are called, because this saves 8 MB in each of the processes that grade a whole
# class of learners and show nothing.


_drills: dict[str, tuple[DrillView, dict[str, Any]]] = {}  # task key -> the view in use, and its options


def progress_view(*which: str, path: str | os.PathLike | None = None) -> ProgressView:
    """One table per lab: which tasks are passed, and which is next.

    which: labs, such as "03"; all there are if none is named. path: the progress file, if not the one in the home.
    Raises ValueError for a lab that is not there.
    """
    from helpers.widgets import ProgressView

    return ProgressView({lab: list(tasks_of(lab)) for lab in which or labs()}, path=path)


def drill(key: str, **options: Any) -> DrillView:
    """A whiteboard drill with its lab's check: `drill("03.average").begin()`, then `drill("03.average").check(answer)`.

    Each call returns the same view until the drill is passed, so that its clock goes on; after that, or with other
    options than before, a new one. options: those of DrillView, such as `language="zh"`. Raises ValueError for a key
    that has no drill.
    """
    from helpers.widgets import DrillView

    view, before = _drills.get(key, (None, {}))
    if view is None or view.passed or (options and options != before):
        view = DrillView(key, grade, **options)
        _drills[key] = view, options
    return view


def mock_view(**options: Any) -> MockView:
    """A mock interview whose drill the labs' checks judge. options: those of MockView, such as `level="senior"`."""
    from helpers.widgets import MockView

    return MockView(grade, **options)
