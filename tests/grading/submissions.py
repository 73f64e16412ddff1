"""Reads what learners might hand in: mutants from tests/mutants/, right answers from tests/right_answers/.

A mutant is one mistake, planted in a right answer:

    03.average:                  # the task
      divided_twice:             # the name: the hint that it must get, or that hint and _more
        who: Whoever finds ReduceOp.AVG and keeps the division of the first attempt.
        edit: |
          - dist.all_reduce(parameter.grad)
          + dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)

Also: `hint: divided_twice`, where the name says more; `base: NAME`, where the lab's solution is not what is edited: a
right answer of the same lab, or a mutant above; and `text: |` instead of `edit`, where a whole cell is shorter.
tests/grading/edits.py says how edits are written. `imports` on top of a file is for what the lab's first cell lacks.
An entry of right_answers/NN_topic.yaml has `task`, `name`, `says` (what it does another way) and `text`: imports and
the function.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers.classroom import labs
from helpers.classroom.isolation import ROOT
from helpers.grading import exercises_of, tasks_of
from helpers.interview.bank_file import read_yaml
from helpers.interview.drills import drills
from tests.grading import chapters
from tests.grading.edits import edited

TESTS = Path(__file__).resolve().parent.parent
FIELDS = {"who", "hint", "base", "edit", "text"}


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


def mutants(path: Path) -> Iterator[Submission]:
    """Those of a lab's file. Raises ValueError with file and mutant for what is not as it should be."""
    document, lab = dict(read_yaml(path)), path.stem
    known = {answer.name: answer for answer in right_answers(lab)}
    imports = document.pop("imports", "")
    for task, entries in document.items():
        if task not in tasks_of(lab[:2]) | exercises_of(lab[:2]):
            raise ValueError(f"{path.name}: {task!r} is no task of this lab, and all else but `imports` is one")
        solution = Submission(lab=lab, name="solution", task=task, write=lambda task=task: answer_to(lab, task))
        for name, fields in entries.items():
            where = f"{path.name}, {fields.where}, {name}"
            check(fields, where, known)
            if name in known:
                raise ValueError(f"{where}: another answer of this lab has this name; choose a new one")
            write = functools.partial(written, fields, where, imports, known.get(fields.get("base"), solution))
            own = {"hint": fields.get("hint", name), "who": fields["who"], "alone": task in exercises_of(lab[:2])}
            known[name] = Submission(lab=lab, name=name, task=task, write=write, **own)
            yield known[name]


def check(fields: dict[str, str], where: str, known: Container[str]) -> None:
    """Raise ValueError for a field that is missing, too much, or names nothing."""
    if unknown := fields.keys() - FIELDS:
        raise ValueError(f"{where}: {min(unknown)!r} is no field of a mutant; there are {', '.join(sorted(FIELDS))}")
    if not fields.get("who") or ("edit" in fields) == ("text" in fields):
        raise ValueError(f"{where}: a mutant has `who`, and either `edit` or `text`")
    if "base" in fields and (fields["base"] not in known or "text" in fields):
        raise ValueError(f"{where}: `base` is {fields['base']!r}; name a right answer or a mutant above, to edit")


def written(fields: dict[str, str], where: str, imports: str, base: Submission) -> str:
    """The cell of a mutant. Raises ValueError with the mutant for an edit that does not fit."""
    if "text" in fields:
        return imports + fields["text"]
    try:
        return imports + edited(base.text, fields["edit"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


LABS = sorted(path.stem for path in (TESTS / "mutants").glob("*.yaml"))
# What a class hands in: a lab, its tasks. What only a chapter asks is not among them.
HANDED_IN = {lab: frozenset(tasks_of(lab[:2])) for lab in labs.lab_names()}
RIGHT_ANSWERS = [answer for lab in LABS for answer in right_answers(lab)]
MUTANTS = [mutant for lab in LABS for mutant in mutants(TESTS / "mutants" / f"{lab}.yaml")]
