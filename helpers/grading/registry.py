"""Which labs there are, what each asks and what it forbids: a lab's folder here says so in one record, its LAB.

No torch: a task is imported when it is asked for, so a rule is read at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.learner.words import Words, book

if TYPE_CHECKING:
    from helpers.grading.task import Task

_private: dict[str, Lab] = {}  # a teacher's own, in this process alone; each replaces the public one of its number


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab. number: "03". topic: "ddp", which is the name of its folder, too.

    tasks: easy to hard. "gradients.AVERAGE" is AVERAGE of gradients.py in its folder, imported when it is asked for; a
    teacher's own task is given as it is.
    in_chapter: tasks that only the chapter asks, with `exercise`: no lab, no points, no rubric. A chapter without a lab
    has a record with these alone, and so has "wb", whose tasks are asked by drills.
    forbids: what torch has and the lab leaves to the learner: modules and objects that no answer may name or import.
    refuses: of these, classes of which no answer may make an instance, by whatever way it got hold of them.
    """

    number: str
    topic: str
    tasks: tuple[str | Task, ...]
    in_chapter: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    forbids_instances: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its notebooks, "03_ddp"."""
        return f"{self.number}_{self.topic}"

    def hints(self, *names: str) -> dict[str, Words]:
        """Known mistakes of a task, from the folder's hints.yaml, in which the more specific ones stand first."""
        return book("hints", Path(__file__).parent / self.topic).of(*names)


def labs() -> list[str]:
    """The numbers of the labs that have checks: "01", "03". A lab that is not written yet is left out."""
    return sorted(number for number, lab in _known().items() if lab.tasks)


def chapters_with_tasks() -> list[str]:
    """The numbers of the chapters that have a task at all, in a lab or in the chapter alone."""
    return sorted(_known())


def _known() -> dict[str, Lab]:
    return {**_found(), **_private}


def lab_of(number: str) -> Lab:
    """The record of lab or chapter "03". Raises ValueError for one that is not there."""
    known = _known()
    if number not in known:
        raise ValueError(f"there is no lab {number!r} with checks: there are {', '.join(labs())}.")
    return known[number]


def add_private_tasks(number: str, tasks: Iterable[Task]) -> None:
    """Give lab "03" these tasks in this process; each replaces the public one that has its key."""
    own = lab_of(number) if number in labs() else Lab(number=number, topic="private", tasks=())
    every = (tasks_of(number) if own.tasks else {}) | {task.key: task for task in tasks}
    _private[number] = dataclasses.replace(own, tasks=tuple(every.values()))


def tasks_of(lab: str) -> dict[str, Task]:
    """The tasks of a lab ("03"), easy to hard. Raises ValueError for a lab that is not there."""
    own = lab_of(lab)
    tasks = [_imported(own.topic, task) if isinstance(task, str) else task for task in own.tasks]
    return {task.key: task for task in tasks}


def exercises_of(number: str) -> dict[str, Task]:
    """The tasks that only the chapter "03" asks. Raises ValueError for a chapter that has no task at all."""
    own = lab_of(number)
    return {task.key: task for task in (_imported(own.topic, name) for name in own.in_chapter)}


def _imported(topic: str, name: str) -> Task:
    file, _, variable = name.partition(".")
    return getattr(importlib.import_module(f"helpers.grading.{topic}.{file}"), variable)


def task_of(key: str) -> Task:
    """The task called "03.average". Raises ValueError, with the keys there are, for another."""
    number = str(key).partition(".")[0]
    tasks = tasks_of(number)
    if key not in tasks:  # most are a lab's: the chapter's own are not imported for those
        tasks |= exercises_of(number)
    if key not in tasks:
        raise ValueError(f"there is no task {key!r}: there are {', '.join(tasks)}.")
    return tasks[key]


def similar_name(task: Task, names: Iterable[str]) -> str:
    """Of these names the one most like the task's, "" if none is: what a renamed answer may be called."""
    keys = [one.name for one in tasks_of(task.key.partition(".")[0]).values()]
    near = difflib.get_close_matches(task.name, sorted(set(names) - set(keys)))
    return next((name for name in near if difflib.get_close_matches(name, keys, n=1) == [task.name]), "")


@functools.cache
def _found() -> dict[str, Lab]:
    """The folders beside this file that hold a LAB, by its number."""
    package = importlib.import_module("helpers.grading")
    folders = [module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg]
    modules = [importlib.import_module(f"helpers.grading.{name}") for name in folders]
    return {module.LAB.number: module.LAB for module in modules if hasattr(module, "LAB")}
