"""Reads what learners might hand in: mutants from the labs' mistakes.yaml, right answers from tests/right_answers/.

A mutant is one mistake, planted in a right answer; helpers/grading/mistakes.py says how the files are written. An entry
of right_answers/NN_topic.yaml has `task`, `name`, `says` (what it does another way) and `text`: imports and the
function.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers.classroom import labs
from helpers.classroom.isolation import ROOT
from helpers.grading import chapters_with_tasks, exercises_of, lab_of, tasks_of
from helpers.grading.mistakes import mistakes_file, read_mistakes
from helpers.interview.drills import drills
from tests.grading import chapters

TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An answer to a task. write: gives its cell. hint, who: of a mutant, what it must be told and who hands it in.

    alone: it needs nothing of the lab's other cells, since it answers an exercise of a chapter.
    """

    lab: str
    name: str
    task: str
    write: Callable[[], str]
    hint: str = ""
    who: str = ""
    alone: bool = False

    @functools.cached_property
    def text(self) -> str:
        return self.write()

    def names(self) -> dict[str, Any]:
        """What a notebook knows below this cell: its functions travel to the ranks by value, as a cell's do."""
        module = types.ModuleType(f"submission_{self.name}")
        above = [text for task, text in cells_of(self.lab).items() if task != self.task and not self.alone]
        sys.modules[module.__name__] = module  # as a kernel has __main__: a dataclass looks its annotations up there
        try:
            exec(compile("\n\n\n".join([*above, self.text]), name_of(self), "exec"), vars(module))
        finally:
            del sys.modules[module.__name__]
        return vars(module)


def name_of(submission: Submission) -> str:
    """'03_ddp/sum_for_mean'."""
    return f"{submission.lab}/{submission.name}"


@functools.cache
def cells_of(lab: str) -> dict[str, str]:
    """Of the lab's solution, the first cell ("") and the one of each task, without nbgrader's marks; {} for no lab."""
    if not (ROOT / "solutions" / f"{lab}.ipynb").exists():
        return {}
    sources = {name: labs.source_of(cell) for name, _, cell in labs.graded_cells(ROOT / "solutions" / f"{lab}.ipynb")}
    homes = {"imports": ""} | labs.load_lab(lab).task_of_cell
    return {task: re.sub(r"(?m)^ *### (BEGIN|END) SOLUTION\n?", "", sources[cell]) for cell, task in homes.items()}


def solutions(lab: str) -> Iterator[Submission]:
    """What the lab's own solution says, task by task."""
    for task, text in cells_of(lab).items():
        if task:
            yield Submission(lab=lab, name=f"solution of {task}", task=task, write=lambda text=text: text)


def folded_answer(exercise: chapters.Exercise) -> Submission:
    """The answer that is folded below an exercise of a chapter."""
    name, write = f"folded {exercise.key}", lambda: exercise.text
    return Submission(lab=exercise.chapter, name=name, task=exercise.key, write=write, alone=True)


def answer_to(lab: str, task: str) -> str:
    """The lab's own, the one that is folded in the chapter, or a drill's."""
    drilled = {one.key: one.answer for one in drills() if one.answer}
    return (drilled | chapters.answers(lab) | cells_of(lab))[task]


def right_answers(lab: str) -> Iterator[Submission]:
    """The answers in other styles than the lab's solution, from tests/right_answers/."""
    for entry in read_answers(TESTS / "right_answers" / f"{lab}.yaml"):
        task, alone = entry["task"], entry["task"] not in cells_of(lab)
        write = functools.partial(str, entry["text"])
        yield Submission(lab=lab, name=entry["name"], task=task, write=write, who=entry["says"], alone=alone)


def read_answers(path: Path) -> list[dict[str, str]]:
    """The entries of a file of answers: task, name, says and text each."""
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def mutants(lab: str) -> Iterator[Submission]:
    """The mistakes of lab "03_ddp", or of a chapter."""
    for key, known in read_mistakes(mistakes_file(lab[:2])).items():
        for one in known.mistakes:
            write = functools.partial("\n\n".join, [known.imports, one.text])
            own = {"hint": one.hint, "who": one.who, "alone": key in exercises_of(lab[:2])}
            yield Submission(lab=lab, name=one.name, task=key, write=write, **own)


LABS = [lab_of(number).name for number in chapters_with_tasks() if mistakes_file(number).exists()]
# What a class hands in: a lab, its tasks. What only a chapter asks is not among them.
HANDED_IN = {lab: frozenset(tasks_of(lab[:2])) for lab in labs.lab_names()}
RIGHT_ANSWERS = [answer for lab in LABS for answer in right_answers(lab)]
MUTANTS = [mutant for lab in LABS for mutant in mutants(lab)]
