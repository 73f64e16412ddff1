"""Names the mistake in a wrong answer: the known mistake that leaves on the same inputs what the learner's answer left.

Where a check failed, `with_mistakes` runs the mistakes on the inputs of the failed cases, in the smallest world that
failed; those that leave the learner's outputs there have to do so in the largest one, too. Those that leave the same
messages as well are preferred. Where the outputs are right, only those count, because the messages must be wrong. They
run where the answer ran: on ranks (mistakes_on_ranks.py), or in this process.

A *world* is a number of ranks that run an answer together, and a *case* is one set of inputs for them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.grading.mistakes import Mistake, TaskMistakes, mistakes_of
from helpers.grading.plain_data import as_plain_data, is_same
from helpers.grading.registry import task_of
from helpers.grading.running_case import RunningCase, case_seed
from helpers.grading.task import RankContext, Task

if TYPE_CHECKING:
    from helpers.grading.verdict import WorldResult

Message = tuple[str, str, int, str]  # the operation, how it reduces or "", its bytes, and its process group
Left = tuple[Any, list[Message]]  # what a case left on a rank: the outputs and the messages
Common = tuple[bool, bool]  # whether the outputs are the same, and whether the messages are


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The right answer and the mistakes of a task, to be run on the inputs of a failed check.

    key: of the task. above: what the texts use, as source. texts: of the right answer, then of each mistake. numbers:
    of the cases. inputs and left: as [case][rank]; left is what the learner's answer left. seed: that of the check.
    """

    key: str
    above: str
    texts: Sequence[str]
    numbers: Sequence[int]
    inputs: Sequence[Sequence[dict]]
    left: Sequence[Sequence[Left]]
    seed: int


# For each text of a trial, what it has in common with `left` on all ranks: "all", "outputs" (not the messages) or "";
# none where the trial could not be run.
RunTrial = Callable[[Trial], Sequence[str]]


def with_mistakes(task: Task, results: Sequence[WorldResult], run_trial: RunTrial, seed: int) -> list[WorldResult]:
    """The results, of which those that failed name the mistakes that leave what the learner's answer left.

    run_trial: runs the mistakes. seed: that of the check.
    """
    failed, known = [one for one in results if one.run and one.failed], mistakes_of(task.key)
    mistakes = [one for one in known.mistakes if one.is_run]
    if not failed or not mistakes:
        return list(results)
    for result in {result.size: result for result in (failed[0], failed[-1])}.values():
        mistakes = matching(task, known, mistakes, result, run_trial, seed) if mistakes else []
    keys = tuple({one.hint for one in mistakes})
    return [replace(one, mistakes=(*one.mistakes, *keys)) if one.failed else one for one in results]


def matching(
    task: Task,
    known: TaskMistakes,
    mistakes: Sequence[Mistake],
    result: WorldResult,
    run_trial: RunTrial,
    seed: int,
) -> list[Mistake]:
    """Those of the mistakes that leave what the learner's answer left on every rank, in each case that failed."""
    failed = {judgement.case for judgement in result.failed}
    cases = [case for case in task.variations.cases(seed) if case.number in failed]
    inputs = [task.inputs(seed, result.size, case) for case in cases]
    left = [[_left(result, rank, case.number) for rank in range(len(inputs[0]))] for case in cases]
    texts, numbers = [known.answer, *(one.text for one in mistakes)], [case.number for case in cases]
    above = used_definitions(f"{known.imports}\n\n{known.others}", texts)
    trial = Trial(key=task.key, above=above, texts=texts, numbers=numbers, inputs=inputs, left=left, seed=seed)
    same = run_trial(trial)
    if not same or same[0] == "all":  # the answer is right, but has broken a promise to its caller
        return []
    is_answer_same, *are_same = same
    same = {how: [one for one, its in zip(mistakes, are_same, strict=True) if its == how] for how in ("all", "outputs")}
    # Where the outputs are right, the messages are wrong, so they decide.
    return same["all"] or ([] if is_answer_same else same["outputs"])


def _left(result: WorldResult, rank: int, case: int) -> Left:
    """What the learner's answer left on this rank in this case."""
    return result.run.outputs[rank][case], messages_of(result.run.events[rank][case])


def messages_of(events: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages that these communication events were."""
    return [(event["op"], event["reduce_op"] or "", event["payload_bytes"], event["group"]) for event in events]


# -- running the texts -----------------------------------------------------------------------------------------------
def used_definitions(above: str, texts: Sequence[str]) -> str:
    """The statements of `above` that define what the texts use, directly or through each other, as source.

    So a task that needs no torch can be tried without it, although a lab's other tasks import it.
    """
    statements = ast.parse(above).body
    missing, kept = set().union(*(_names_in(ast.parse(text)) for text in texts)), set()
    while found := {i for i, one in enumerate(statements) if i not in kept and defined_names(one) & missing}:
        kept |= found
        missing = missing.union(*(_names_in(statements[i]) for i in found))
    return "\n\n".join(ast.unparse(statements[i]) for i in sorted(kept))


def defined_names(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of a module defines: of an import, a function, a class, or a variable."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _names_in(node: ast.AST) -> set[str]:
    """All names that code reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def definitions(trial: Trial) -> Iterator[Callable[..., Any]]:
    """What each text of a trial defines for the task."""
    names: dict[str, Any] = {"__name__": "mistakes"}
    exec(compile(trial.above, "mistakes.yaml", "exec"), names)
    for text in trial.texts:
        own = dict(names)
        exec(compile(text, "mistakes.yaml", "exec"), own)
        yield own[task_of(trial.key).name]


def in_common(case: RunningCase, left: Left) -> Common:
    """Runs a case to its end, and says what it leaves in common with `left`. One that raises leaves nothing."""
    try:
        while case.advance():
            pass
        outputs, messages = as_plain_data(case.outputs), messages_of(case.events)
    except Exception:
        return False, False
    return is_same(outputs, left[0]), messages == left[1]


def run_trial_here(trial: Trial) -> list[str]:
    """Runs a trial in this process, for a task that needs neither torch nor ranks."""
    task, same = task_of(trial.key), []
    for submitted in definitions(trial):
        common = (True, True)
        for number, inputs, left in zip(trial.numbers, trial.inputs, trial.left, strict=True):
            # It gets copies of the inputs, since the next one must not find what this one changed.
            own_inputs, own_seed = copy.deepcopy(inputs[0]), case_seed(trial.seed, number)
            case = RunningCase(task, submitted, own_inputs, RankContext(0, 1), own_seed)
            outputs, messages = in_common(case, left[0])
            common = (common[0] and outputs, common[1] and messages)
            if not common[0]:
                break  # most texts end here, after one case
        same.append(common_text(*common))
    return same


def common_text(outputs: bool, messages: bool) -> str:
    """How a RunTrial says what is the same."""
    return "" if not outputs else "all" if messages else "outputs"
