"""Judges functions that are asked several questions.

A question is called a case: it is the list of arguments with which the learner's function is called. The answers are
numbers, texts, or lists of them. `question_task` builds the whole Task of a function that runs in one process. Its
judge compares each answer with that of the right function. Tasks with a judge of their own use `run_questions`.

A JudgedWorld is what a judge gets: `inputs` and `outputs`, each a list with one item per rank, which in one process is
a single item. A Judgement is the outcome of one comparison. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from helpers.grading.kit.comparisons import COMMA, describe_difference, expect, with_rule
from helpers.grading.plain_data import is_tensor, shortened, simplified
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words, book

words = book("values")  # the sentences of values.yaml
Answer = Callable[..., Any]  # a function that answers a question, which is a list of arguments
Rule = Callable[[Sequence[Any], Any], Words]  # from a case and the learner's answer to a sentence about the right one
FOR_CALL = Words(en="for {} {}", zh="{} 的{}")  # a call, and the name of the answer
RAISED = Words(en="{} (called as {})", zh="{}（调用：{}）")  # the text of an error, and the call
TOLERANCE = 1e-9  # relative: by so much rounding may move a number
ABSOLUTE_TOLERANCE = 1e-9  # for numbers that should be 0
SHOWN_DIGITS = 6  # of a float in a sentence


# -- on a rank, or in the only process -------------------------------------------------------------------------------
def run_questions(
    submitted: Answer, inputs: dict[str, Any], context: RankContext, task: Task | None = None
) -> list[Any]:
    """What the submitted function returns for each of inputs["cases"], each a list of arguments.

    The function gets copies, so that it cannot change a later question. If it raises, the error names the call. task:
    tells the name of the function. It is needed where `submitted` is a wrapper around the learner's function; otherwise
    the grader has stored the task in `submitted.task`.
    """
    task, answers = task or getattr(submitted, "task", None), []
    for case in inputs["cases"]:
        try:
            answers.append(submitted(*copy.deepcopy(case)))
        except Exception as error:
            if task and not hasattr(error, "words"):
                # The ranks report the text in `error.words` in place of the exception's own. `strip` is for an error
                # without a text, which would leave a space in front.
                error.words = RAISED.format(str(error), call_text(task, case)).map(str.strip)
            raise
    return answers


def call_text(task: Task, case: Sequence[Any]) -> str:
    """The call in a line, with arguments by name: "own_rows(batch=[0, 1], rank=1, dp=2)"."""
    arguments = zip(task.arguments, case, strict=False)
    return f"{task.name}({', '.join(f'{name}={shortened(value)}' for name, value in arguments)})"


# -- judging ---------------------------------------------------------------------------------------------------------
def question_task(
    key: str,
    signature: str,
    what: Words | Sequence[Words],
    right: Answer,
    *,
    tolerance: float = TOLERANCE,
    rules: Sequence[Rule] = (),
    **more: Any,
) -> Task:
    """The Task of a function that answers questions in one process.

    what: the name of the answer; or the names of its values, if it is a tuple whose values are judged one by one.
    right: the right function. rules: one for each value, which says below the sentence about a wrong value how the
    right one comes about. more: make_inputs and whatever else a Task has.
    """

    def judge(world: JudgedWorld) -> Iterator[Judgement]:
        cases, got = world.inputs[0]["cases"], world.outputs[0]
        expected = [right(*case) for case in cases]
        if isinstance(what, Words):
            yield from judge_answers(task, what, cases, expected, got, tolerance, next(iter(rules), None))
            return
        misshapen = [answer for answer in got if not (isinstance(answer, list) and len(answer) == len(what))]
        shown = shortened(misshapen[0]) if misshapen else ""
        yield expect(not misshapen, words["values_returned"].format(shown, len(what), COMMA.join(what)))
        if misshapen:
            return
        columns = zip(*expected, strict=True), zip(*got, strict=True)  # for each value, that of every case
        for name, due, values, rule in zip_longest(what, *columns, rules):
            yield from judge_answers(task, name, cases, due, values, tolerance, rule)

    more = {"run_submission": run_questions, "runs_on": "process"} | more
    task = Task(key=key, signature=signature, judge=judge, **more)
    return task


def judge_answers(
    task: Task,
    what: Words,
    cases: Sequence[Sequence[Any]],
    expected: Sequence[Any],
    got: Sequence[Any],
    tolerance: float,
    rule: Rule | None,
) -> Iterator[Judgement]:
    """One Judgement per case, of one value.

    what: the name of the value in a sentence. expected and got: the right values and the learner's, one per case.
    tolerance: relative, for numbers.
    """
    is_right = [is_same_answer(due, answer, tolerance) for due, answer in zip(expected, got, strict=True)]
    of_calls = words["right_calls"].format(right=sum(is_right), all=len(cases)) if any(is_right) else Words.of("")
    for case, due, answer, ok in zip(cases, expected, got, is_right, strict=True):
        if ok:
            yield Judgement(ok=True, message=what)
            continue
        name = FOR_CALL.format(call_text(task, case), what)
        judgement = Judgement(ok=False, message=describe_difference(name, *display_pair(due, answer)) + of_calls)
        yield from with_rule(rule(case, answer), [judgement]) if rule else [judgement]


def is_same_answer(right: Any, got: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two answers are equal, numbers up to rounding. A tensor counts as its list, or as its one number."""
    if isinstance(right, list | tuple):
        items = items_of(got)
        same_length = items is not None and len(right) == len(items)
        return same_length and all(is_same_answer(*pair, tolerance) for pair in zip(right, items, strict=True))
    right, got = simplified(right), simplified(got)
    if is_number(right) and is_number(got):
        return math.isclose(right, got, rel_tol=tolerance, abs_tol=ABSOLUTE_TOLERANCE)
    return type(right) is type(got) and right == got


def items_of(answer: Any) -> list[Any] | None:
    """The items of a list, a tuple or a tensor with dimensions; None for anything else."""
    if is_tensor(answer) and answer.dim():
        return answer.tolist()
    return list(answer) if isinstance(answer, list | tuple) else None


def first_difference(right: list[Any], got: Any) -> int:
    """The index of the first item of `right` that `got` does not have; the last one if `got` has all, and then more."""
    pairs = zip_longest(right, items_of(got) or [])
    wrong = (i for i, pair in enumerate(pairs) if not is_same_answer(*pair))
    return min(next(wrong, 0), max(0, len(right) - 1))


# -- values ----------------------------------------------------------------------------------------------------------
def display_pair(right: Any, got: Any) -> tuple[Any, Any]:
    """Both answers as a sentence shows them: floats with six digits, if those tell the two apart."""
    values = simplified(right), simplified(got)
    rounded = tuple(map(_with_six_digits, values))
    return rounded if rounded[0] != rounded[1] else values


def _with_six_digits(value: Any) -> Any:
    """The value, in which each float has SHOWN_DIGITS digits, also inside lists."""
    if isinstance(value, list):
        return [_with_six_digits(item) for item in value]
    return float(f"{value:.{SHOWN_DIGITS}g}") if isinstance(value, float) else value


def is_number(value: Any) -> bool:
    """Whether the value is an int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
