"""Judges an answer without a notebook: draws the inputs, runs the answer, and judges what came back.

`grade` returns the Verdict that `check` and `exercise` show, the drills for the whiteboard, and a page of the web
edition. Where the answer runs is up to a *runner*: on ranks of this machine, in a sandbox, or in this process.

Words of this file. A *world* is a number of ranks that run an answer together, and a *case* is one set of inputs; each
task names the world sizes and the cases that are tried. A *Judgement* is the outcome of one comparison, a *WorldResult*
all of one world, and a *Verdict* all of a check. A *mistake* is the key of a hint about a wrong solution that learners
often write. `words` are texts in English and Chinese.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from helpers.grading import common_checks
from helpers.grading.registry import similar_name, task_of
from helpers.grading.task import Case, JudgedWorld, Judgement, RunFailure, Task, TaskRun
from helpers.grading.verdict import NEVER_RAN, SAYS_NOTHING, Verdict, WorldResult, sizes_text
from helpers.grading.waiting import are_ranks_ready, wait_for_start
from helpers.learner.words import Words, book

if TYPE_CHECKING:
    from helpers.grading.named_mistakes import RunTrial
    from helpers.ranks import Ranks

words = book("verdict")
Runner = Callable[[Sequence[Sequence[dict]], int], TaskRun]  # (inputs of each rank in each case, seed)


def grade(
    key: str,
    submitted: Any = None,
    *,
    seed: int | None = None,
    lang: str | None = None,
    ranks: Ranks | None = None,
    runner: Runner | None = None,
    names: Iterable[str] = (),
    step: Callable[[Words], object] | None = None,
) -> Verdict:
    """The verdict on an answer, whatever the answer does. Raises ValueError only for a key that is not there.

    ranks: a pool of ranks to use, if not the grader's own. runner: runs the answer elsewhere, for example in a sandbox.
    names: what else the learner has defined; if the answer has another name than the task wants, the verdict says so.
    step: is told what happens next, such as "3 ranks".
    """
    task, step = task_of(key), step or (lambda doing: None)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    start = time.perf_counter()
    if runner is None:
        runner = _runner_on_ranks(task, submitted, ranks, step)
    results = _results_by_world(task, runner, seed, step)
    near = ""
    if not all(result.passed for result in results):
        from helpers.grading.named_mistakes import with_mistakes  # here, because a right answer needs none of them

        near = similar_name(task, names)
        with suppress(KeyboardInterrupt):  # what is wrong is known; the learner does not wait for the mistake's name
            results = with_mistakes(task, results, _trial_beside(runner, ranks), seed)
    seconds = time.perf_counter() - start
    return Verdict.of(task, results, seconds=seconds, seed=seed, lang=lang, similar_name=near)


def _runner_on_ranks(task: Task, submitted: Any, ranks: Ranks | None, step: Callable[[Words], object]) -> Runner:
    """What runs the answer on ranks of this machine."""
    from helpers.grading.run_on_ranks import LocalRunner  # here, because a page has neither torch nor processes

    if not are_ranks_ready():
        step(words["ranks_start"])
    return LocalRunner(task, submitted, ranks=ranks)


def _trial_beside(runner: Runner, ranks: Ranks | None) -> RunTrial:
    """What runs the known mistakes: this process if the answer ran here, else ranks of this machine."""
    if hasattr(runner, "run_trial"):
        return runner.run_trial
    from helpers.grading.mistakes_on_ranks import trial_on
    from helpers.grading.run_on_ranks import grader_ranks

    return trial_on(lambda: ranks or grader_ranks())


def _results_by_world(task: Task, runner: Runner, seed: int, step: Callable[[Words], object]) -> list[WorldResult]:
    """The result of each world in turn, up to the first in which the run failed."""
    results: list[WorldResult] = []
    for size in task.world_sizes:
        step(sizes_text([size], task.runs_on))
        try:
            wait_for_start()
            results.append(grade_world(task, runner, size, seed))
        except KeyboardInterrupt:  # the ranks were not ready, or the judge was at work, which runs in this process
            results.append(WorldResult(size=size, failure=RunFailure(kind="interrupted")))
        if results[-1].failure is not None:
            break  # it would hang, raise or die in the larger worlds as well, and each costs its time limit
    return results


def grade_world(task: Task, runner: Runner, size: int, seed: int) -> WorldResult:
    """Run every case of the task on `size` ranks and judge what came back.

    A run that failed has no outputs to judge; neither has one in which a rank sent something that its log lacks.
    """
    cases = task.variations.cases(seed)
    run = runner(inputs_by_rank(task, cases, size, seed), seed)
    if run.failure is not None:
        return explain_failure(task, runner, size, seed, run)
    if failure := common_checks.hidden_messages_failure(run):
        return WorldResult(size=size, failure=failure, printed=run.printed)
    judgements: list[Judgement] = []
    try:
        for case in cases:
            judgements += judge_case(task, run, case, size, seed)
    except Exception as error:  # a learner's outputs may be anything, and break a judge in any way
        failure = RunFailure(kind="no_answer", text=f"{type(error).__name__}: {error}")
        return WorldResult(size=size, failure=failure, printed=run.printed)
    return WorldResult(size=size, judgements=tuple(judgements), printed=run.printed, run=run)


def inputs_by_rank(task: Task, cases: Sequence[Case], size: int, seed: int) -> list[list[dict]]:
    """The inputs as [rank][case]."""
    return [list(of_rank) for of_rank in zip(*(task.inputs(seed, size, case) for case in cases), strict=True)]


def judge_case(task: Task, run: TaskRun, case: Case, size: int, seed: int) -> list[Judgement]:
    """What the task's judge says about one case, and whether the promises to the caller were kept.

    A promise is that a function leaves some arguments unchanged, or returns a result in new memory.
    """

    def judge(nudge: int = 0) -> list[Judgement]:
        """Draws fresh inputs and judges the outputs. nudge: not 0 to move the inputs by rounding steps first."""
        return list(task.judge(JudgedWorld.of(task.inputs(seed, size, case, nudge=nudge), run, case)))

    with _one_thread(task):
        judgements = judge()
        if any(one.compared for one in judgements):
            from helpers.grading.rounding import forgive_rounding  # here, because only tensors are compared so

            # Where terms cancel, rounding may move a right answer by more than the tolerance. A comparison that failed
            # by a little therefore passes if moving the inputs by rounding steps moves the right value as far.
            judgements = forgive_rounding(judgements, judge)
    assert judgements, f"the judge of {task.key} compared nothing"
    world = JudgedWorld.of(task.inputs(seed, size, case), run, case)
    judgements += common_checks.judge_promises(task, world)
    has_failed = not all(one.ok for one in judgements)
    plain_case = task.variations.cases(0)[0]  # the first one, which is the same for every seed
    description = common_checks.describe_case(world, plain_case) if has_failed else Words.of("")
    return [replace(one, case=case.number, case_description=description) for one in judgements]


def _one_thread(task: Task) -> AbstractContextManager[None]:
    """Within it, torch uses one thread, if the task needs torch."""
    if not task.needs_torch:
        return nullcontext()
    from helpers.grading.kit.model_tools import one_thread

    return one_thread()


def explain_failure(task: Task, runner: Runner, size: int, seed: int, run: TaskRun) -> WorldResult:
    """The result of a run that ended early. Each case is run alone, the plainest first, until one of them fails.

    What a single case shows says more than what all of them together show. description: what is special about it.
    """
    cases, description = task.variations.cases(seed), Words.of("")
    # After an interrupt nothing is run again: whoever presses Stop wants the prompt back.
    if len(cases) > 1 and run.failure["kind"] not in (*NEVER_RAN, *SAYS_NOTHING):
        for case in cases:
            if getattr(runner, "is_out_of_time", False):  # a runner other than LocalRunner may not tell
                break
            alone = runner(inputs_by_rank(task, [case], size, seed), seed)
            if alone.failure is not None:
                run, description = alone, common_checks.case_note(case, plain=cases[0])
                break
        else:  # no case fails alone; if the time was up, that may be because all of them together take too long
            if run.failure["kind"] != "too_long":
                description = common_checks.ONLY_TOGETHER  # " (only when it is called again)"
    failure = RunFailure(**run.failure)
    # The hints are about what a single call does, and here no single call fails.
    known = () if description is common_checks.ONLY_TOGETHER else task.recognise_failure(failure)
    return WorldResult(
        size=size, failure=failure, mistakes=tuple(known), printed=run.printed, case_description=description
    )
