"""Where learners' code runs, the right answers are not there: of the checks only `act` stays, and what it uses.

A check's file has `make`, `act` and `judge` side by side, and judges import references. Before a sandbox is entered all
but the first is taken out of this process: out of the tasks, out of the modules, out of sys.modules. The files are
hidden by the sandbox (`HIDDEN`). The judge is another process and has all of it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from helpers.classroom.rules import REFERENCES, within
from helpers.grading import registry
from helpers.grading.task import Task

# Files and folders that hold answers; no rank needs to read them.
HIDDEN = ("helpers/parallel", "helpers/collectives", "helpers/schedules", "helpers/predict", "helpers/compose")
HIDDEN += (
    "helpers/quantities/costs.py",
    "helpers/workloads",
    "helpers/interview",
    "helpers/__pycache__",
    "helpers/grading/kit",
)
HIDDEN += ("helpers/commands/zoo",)
HIDDEN += tuple(f"helpers/grading/{registry.lab_of(number).topic}" for number in registry.rooms())
KIT = "helpers.grading.kit"


def strip(lab: str) -> None:
    """Leave what ranks need for lab "03", once and for all in this process."""
    tasks = list(registry.tasks_of(lab).values())
    homes = {f"helpers.grading.{registry.lab_of(lab).topic}", KIT, *(task.act.__module__ for task in tasks)}
    modules = {name: module for name, module in sys.modules.items() if within(name, (*homes, *REFERENCES))}
    kept = reached([task.act for task in tasks], modules)
    for name, module in modules.items():
        for key, value in list(vars(module).items()):
            is_task = isinstance(value, Task) and any(value is task for task in tasks)
            if not (key.startswith("__") or is_task or isinstance(value, registry.Lab) or (name, key) in kept):
                delattr(module, key)
    for task in tasks:
        for field, nothing in (("make", None), ("judge", None), ("recognise", None), ("hints", {})):
            object.__setattr__(task, field, nothing)
    needed = {home for home, _ in kept}
    _forget([name for name in modules if within(name, REFERENCES) and name not in needed])
    _forget([name for name in sys.modules if within(name, _others(lab))])


def _others(lab: str) -> tuple[str, ...]:
    return tuple(f"helpers.grading.{registry.lab_of(other).topic}" for other in registry.rooms() if other != lab)


def _forget(names: list[str]) -> None:
    """Nothing of these modules is left, whoever has them still."""
    for name in names:
        home, _, key = name.rpartition(".")
        if home in sys.modules:
            vars(sys.modules[home]).pop(key, None)
        vars(sys.modules.pop(name)).clear()


# -- what a function uses --------------------------------------------------------------------------------------------
def reached(functions: Iterable[Any], modules: dict[str, types.ModuleType]) -> set[tuple[str, str]]:
    """(module, name) of all that these functions may use of `modules`, by the names in their code."""
    kept: set[tuple[str, str]] = set()
    waiting, seen = list(functions), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for function in functions_of(value):
            names = set(names_of(function.__code__))
            homes = [function.__globals__.get("__name__", "")]
            for home in homes:
                for name in names & vars(modules[home]).keys() if home in modules else ():
                    found = vars(modules[home])[name]
                    kept.add((home, name))
                    if isinstance(found, types.ModuleType):
                        homes += [found.__name__] if found.__name__ not in homes else []
                    waiting.append(found)
            waiting += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells_of(function)]
    return kept


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions that a value is made of: itself, the methods of a class and of its bases, what a partial calls."""
    if isinstance(value, functools.partial):
        yield from functions_of(value.func)
    elif isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        yield from (one for part in parts for one in functions_of(part))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (one for field in dataclasses.fields(value) for one in functions_of(getattr(value, field.name)))
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
        yield from functions_of(value.__func__)
    elif isinstance(value, property):
        yield from (one for part in (value.fget, value.fset) if part for one in functions_of(part))
    elif isinstance(value, types.FunctionType):
        yield value
        yield from functions_of(getattr(value, "__wrapped__", None))
    elif isinstance(value, type) and value.__module__.startswith("helpers"):
        for kind in value.__mro__[:-1]:
            if kind.__module__.startswith("helpers"):
                yield from (
                    one for part in vars(kind).values() if not isinstance(part, type) for one in functions_of(part)
                )


def names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_of(part)


def cells_of(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
