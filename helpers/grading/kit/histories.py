"""Compares a training run of several steps with the right one.

A history is what such a run leaves behind: a list of steps, each of which maps names to numbers, texts and tensors, as
in {"scale": 1024.0, "weights 0": tensor}. The judges of labs 04 and 08 compute the right history. `Words`
is a text in English and Chinese, and `words[…]` is one of values.yaml.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.plain_data import as_number
from helpers.grading.task import Judgement
from helpers.learner.words import Words, book

words = book("values")
History = Sequence[Mapping[str, Any]]  # for each step its values by name


# -- judging ---------------------------------------------------------------------------------------------------------
def judge_history(
    right: History, got: Any, *, notes: Sequence[Words] = (), rank: int | None = None
) -> Iterator[Judgement]:
    """One Judgement per value, up to the first step that is wrong, since the later steps follow from it.

    got: the learner's history. notes: one per step, added to the name of each value of that step.
    """
    is_history = isinstance(got, list) and len(got) == len(right) and all(isinstance(step, Mapping) for step in got)
    yield expect(is_history, words["steps_missing"], rank=rank)
    if not is_history:
        return
    steps = list(zip(right, got, strict=True))
    first_wrong = next((index for index, pair in enumerate(steps) if not _is_right_step(*pair)), len(steps))
    for number, (right_step, learners_step) in enumerate(steps[: first_wrong + 1], 1):
        for name, value in right_step.items():
            yield compare_value(value_name(name, number, notes), value, learners_step.get(name), rank)


def compare_value(name: Words, right: Any, got: Any, rank: int | None = None) -> Judgement:
    """Compares one value: tensors with the course's tolerance, numbers also with a tensor of one element."""
    if isinstance(right, Tensor):
        return expect_tensor(name, right, got, rank=rank)
    return expect_equal(name, right, as_number(got) if isinstance(right, float) else got, rank=rank)


def _is_right_step(right: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    """Whether every value of this step is right. value_name only needs some step, for a sentence that is not shown."""
    return all(compare_value(value_name(name, 1), value, got.get(name)).ok for name, value in right.items())


# -- making histories ------------------------------------------------------------------------------------------------
def named_copies(kind: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors, as {"weights 0": tensor, …} for the kind "weights". A history's step can hold them."""
    return {f"{kind} {i}": tensor.detach().clone() for i, tensor in enumerate(tensors)}


def run_to_end(run: Generator[None, None, Any]) -> Any:
    """The return value of a generator that yields between its steps.

    A task's `run_submission` is such a generator, so that the grader can run two cases in turns. A judge runs the right
    answer alone, to its end.
    """
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value


# -- the names of values ---------------------------------------------------------------------------------------------
def value_name(name: str, step: int, notes: Sequence[Words] = ()) -> Words:
    """What a sentence calls the value "weights 0" of a step, followed by the note of that step.

    step: counted from 1. values.yaml has a text for each kind of value, here "weights".
    """
    kind, _, number = name.partition(" ")
    text = words[f"after_step.{kind}"].format(number, step)
    note = notes[step - 1] if notes else Words.of("")
    # In Chinese the space behind the name goes away where a note in full-width brackets follows.
    return Words(en=text.en + note.en, zh=text.zh.rstrip() + note.zh if note.zh else text.zh)


def overflow_notes(overflows: Sequence[Sequence[int] | bool]) -> list[Words]:
    """For each step a note that lists the steps so far in which a gradient overflowed.

    overflows: for each step, whether one did, or the list of the ranks on which one did. A step without overflow gets
    the note of the step before it, or "" as long as there was none.
    """
    en, zh, notes = [], [], []  # the steps with an overflow so far, in each language, and the notes
    for step, ranks in enumerate(overflows, 1):
        if ranks:
            numbers = [str(rank) for rank in ranks] if isinstance(ranks, Sequence) else []
            plural = "s" if len(numbers) > 1 else ""
            en.append(f"step {step}" + (f" on rank{plural} {' and '.join(numbers)}" if numbers else ""))
            zh.append(f"第 {step} 步" + (f" rank {'、'.join(numbers)}" if numbers else ""))
        note = Words(en=f" (overflow in {', '.join(en)})", zh=f"（{'，'.join(zh)}溢出）")
        notes.append(note if en else Words.of(""))
    return notes
