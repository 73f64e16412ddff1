"""The calls that a notebook makes to the grader: `check`, `exercise`, and views of progress, drills and interviews.

check      for a cell of a lab: raises NotYet where the answer fails
exercise   for a cell of a chapter: the same judge, but nothing raises, so that "run all" reaches the end
grade      the verdict behind both, for machines: draw the inputs, run the answer on the ranks, judge what came back

Words of this file. A *world* is a number of ranks that run an answer together, and a *case* is one set of inputs; each
task names the world sizes and the cases that are tried. A *Judgement* is the outcome of one comparison, a *WorldResult*
all of one world, and a *Verdict* all of a check. A *mistake* is the key of a hint about a wrong solution that learners
often write. A *drill* asks for a function at a whiteboard; a *mock* is a mock interview with one drill in it. `words`
are texts in English and Chinese.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import secrets
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from helpers.grading import common_checks
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.registry import labs, similar_name, task_of, tasks_of
from helpers.grading.run_on_ranks import LocalRunner, grader_ranks
from helpers.grading.task import Case, JudgedWorld, Judgement, RunFailure, Task, TaskRun
from helpers.grading.verdict import NEVER_RAN, SAYS_NOTHING, Verdict, WorldResult, sizes_text
from helpers.grading.waiting import ProgressLine, are_ranks_ready, wait_for_start
from helpers.learner import progress
from helpers.learner.progress import CHAPTER
from helpers.learner.words import Words, book, language
from helpers.ranks import Ranks

if TYPE_CHECKING:
    from helpers.widgets import DrillView, MockView, ProgressView

words = book("verdict")
LINE_WIDTH = 76  # characters: a notebook has room for so many, and would fold a longer line within a word
Definition = ast.FunctionDef | ast.ClassDef  # the syntax tree of what a learner has submitted
Runner = Callable[[Sequence[Sequence[dict]], int], TaskRun]  # (inputs of each rank in each case, seed)


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


# -- grading ---------------------------------------------------------------------------------------------------------
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
    if runner is None and not are_ranks_ready():
        step(words["ranks_start"])
    results = _results_by_world(task, runner or LocalRunner(task, submitted, ranks=ranks), seed, step)
    near = ""
    if not all(result.passed for result in results):
        from helpers.grading.mistakes import with_mistakes  # here, because a right answer needs none of them

        near = similar_name(task, names)
        with suppress(KeyboardInterrupt):  # what is wrong is known; the learner does not wait for the mistake's name
            results = with_mistakes(task, results, lambda: ranks or grader_ranks(), seed)
    seconds = time.perf_counter() - start
    return Verdict.of(task, results, seconds=seconds, seed=seed, lang=lang, similar_name=near)


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

    with one_thread():
        # Where terms cancel, rounding may move a right answer by more than the tolerance. A comparison that failed by a
        # little therefore passes if moving the inputs by rounding steps moves the right value as far.
        judgements = common_checks.forgive_rounding(judge(), judge)
    assert judgements, f"the judge of {task.key} compared nothing"
    world = JudgedWorld.of(task.inputs(seed, size, case), run, case)
    judgements += common_checks.judge_promises(task, world)
    has_failed = not all(one.ok for one in judgements)
    plain_case = task.variations.cases(0)[0]  # the first one, which is the same for every seed
    description = common_checks.describe_case(world, plain_case) if has_failed else Words.of("")
    return [replace(one, case=case.number, case_description=description) for one in judgements]


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
