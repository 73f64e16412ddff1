"""Finds the labs and their tasks: labs.yaml lists them, and each lab has a folder with its tasks and judges.

A task is a function that a learner writes and a check judges. A lab and a task are imported only when they are asked
for, so that a check loads no other lab. Nothing here imports torch, and what a lab forbids is read without it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.learner.words import Book, book

if TYPE_CHECKING:
    from helpers.grading.task import Task

FOLDER = Path(__file__).parent
_private: dict[str, Lab] = {}  # a teacher's own labs, in this process alone; each replaces the public lab of its number


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab. number: "03". topic: "ddp", which is also the name of its folder.

    tasks: from easy to hard. "gradients.AVERAGE" is the Task called AVERAGE in gradients.py of its folder, whose key is
    "03.average"; a teacher's own Task stands here itself.
    in_chapter: tasks that only the chapter asks, with `exercise`, without points and rubric. A chapter without a lab
    has a record with these alone. So has the number "wb", whose tasks are asked by drills for the whiteboard.
    forbids: modules and objects of torch that no answer may name or import, because the learner is to write them.
    forbids_instances: those classes among them of which no answer may make an instance, however it got hold of them.
    """

    number: str
    topic: str
    tasks: Sequence[str | Task]
    in_chapter: Sequence[str] = ()
    forbids: Sequence[str] = ()
    forbids_instances: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of its notebooks, "03_ddp"."""
        return f"{self.number}_{self.topic}"

    @property
    def hints(self) -> Book:
        """What learners are told about mistakes, from the folder's hints.yaml: the more specific ones stand first."""
        return book("hints", FOLDER / self.topic)

    @property
    def messages(self) -> Book:
        """What its judges say besides hints, from the folder's messages.yaml: the names of values, and sentences."""
        return book("messages", FOLDER / self.topic)


@functools.cache
def public_labs() -> dict[str, Lab]:
    """The labs of labs.yaml by their numbers."""
    import yaml  # 20 ms, which an import of this module should not cost

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    records = yaml.load((FOLDER / "labs.yaml").read_text(encoding="utf-8"), loader)
    return {number: Lab(number=number, **fields) for number, fields in records.items()}


def labs() -> list[str]:
    """The numbers of the labs that have checks, such as "01" and "03"."""
    return [number for number in chapters_with_tasks() if lab_of(number).tasks]


def chapters_with_tasks() -> list[str]:
    """The numbers of the chapters that have any task, in a lab or in the chapter alone."""
    return sorted(public_labs().keys() | _private.keys())


def lab_of(number: str) -> Lab:
    """The record of lab or chapter "03". Raises ValueError for one that is not there."""
    known = public_labs() | _private
    if number not in known:
        raise ValueError(f"there is no lab {number!r} with checks: there are {', '.join(labs())}.")
    return known[number]


def add_private_tasks(number: str, tasks: Iterable[Task]) -> None:
    """Give lab "03" these tasks in this process; each replaces the public task that has its key."""
    lab = lab_of(number) if number in labs() else Lab(number=number, topic="private", tasks=())
    all_tasks = (tasks_of(number) if lab.tasks else {}) | {task.key: task for task in tasks}
    _private[number] = dataclasses.replace(lab, tasks=tuple(all_tasks.values()))


def tasks_of(number: str) -> dict[str, Task]:
    """The tasks of lab "03" by their keys, from easy to hard. Raises ValueError for a lab that is not there."""
    lab = lab_of(number)
    return {_key_of(lab, task): _imported(lab, task) for task in lab.tasks}


def exercises_of(number: str) -> dict[str, Task]:
    """The tasks that only the chapter "03" asks. Raises ValueError for a chapter that has no task at all."""
    lab = lab_of(number)
    return {_key_of(lab, task): _imported(lab, task) for task in lab.in_chapter}


def keys_of(number: str) -> list[str]:
    """The keys of all tasks of lab and chapter "03", of which none is imported for this."""
    return list(_listed(lab_of(number)))


def task_of(key: str) -> Task:
    """The task called "03.average". Raises ValueError, with the keys there are, for another."""
    lab = lab_of(str(key).partition(".")[0])
    listed = _listed(lab)
    if key not in listed:
        raise ValueError(f"there is no task {key!r}: there are {', '.join(listed)}.")
    return _imported(lab, listed[key])


def _listed(lab: Lab) -> dict[str, str | Task]:
    """All tasks in the lab's lists by their keys."""
    return {_key_of(lab, task): task for task in (*lab.tasks, *lab.in_chapter)}


def _key_of(lab: Lab, task: str | Task) -> str:
    """The key of a task in the lab's lists: that of "gradients.AVERAGE" is "03.average"."""
    return f"{lab.number}.{task.partition('.')[2].lower()}" if isinstance(task, str) else task.key


def _imported(lab: Lab, task: str | Task) -> Task:
    """A task in the lab's lists, such as "gradients.AVERAGE", as a Task."""
    if not isinstance(task, str):
        return task
    file, _, variable = task.partition(".")
    return getattr(importlib.import_module(f"helpers.grading.{lab.topic}.{file}"), variable)


def similar_name(task: Task, names: Iterable[str]) -> str:
    """The name that a renamed answer to the task may have: the one most like the task's; "" if none is like it.

    A name that is more like that of another task of the lab does not count.
    """
    names = set(names)
    if not names:
        return ""  # without an import of the lab's other tasks
    task_names = [one.name for one in tasks_of(task.key.partition(".")[0]).values()]
    candidates = difflib.get_close_matches(task.name, sorted(names - set(task_names)))  # the most similar first
    return next((name for name in candidates if difflib.get_close_matches(name, task_names, n=1) == [task.name]), "")
