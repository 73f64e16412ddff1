"""Removes every answer from the process that runs a learner's code, and lists the files that its sandbox hides.

A task is a record of three functions: `make_inputs` draws the inputs, `run_submission` calls the learner's function on
each rank, and `judge` compares the outputs with the right ones. All three stand in one file, and the judge imports the
right answers. A sandbox needs `run_submission` alone. Before it starts, `strip_answers` therefore removes from the
process everything but `run_submission` and what that uses. Only the modules that allowed.py lists stay as they are, so
a module that nobody has listed is removed. `hidden_paths` applies the same list to the files. The judge runs in the
grader's process, which keeps everything.

A closed module is a module of this course that allowed.py does not list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import helpers
from helpers.classroom.allowed import (
    ALLOWED_IN_ANSWERS,
    has_modules_in_sandbox,
    is_in_sandbox,
    is_package_in_sandbox,
    is_within,
)
from helpers.grading import registry
from helpers.grading.task import Task


# -- files -------------------------------------------------------------------------------------------------------------
def hidden_paths(package: Path = Path(helpers.__file__).parent) -> list[str]:
    """The files and folders of the course that no sandbox may see, such as "helpers/parallel": all but allowed modules.

    A folder in which only some modules are allowed is listed entry by entry. Its `__pycache__` is hidden, because
    compiled copies of hidden modules lie there.
    """
    return [path.relative_to(package.parent).as_posix() for path in _hidden_below(package, package.name)]


def _hidden_below(folder: Path, package: str) -> Iterator[Path]:
    """The hidden entries below `folder`, whose dotted name is `package`."""
    for path in sorted(folder.iterdir()):
        module = package if path.name == "__init__.py" else f"{package}.{path.stem}"
        if path.is_dir() and not is_package_in_sandbox(module) and has_modules_in_sandbox(module):
            yield from _hidden_below(path, module)
        elif not (is_in_sandbox(module) and (path.is_dir() or path.suffix == ".py")):
            yield path


# -- memory ------------------------------------------------------------------------------------------------------------
def strip_answers(lab: str) -> None:
    """Remove from this process, for good, every module of the course that ranks of lab "03" do not need.

    Of the modules that hold this lab's tasks, what `run_submission` uses stays; of the tasks, `run_submission` and
    plain data such as their key.
    """
    tasks = list(registry.tasks_of(lab).values())
    closed = {name: module for name, module in sys.modules.items() if _is_closed(name)}
    used = names_used_by([task.run_submission for task in tasks], closed)  # pairs (module, name)
    for name, module in closed.items():
        # The names of the tasks themselves stay, because ranks look a task up in its module.
        used |= {(name, key) for key, value in vars(module).items() if any(value is task for task in tasks)}
    # Of the closed modules, those stay that hold a used name, and the packages above any module that stays.
    needed = _with_parent_packages({*(sys.modules.keys() - closed.keys()), *(home for home, _ in used)})
    forgotten = {name for name in closed if name not in needed or is_within(name, _packages_of_other_labs(lab))}
    for name, module in closed.items():
        _remove_unused_names(module, {key for home, key in used if home == name})
    for task in tasks:
        _remove_judge(task)
    _forget(forgotten)
    _replace_checks()


def _is_closed(module: str) -> bool:
    return is_within(module, ("helpers",)) and not is_in_sandbox(module)


def _with_parent_packages(modules: Iterable[str]) -> set[str]:
    """The modules with all packages above them: for "a.b.c" also "a.b" and "a"."""
    paths = (name.split(".") for name in modules)
    return {".".join(parts[:length]) for parts in paths for length in range(1, len(parts) + 1)}


def _packages_of_other_labs(lab: str) -> tuple[str, ...]:
    others = (other for other in registry.chapters_with_tasks() if other != lab)  # a lab has the number of its chapter
    return tuple(f"helpers.grading.{registry.lab_of(other).topic}" for other in others)


def _remove_unused_names(module: types.ModuleType, used: set[str]) -> None:
    """Delete every name of a module except `used`, its submodules, and the record that describes a lab."""
    for key, value in list(vars(module).items()):
        is_submodule = isinstance(value, types.ModuleType) and value.__name__ == f"{module.__name__}.{key}"
        is_lab = isinstance(value, registry.Lab)
        if not (key in used or key.startswith("__") or is_submodule or is_lab):
            delattr(module, key)


def _remove_judge(task: Task) -> None:
    """Leave a task its `run_submission` and its fields of plain data; every other field becomes None."""
    for field in dataclasses.fields(task):
        value = getattr(task, field.name)
        if value is not task.run_submission and not isinstance(value, str | int | float | tuple):
            object.__setattr__(task, field.name, None)  # the record is frozen


def _forget(forgotten: set[str]) -> None:
    """Remove these modules, everything in them, and each function and class of theirs that another module imported."""
    for name in forgotten:
        package, _, key = name.rpartition(".")
        if package in sys.modules:
            vars(sys.modules[package]).pop(key, None)
        vars(sys.modules.pop(name)).clear()  # whoever holds the module itself finds nothing in it
    for name, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()) if is_within(name, ("helpers",)) else ():
            if isinstance(value, types.FunctionType | type) and value.__module__ in forgotten:
                delattr(module, key)


def _replace_checks() -> None:
    """Put functions that do nothing in place of those that a notebook imports from the grader, such as `check`."""
    for name in ALLOWED_IN_ANSWERS:
        package, _, key = name.rpartition(".")
        if package in sys.modules and name not in sys.modules:  # a package in this list stays what it is
            setattr(sys.modules[package], key, _do_nothing)


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for `check` in a learner's cell, since only the judge's process can run a check."""


# -- what a function uses --------------------------------------------------------------------------------------------
def names_used_by(functions: Iterable[Any], modules: dict[str, types.ModuleType]) -> set[tuple[str, str]]:
    """All pairs (module, name) of `modules` that these functions may use, judged by the names in their code.

    What a used name stands for is searched in the same way. Where a function uses a module, as in `wire.send`, its code
    has both names, so all of its names are looked up in that module as well.
    """
    used: set[tuple[str, str]] = set()
    waiting, seen = list(functions), set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for function in functions_of(value):
            names = set(names_in_code(function.__code__))
            homes = [function.__globals__.get("__name__", "")]  # modules in which to look; it grows in the loop
            for home in homes:
                for name in names & vars(modules[home]).keys() if home in modules else ():
                    value = vars(modules[home])[name]
                    used.add((home, name))
                    if isinstance(value, types.ModuleType) and value.__name__ not in homes:
                        homes.append(value.__name__)
                    waiting.append(value)
            waiting += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            waiting += closure_values(function)
    return used


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions in a value: in a class also the functions of its bases, in a container the ones of its items."""
    if isinstance(value, functools.partial):
        yield from functions_of(value.func)
    elif isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        yield from (one for part in parts for one in functions_of(part))
    elif isinstance(value, Task):
        yield from functions_of(value.run_submission)  # not its judge, which holds the right answers
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
        for base in value.__mro__[:-1]:  # the class itself first; the last one is `object`
            if base.__module__.startswith("helpers"):
                parts = [part for part in vars(base).values() if not isinstance(part, type)]
                yield from (one for part in parts for one in functions_of(part))


def names_in_code(code: types.CodeType) -> Iterator[str]:
    """The global names and attributes that a function's code mentions, also in functions inside it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_in_code(part)


def closure_values(function: types.FunctionType) -> Iterator[Any]:
    """The values that a function has closed over."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the cell is empty: the variable is not set yet
            yield cell.cell_contents
