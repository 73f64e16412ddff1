"""Finds the labs and their tasks: each lab's folder holds one record, its LAB, with its tasks and what it forbids.

A task is a function that a learner writes and a check judges. It is imported only when it is asked for. So nothing here
imports torch, and what a lab forbids is read without it.
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

from helpers.learner.words import book
from helpers.learner.words.text import Book

if TYPE_CHECKING:
    from helpers.grading.task import Task

# Parts of torch that several labs forbid, each under its public and its private name.
FSDP = ("torch.distributed.fsdp", "torch.distributed._composable")
DTENSOR = ("torch.distributed.tensor", "torch.distributed._tensor")
_private: dict[str, Lab] = {}  # a teacher's own labs, in this process alone; each replaces the public lab of its number


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab. number: "03". topic: "ddp", which is also the name of its folder.

    tasks: from easy to hard. "gradients.AVERAGE" is AVERAGE in gradients.py of its folder, imported when it is asked
    for; a teacher's own Task stands here itself.
    in_chapter: tasks that only the chapter asks, with `exercise`, without points and rubric. A chapter without a lab
    has a record with these alone. So has the number "wb", whose tasks are asked by drills for the whiteboard.
    forbids: modules and objects of torch that no answer may name or import, because the learner is to write them.
    forbids_instances: those classes among them of which no answer may make an instance, however it got hold of them.
    """

    number: str
    topic: str
    tasks: tuple[str | Task, ...]
    in_chapter: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    forbids_instances: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its notebooks, "03_ddp"."""
        return f"{self.number}_{self.topic}"

    @property
    def hints(self) -> Book:
        """What learners are told about mistakes, from the folder's hints.yaml: the more specific ones stand first."""
        return book("hints", Path(__file__).parent / self.topic)

    @property
    def messages(self) -> Book:
        """What its judges say besides hints, from the folder's messages.yaml: the names of values, and sentences."""
        return book("messages", Path(__file__).parent / self.topic)


def labs() -> list[str]:
    """The numbers of the labs that have checks, such as "01" and "03"."""
    return sorted(number for number, lab in _known().items() if lab.tasks)


def chapters_with_tasks() -> list[str]:
    """The numbers of the chapters that have any task, in a lab or in the chapter alone."""
    return sorted(_known())


def _known() -> dict[str, Lab]:
    """All labs and chapters with tasks, by their number."""
    return {**_found(), **_private}


def lab_of(number: str) -> Lab:
    """The record of lab or chapter "03". Raises ValueError for one that is not there."""
    known = _known()
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
    tasks = [_imported(lab.topic, task) if isinstance(task, str) else task for task in lab.tasks]
    return {task.key: task for task in tasks}


def exercises_of(number: str) -> dict[str, Task]:
    """The tasks that only the chapter "03" asks. Raises ValueError for a chapter that has no task at all."""
    lab = lab_of(number)
    return {task.key: task for task in (_imported(lab.topic, name) for name in lab.in_chapter)}


def _imported(topic: str, name: str) -> Task:
    """The task "gradients.AVERAGE" of the lab with this topic."""
    file, _, variable = name.partition(".")
    return getattr(importlib.import_module(f"helpers.grading.{topic}.{file}"), variable)


def task_of(key: str) -> Task:
    """The task called "03.average". Raises ValueError, with the keys there are, for another."""
    number = str(key).partition(".")[0]
    tasks = tasks_of(number)
    if key not in tasks:  # most tasks are a lab's, and the chapter's own need not be imported for those
        tasks |= exercises_of(number)
    if key not in tasks:
        raise ValueError(f"there is no task {key!r}: there are {', '.join(tasks)}.")
    return tasks[key]


def similar_name(task: Task, names: Iterable[str]) -> str:
    """The name that a renamed answer to the task may have: the one most like the task's; "" if none is like it.

    A name that is more like that of another task of the lab does not count.
    """
    task_names = [one.name for one in tasks_of(task.key.partition(".")[0]).values()]
    candidates = difflib.get_close_matches(task.name, sorted(set(names) - set(task_names)))  # the most similar first
    return next((name for name in candidates if difflib.get_close_matches(name, task_names, n=1) == [task.name]), "")


@functools.cache
def _found() -> dict[str, Lab]:
    """The LAB of each folder beside this file that holds one, by its number."""
    package = importlib.import_module("helpers.grading")
    folders = [module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg]
    modules = [importlib.import_module(f"helpers.grading.{name}") for name in folders]
    return {module.LAB.number: module.LAB for module in modules if hasattr(module, "LAB")}
