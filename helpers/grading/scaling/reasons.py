"""Makes the tasks of lab 11, whose sentence about a wrong answer goes on with the numbers that make the answer right.

For example: "the exposed time is 0, expected 0.02. The link carries the buckets …, so they arrive at 0.14 and 0.44 s.
Backward ends at 0.42 s." So also a mistake that nobody foresaw gets more than two numbers that differ. A case is the
list of arguments of one call of the learner's function. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from helpers.grading.kit import answers
from helpers.grading.scaling import LAB
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words

words = LAB.messages
# From the index of a wrong value, the learner's value, and the arguments of the call to a sentence about the right one.
Reason = Callable[..., Words]


def task_with_reasons(reason: Reason, *arguments: Any, **more: Any) -> Task:
    """The Task that `question_task` makes of these arguments; a reason follows each sentence about a wrong value."""
    task = answers.question_task(*arguments, **more)

    def judge(world: JudgedWorld) -> Iterator[Judgement]:
        cases, given, judgements = world.inputs[0]["cases"], world.outputs[0], list(task.judge(world))
        # Of several values all cases of the first are judged, then all of the second; one Judgement before these is
        # about the number of values.
        first = len(judgements) % len(cases)
        yield from judgements[:first]
        for number, judgement in enumerate(judgements[first:]):
            index, at = divmod(number, len(cases))
            if not judgement.ok:
                got = given[at][index] if first else given[at]
                sentence = words["with_reason"].format(judgement.message, reason(index, got, *cases[at]))
                judgement = dataclasses.replace(judgement, message=sentence)
            yield judgement

    return dataclasses.replace(task, judge=judge)


def short(value: float) -> str:
    """A number with at most six digits."""
    return f"{value:.6g}"


def listed(values: Iterable[float]) -> Words:
    """Numbers in a sentence: "0.1, 0.2 and 0.3"."""
    return words["listed"].format([short(value) for value in values])
