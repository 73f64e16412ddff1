"""Judges functions that are asked several questions, and names a mistake only if it explains every answer.

A question is called a case: it is the list of arguments with which the learner's function is called. The answers are
numbers, texts, or lists of them. `question_task` builds the whole Task of a function that runs in one process. Its
judge compares each answer with that of the right function. A mistake is a wrong solution that learners often write; it
stands here as a wrong function, and is named if that function gives exactly the learner's answers, to all questions.
Tasks with a judge of their own use `run_questions` and `judge_answers` directly.

A JudgedWorld is what a judge gets: `inputs` and `outputs`, each a list with one item per rank, which in one process is
a single item. A Judgement is the outcome of one comparison. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from helpers.grading.kit.comparisons import COMMA, describe_difference, expect, with_rule
from helpers.grading.kit.model_tools import shortened, simplified
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words, book

words = book("values")  # the sentences of values.yaml
Answer = Callable[..., Any]  # a function that answers a question, which is a list of arguments
Rule = Callable[[Sequence[Any], Any], Words]  # from a case and the learner's answer to a sentence about the right one
WrongAnswers = Mapping[str, Sequence[Answer]]  # key of a hint -> wrong functions that contain this mistake
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
    wrong: WrongAnswers = MappingProxyType({}),
    *,
    tolerance: float = TOLERANCE,
    rules: Sequence[Rule] = (),
    **more: Any,
) -> Task:
    """The Task of a function that answers questions in one process.

    what: the name of the answer; or the names of its values, if it is a tuple whose values are judged one by one.
    right: the right function. wrong: maps the key of each hint to the functions that contain this mistake. rules: one
    for each value, which says below the sentence about a wrong value how the right one comes about. more: make_inputs
    and whatever else a Task has.
    """

    def judge(world: JudgedWorld) -> Iterator[Judgement]:
        if isinstance(what, Words):
            cases, rule = world.inputs[0]["cases"], next(iter(rules), None)
            yield from judge_answers(task, what, cases, world.outputs[0], right, wrong, tolerance, rule)
            return
        columns = []
        for index, name in enumerate(what):
            # Functions that give just this value of what the wrong functions give.
            wrong_values = {hint: [value_at(index, one) for one in several] for hint, several in wrong.items()}
            columns.append((name, value_at(index, right), wrong_values))
        yield from judge_several_answers(task, COMMA.join(what), columns, world, tolerance, rules)

    more = {"run_submission": run_questions, "runs_on": "process"} | more
    task = Task(key=key, signature=signature, judge=judge, **more)
    return task


def value_at(index: int, function: Answer) -> Answer:
    """The function that gives one value of the tuple that `function` returns: the one at this index."""
    return lambda *case: function(*case)[index]


def judge_answers(
    task: Task,
    what: Words,
    cases: Sequence[Sequence[Any]],
    got: Sequence[Any],
    right: Answer,
    mistakes: WrongAnswers = MappingProxyType({}),
    tolerance: float = TOLERANCE,
    rule: Rule | None = None,
) -> Iterator[Judgement]:
    """One Judgement per case. A mistake is named if one of its wrong functions gives the learner's answer to each case.

    what: the name of the answer in a sentence. got: the learner's answers, one per case. right: the right function.
    mistakes: the wrong functions, by the key of the hint. tolerance: relative, for numbers.
    """
    is_known = functools.partial(is_mistake, cases=cases, got=got, tolerance=tolerance)
    known = [key for key, several in mistakes.items() if any(map(is_known, several))]
    expected = [right(*case) for case in cases]
    is_right = [is_same_answer(due, answer, tolerance) for due, answer in zip(expected, got, strict=True)]
    of_calls = words["right_calls"].format(right=sum(is_right), all=len(cases)) if any(is_right) else Words.of("")
    for case, due, answer, ok in zip(cases, expected, got, is_right, strict=True):
        if ok:
            yield Judgement(ok=True, message=what)
            continue
        name = FOR_CALL.format(call_text(task, case), what)
        message = describe_difference(name, *display_pair(due, answer)) + of_calls
        judgement = Judgement(ok=False, message=message, mistakes=tuple(known))
        yield from with_rule(rule(case, answer), [judgement]) if rule else [judgement]


def judge_several_answers(
    task: Task,
    names: Words,
    columns: Sequence[tuple[Words, Answer, WrongAnswers]],
    world: JudgedWorld,
    tolerance: float = TOLERANCE,
    rules: Sequence[Rule] = (),
) -> Iterator[Judgement]:
    """Judges a function that returns several values, one value after the other, in a world of one process.

    names: all of the values, for a sentence. columns: for each value its name, the right function and the wrong ones.
    """
    cases, answers, count = world.inputs[0]["cases"], world.outputs[0], len(columns)
    misshapen = [answer for answer in answers if not (isinstance(answer, list) and len(answer) == count)]
    shown = shortened(misshapen[0]) if misshapen else ""
    yield expect(not misshapen, words["values_returned"].format(shown, count, names))
    if misshapen:
        return
    for (what, right, wrong), values, rule in zip_longest(columns, zip(*answers, strict=True), rules):
        yield from judge_answers(task, what, cases, values, right, wrong, tolerance, rule)


def is_mistake(wrong: Answer, cases: Sequence[Sequence[Any]], got: Sequence[Any], tolerance: float = TOLERANCE) -> bool:
    """Whether this wrong function gives all of the learner's answers."""
    return all(is_same_answer(wrong(*case), answer, tolerance) for case, answer in zip(cases, got, strict=True))


def is_same_answer(right: Any, got: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two answers are equal, numbers up to rounding; a tensor of one element counts as its number."""
    right, got = simplified(right), simplified(got)
    if isinstance(right, list) and isinstance(got, list):
        return len(right) == len(got) and all(is_same_answer(*pair, tolerance) for pair in zip(right, got, strict=True))
    if is_number(right) and is_number(got):
        return math.isclose(right, got, rel_tol=tolerance, abs_tol=ABSOLUTE_TOLERANCE)
    return type(right) is type(got) and right == got


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
