"""`exercise(key, function)` for a chapter's cell: a check that never raises, so that "run all" reaches the end."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from helpers.grading.check import NotYet, functions_defined_in, grade, record_attempt
from helpers.grading.registry import task_of
from helpers.learner.progress import CHAPTER
from helpers.learner.words import book, language

words = book("verdict")
Definition = ast.FunctionDef | ast.ClassDef


def exercise(
    key: str,
    submitted: Any,
    *,
    lang: str | None = None,
    seed: int | None = None,
    progress_file: str | os.PathLike | None = None,
) -> None:
    """Judge `submitted` as `check` does, note the attempt, and print what is to be said. What fails raises nothing.

    key: a lab's task, or one that only the chapter asks. While a `...` stands in it as a line of its own, nothing is
    run and nothing noted: one line, the same on every machine, says that it is the learner's to write.
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
    """The lines to print. Raises ValueError for a key that is not there."""
    if is_stub(submitted):
        return [words("yours_to_write", lang, key=task_of(key).key)]
    verdict = grade(key, submitted, seed=seed, lang=lang, names=names)
    said = [verdict.printed.rstrip("\n")] if verdict.printed else []
    if verdict.was_tried and (problem := record_attempt(verdict, progress_file, place=CHAPTER)):
        said.append(problem)
    return [*said, *([verdict.text()] if verdict.passed else NotYet(verdict)._render_traceback_())]


def is_stub(submitted: Any) -> bool:
    """Whether a `...` still stands for the lines to write. Reads the source and runs nothing."""
    found = _definition(submitted)
    return found is not None and any(isinstance(one, ast.Expr) and _is_dots(one.value) for one in ast.walk(found))


def _is_dots(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is ...


def _codes(submitted: Any) -> Iterator[CodeType]:
    """Of a function, or of the methods of a class."""
    submitted = inspect.unwrap(submitted) if callable(submitted) else submitted
    values = vars(submitted).values() if isinstance(submitted, type) else [submitted]
    yield from (value.__code__ for value in values if isinstance(value, FunctionType))


def _definition(submitted: Any) -> Definition | None:
    """Where it is written, if that can be read. Not `inspect.getsource`, which finds no class of a notebook."""
    code = next(_codes(submitted), None)
    if code is None:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    return next((node for node in ast.walk(tree) if _is_of(node, submitted.__name__, code.co_firstlineno)), None)


def _is_of(node: ast.AST, name: str, line: int) -> bool:
    return isinstance(node, Definition) and node.name == name and _first(node) <= line <= node.end_lineno


def _first(node: Definition) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])
