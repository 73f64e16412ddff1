"""`check` for a lab's cell and `grade` for machines: make inputs, act on the ranks, judge, say."""

from __future__ import annotations

import os
import secrets
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from helpers import progress
from helpers.grading.acting import LocalRunner
from helpers.grading.registry import task_of
from helpers.grading.task import Run, Task, Trouble, World
from helpers.grading.verdict import Tried, Verdict
from helpers.ranks import Ranks
from helpers.words import language

LINE = 110  # characters
Runner = Callable[[Sequence[dict], int], Run]


class NotYet(Exception):
    """A check that failed. A notebook shows the verdict alone; nbgrader sees a cell that raised. `verdict` has all."""

    def __init__(self, verdict: Verdict):
        super().__init__(verdict.text())
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        """In lines that a notebook shows whole: it would break a longer one within a word."""
        return [part for line in str(self).splitlines() for part in _folded(line)]


def _folded(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


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
    verdict = grade(key, submitted, seed=seed, lang=language(lang))
    if verdict.printed:
        print(verdict.printed, end="")
    if verdict.was_tried:
        _note(verdict, progress_file)
    if not verdict.passed:
        raise NotYet(verdict)
    return verdict


def _note(verdict: Verdict, progress_file: str | os.PathLike | None) -> None:
    more = {"seconds": round(verdict.seconds, 3), "mistake": verdict.mistake, "seed": verdict.seed}
    note = progress.record_quietly("check", verdict.key, verdict.passed, path=progress_file, **more)
    if note:
        print(note)


def grade(
    key: str,
    submitted: Any = None,
    *,
    seed: int | None = None,
    lang: str | None = None,
    ranks: Ranks | None = None,
    runner: Runner | None = None,
) -> Verdict:
    """The verdict, whatever `submitted` does. ranks: a pool of 4 to use. runner: acts elsewhere, in a sandbox, say.

    Raises ValueError only for a key that is not there.
    """
    task = task_of(key)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    runner = runner or LocalRunner(task, submitted, ranks=ranks)
    start, tried = time.perf_counter(), []
    for size in task.world_sizes:
        tried.append(try_world(task, runner, size, seed))
        if tried[-1].trouble is not None:
            break  # it would hang, raise or end the larger worlds as well, and each costs its time limit
    return Verdict.of(task, tried, seconds=time.perf_counter() - start, seed=seed, lang=lang)


def try_world(task: Task, runner: Runner, size: int, seed: int) -> Tried:
    """Run the task on `size` ranks and judge what came back."""
    inputs = task.inputs(seed, size)
    run = runner(inputs, seed)
    if run.trouble is not None:
        trouble = Trouble(**run.trouble)
        known = tuple(task.recognise(trouble))
        return Tried(size=size, trouble=trouble, mistakes=known, printed=run.printed)
    try:
        world = World.of(task.inputs(seed, size), run)  # fresh inputs: a learner's function may have changed the others
        findings = tuple(task.judge(world))
    except Exception as error:  # a stranger's outputs may be anything, and break a judge in any way
        trouble = Trouble(kind="no_answer", text=f"{type(error).__name__}: {error}")
        return Tried(size=size, trouble=trouble, printed=run.printed)
    assert findings, f"the judge of {task.key} compared nothing"
    return Tried(size=size, findings=findings, printed=run.printed)
