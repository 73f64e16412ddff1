"""`check` for a lab's cell and `grade` for machines: make inputs, act on the ranks, judge, say."""

from __future__ import annotations

import os
import secrets
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from helpers.grading import hidden, offers, promises, rounding
from helpers.grading.cases import Case
from helpers.grading.kit.histories import without_naming_mistakes
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.registry import similar_name, task_of
from helpers.grading.run_on_ranks import LocalRunner
from helpers.grading.task import JudgedWorld, Judgement, RunFailure, Task, TaskRun
from helpers.grading.verdict import NEVER_RAN, Verdict, WorldResult
from helpers.learner import progress
from helpers.learner.words import Words, language
from helpers.ranks import Ranks

LINE_WIDTH = 76  # characters: what a narrow notebook has room for, which would fold a longer line once more
Runner = Callable[[Sequence[Sequence[dict]], int], TaskRun]


class NotYet(Exception):
    """A check that failed. A notebook shows the verdict alone; nbgrader sees a cell that raised. `verdict` has all.

    offer: what is said below it, "" for nothing.
    """

    def __init__(self, verdict: Verdict, offer: str = ""):
        super().__init__("\n  ".join([verdict.text(), *([offer] if offer else [])]))
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        """In lines that a notebook shows whole: it would break a longer one within a word."""
        return [part for line in str(self).splitlines() for part in _folded(line)]


def _folded(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line, LINE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]


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
    names = functions_defined_in(sys._getframe(1).f_globals)
    verdict = grade(key, submitted, seed=seed, lang=language(lang), names=names)
    if verdict.printed:
        print(verdict.printed, end="")
    if verdict.was_tried and (problem := record_attempt(verdict, progress_file)):
        print(problem)
    if not verdict.passed:
        raise NotYet(verdict, offers.solution_offer(verdict, progress_file))
    return verdict


def functions_defined_in(names: Mapping[str, Any]) -> list[str]:
    """Of what a notebook knows, the functions and classes that are written in it."""
    home = names.get("__name__")
    return [name for name, value in names.items() if callable(value) and getattr(value, "__module__", None) == home]


def record_attempt(verdict: Verdict, progress_file: str | os.PathLike | None, **more: str) -> str | None:
    """In the progress file; what prevents it comes back as a sentence."""
    more |= {"seconds": round(verdict.seconds, 3), "mistake": verdict.mistake, "seed": verdict.seed}
    return progress.record_quietly("check", verdict.key, verdict.passed, path=progress_file, **more)


def grade(
    key: str,
    submitted: Any = None,
    *,
    seed: int | None = None,
    lang: str | None = None,
    ranks: Ranks | None = None,
    runner: Runner | None = None,
    names: Iterable[str] = (),
) -> Verdict:
    """The verdict, whatever `submitted` does. ranks: a pool of 5 to use. runner: acts elsewhere, in a sandbox, say.

    names: what else the learner has defined, to be named if the answer is not written under its own name.

    Raises ValueError only for a key that is not there.
    """
    task = task_of(key)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    runner = runner or LocalRunner(task, submitted, ranks=ranks)
    start, tried = time.perf_counter(), []
    for size in task.world_sizes:
        tried.append(grade_world(task, runner, size, seed))
        if tried[-1].failure is not None:
            break  # it would hang, raise or end the larger worlds as well, and each costs its time limit
    seconds = time.perf_counter() - start
    return Verdict.of(task, tried, seconds=seconds, seed=seed, lang=lang, near=similar_name(task, names))


def grade_world(task: Task, runner: Runner, size: int, seed: int) -> WorldResult:
    """Run every case of the task on `size` ranks and judge what came back."""
    cases = task.variations.cases(seed)
    run = runner(inputs_by_rank(task, cases, size, seed), seed)
    if run.failure is not None:
        return explain_failure(task, runner, size, seed, run)
    if failure := hidden.hidden_messages_failure(run):
        return WorldResult(size=size, failure=failure, printed=run.printed)
    findings: list[Judgement] = []
    try:
        for case in cases:
            findings += judge_case(task, run, case, size, seed)
    except Exception as error:  # a stranger's outputs may be anything, and break a judge in any way
        failure = RunFailure(kind="no_answer", text=f"{type(error).__name__}: {error}")
        return WorldResult(size=size, failure=failure, printed=run.printed)
    return WorldResult(size=size, findings=tuple(findings), printed=run.printed)


def inputs_by_rank(task: Task, cases: Sequence[Case], size: int, seed: int) -> list[list[dict]]:
    """Of each rank, of each case."""
    return [list(of_rank) for of_rank in zip(*(task.inputs(seed, size, case) for case in cases), strict=True)]


def judge_case(task: Task, run: TaskRun, case: Case, size: int, seed: int) -> list[Judgement]:
    """What the task's judge finds in one case, and which promises to the caller were broken."""

    def judge(nudge: int = 0) -> list[Judgement]:  # fresh inputs: a learner's function may have changed the others
        with without_naming_mistakes() if nudge else nullcontext():
            return list(task.judge(JudgedWorld.of(task.inputs(seed, size, case, nudge=nudge), run, case)))

    with one_thread():
        findings = rounding.forgive_rounding(judge(), judge)
    assert findings, f"the judge of {task.key} compared nothing"
    world = JudgedWorld.of(task.inputs(seed, size, case), run, case)
    findings += promises.judge(task, world)
    given = Words.of("") if all(one.ok for one in findings) else promises.given(world, task.variations.cases(0)[0])
    return [replace(finding, case=case.number, given=given) for finding in findings]


def explain_failure(task: Task, runner: Runner, size: int, seed: int, run: TaskRun) -> WorldResult:
    """A run that ended early: the plainest case that does so alone, if one does, says more than all of them."""
    cases, given = task.variations.cases(seed), Words.of("")
    if len(cases) > 1 and run.failure["kind"] not in NEVER_RAN:
        for case in cases:
            if getattr(runner, "is_out_of_time", False):
                break
            alone = runner(inputs_by_rank(task, [case], size, seed), seed)
            if alone.failure is not None:
                run, given = alone, promises.special(case, cases[0])
                break
        else:  # where it took too long, all of them together may be what does
            given = given if run.failure["kind"] == "too_long" else promises.AGAIN
    failure = RunFailure(**run.failure)
    known = () if given is promises.AGAIN else tuple(task.recognise_failure(failure))  # no case alone shows the mistake
    return WorldResult(size=size, failure=failure, mistakes=known, printed=run.printed, given=given)
