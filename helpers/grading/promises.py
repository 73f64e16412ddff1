"""What every task promises its caller alike: arguments that stay as they are, results with memory of their own."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.grading.cases import Case
from helpers.grading.task import JudgedWorld, Judgement, Task
from helpers.learner.words import Words, book

words = book("promises")
AGAIN = words["again"]


def judge(task: Task, world: JudgedWorld) -> Iterator[Judgement]:
    """A Finding a rank for each promise of the task: of the first call that breaks it."""
    for rank, calls in enumerate(world.calls):
        for field, says in (("changed", words["changed"]), ("shared", words["shared"])):
            broken = next((str(call[field][0]) for call in calls if call[field]), "")
            yield Judgement(ok=not broken, message=says.format(broken), rank=rank)


def special(case: Case, plain: Case) -> Words:
    """What is special about the case, for the end of a sentence's beginning: " (even sizes)"."""
    text = case.words(plain)
    return words["special"].format(text) if text.en else Words.of("")


def given(world: JudgedWorld, plain: Case) -> Words:
    """The same with the call in a line, if there was just one."""
    texts = {str(call["call"]) for calls in world.calls for call in calls}
    is_one = len(texts) == 1 and all(len(calls) <= 1 for calls in world.calls)
    parts = [part for part in (world.case.words(plain), Words.of(texts.pop() if is_one else "")) if part.en]
    return words["special"].format(words["then"].join(parts)) if parts else Words.of("")
