"""A function that is asked several questions: a mistake is one that explains every answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

Answer = Callable[..., Any]
CALL = Words(en="for {} {}", zh="{} 的{}")
LISTED = Words(en=", ", zh="、")
TOLERANCE = 1e-9  # the share by which rounding may move a number
RAISED = Words(en="{} (called as {})", zh="{}（调用：{}）")


def run_questions(
    submitted: Answer, inputs: dict[str, Any], context: RankContext, task: Task | None = None
) -> list[Any]:
    """What it returns for each case, a list of arguments; it cannot change a later question. An exception says which
    call raised it. task: where `submitted` does not know it, as something around the learner's function."""
    task, given = task or getattr(submitted, "task", None), []
    for case in inputs["cases"]:
        try:
            given.append(submitted(*[copy_lists(argument) for argument in case]))
        except Exception as error:
            if task and not hasattr(error, "words"):
                error.words = RAISED.format(str(error), call_text(task, case)).map(str.strip)  # what the ranks report
            raise
    return given


def call_text(task: Task, case: Sequence[Any]) -> str:
    """The call in a line, arguments by name: "own_rows(batch=[0, 1], rank=1, dp=2, pp=1, tp=3, num_microbatches=3)"."""
    named = (f"{name}={shortened(value)}" for name, value in zip(task.arguments, case, strict=False))
    return f"{task.name}({', '.join(named)})"


def copy_lists(value: Any) -> Any:
    return [copy_lists(item) for item in value] if isinstance(value, list) else value


def judge_answers(
    task: Task,
    what: Words,
    cases: Sequence[Sequence[Any]],
    got: Sequence[Any],
    right: Answer,
    mistakes: Mapping[str, Sequence[Answer]],
    near: float = TOLERANCE,
) -> Iterator[Judgement]:
    """A Finding for each case. A mistake is known if one of its wrong functions gives every answer. near: by what share
    numbers may differ."""
    known = [key for key, several in mistakes.items() if any(is_mistake(wrong, cases, got, near) for wrong in several)]
    for case, answer in zip(cases, got, strict=True):
        due = right(*case)
        if is_same_answer(due, answer, near):
            yield Judgement(ok=True, message=what)
            continue
        says = CALL.format(call_text(task, case), what)
        shown, given = display_pair(due, answer)
        yield expect_equal(says, shown, given, mistakes=dict.fromkeys(known, given))


def question_task(
    key: str,
    signature: str,
    what: Words | Sequence[Words],
    right: Answer,
    wrong: Mapping[str, Sequence[Answer]],
    *,
    near: float = TOLERANCE,
    **more: Any,
) -> Task:
    """A task of such questions, in one process. what: an answer, or each of its values, judged apart. near: by what
    share numbers may differ. more: make, hints and the like, as a Task has them."""

    def judge(world: JudgedWorld) -> Iterator[Judgement]:
        if isinstance(what, Words):
            yield from judge_answers(task, what, world.inputs[0]["cases"], world.outputs[0], right, wrong, near)
            return
        ways = [
            {name: [_of(place, one) for one in several] for name, several in wrong.items()}
            for place in range(len(what))
        ]
        columns = [(said, _of(place, right), ways[place]) for place, said in enumerate(what)]
        yield from judge_several_answers(task, LISTED.join(what), columns, world, near)

    more = {"run_submission": run_questions, "world_sizes": (1,), "runs_on": "process"} | more
    task = Task(key=key, signature=signature, judge=judge, **more)
    return task


def _of(place: int, answer: Answer) -> Answer:
    return lambda *case: answer(*case)[place]


def judge_several_answers(
    task: Task,
    every: Words,
    columns: Sequence[tuple[Words, Answer, Mapping[str, Sequence[Answer]]]],
    world: JudgedWorld,
    near: float = TOLERANCE,
) -> Iterator[Judgement]:
    """The same of a function that returns several values. every: what they are; columns: of each, as above."""
    cases, answers, count = world.inputs[0]["cases"], world.outputs[0], len(columns)
    odd = [one for one in answers if not (isinstance(one, list) and len(one) == count)]
    shown = shortened(odd[0]) if odd else ""
    yield expect(
        not odd,
        f"it returns {shown}, expected {count} values: {every.en}",
        f"返回了 {shown}，应返回 {count} 个值：{every.zh}",
    )
    if odd:
        return
    for column, (what, right, wrong) in enumerate(columns):
        yield from judge_answers(task, what, cases, [one[column] for one in answers], right, wrong, near)


def is_mistake(wrong: Answer, cases: Sequence[Sequence[Any]], got: Sequence[Any], near: float = TOLERANCE) -> bool:
    return all(is_same_answer(wrong(*case), answer, near) for case, answer in zip(cases, got, strict=True))


def is_same_answer(right: Any, got: Any, near: float = TOLERANCE) -> bool:
    """Equal, floats but for rounding; a tensor of one number counts as that number."""
    right, got = simplified(right), simplified(got)
    if isinstance(right, list) and isinstance(got, list):
        return len(right) == len(got) and all(is_same_answer(*pair, near) for pair in zip(right, got, strict=True))
    if is_number(right) and is_number(got):
        return math.isclose(right, got, rel_tol=near, abs_tol=1e-9)
    return type(right) is type(got) and right == got


def simplified(value: Any) -> Any:
    """Numbers as Python's, tuples as lists, 3.0 as 3."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, list | tuple):
        return [simplified(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def display_pair(right: Any, got: Any) -> tuple[Any, Any]:
    """As a person reads them: six digits, where these tell the two apart."""
    values = simplified(right), simplified(got)
    short = [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
    return tuple(short) if short[0] != short[1] else values


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shortened(value: Any, room: int = 90) -> str:
    text = repr(value)
    return text if len(text) <= room else text[: room - 2] + " …"
