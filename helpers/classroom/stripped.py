"""Takes every answer out of the process that runs a learner's code, and says which files its sandbox must not see.

The file of a task has `make_inputs`, `run_submission` and `judge` side by side, and judges import references. Before a
sandbox is entered, `strip` removes all of this from the process but `run_submission` and what it uses: from the tasks,
from the modules, and from sys.modules. Only the modules that `rules.is_in_sandbox` allows stay as they are, so a module
that nobody has listed is removed. `hidden_paths` applies the same list to the files. The judge is another process and
keeps everything.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import helpers
from helpers.classroom.rules import ALLOWED_IN_ANSWERS, MODULES_IN_SANDBOX, PACKAGES_IN_SANDBOX, is_in_sandbox, within
from helpers.grading import registry

# What ranks ask of a task; every other field of it is emptied.
FIELDS_IN_SANDBOX = frozenset(
    ("key", "signature", "run_submission", "world_sizes", "unit", "cpu_seconds", "seconds", "axes", "keeps", "fresh")
)


# -- files -------------------------------------------------------------------------------------------------------------
def hidden_paths(package: Path = Path(helpers.__file__).parent) -> list[str]:
    """The files and folders of the course, from "helpers" on, that no sandbox may see: all but the allowed modules.

    A folder in which some module is allowed is listed entry by entry, without its `__pycache__`, where compiled copies
    of hidden modules lie.
    """
    return [path.relative_to(package.parent).as_posix() for path in _hidden_below(package, package.name)]


def _hidden_below(folder: Path, package: str) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        module = package if path.name == "__init__.py" else f"{package}.{path.stem}"
        is_module = path.is_dir() or path.suffix == ".py"
        if path.is_dir() and _has_allowed_below(module) and not is_in_sandbox(f"{module}.anything"):
            yield from _hidden_below(path, module)
        elif not (is_module and is_in_sandbox(module)):
            yield path


def _has_allowed_below(package: str) -> bool:
    return any(within(module, (package,)) for module in (*MODULES_IN_SANDBOX, *PACKAGES_IN_SANDBOX))


# -- memory ------------------------------------------------------------------------------------------------------------
def strip(lab: str) -> None:
    """Leave what ranks need for lab "03", once and for all in this process."""
    tasks = list(registry.tasks_of(lab).values())
    closed = {name: one for name, one in sys.modules.items() if within(name, ("helpers",)) and not is_in_sandbox(name)}
    used = reached([task.run_submission for task in tasks], closed)
    for name, module in closed.items():
        used |= {(name, key) for key, value in vars(module).items() if any(value is task for task in tasks)}
    staying = _with_parents({*(sys.modules.keys() - closed.keys()), *(home for home, _ in used)})
    staying -= {name for name in closed if within(name, _other_labs(lab))}
    for name, module in closed.items():
        for key, value in list(vars(module).items()):
            is_submodule = isinstance(value, types.ModuleType) and value.__name__ == f"{name}.{key}"
            is_kept = key.startswith("__") or is_submodule or isinstance(value, registry.Lab) or (name, key) in used
            if not is_kept:
                delattr(module, key)
    for task in tasks:
        for field in dataclasses.fields(task):
            if field.name not in FIELDS_IN_SANDBOX:
                object.__setattr__(task, field.name, None)
    _forget([name for name in closed if name not in staying])
    _drop_references({name for name in closed if name not in staying})
    for name in ALLOWED_IN_ANSWERS:
        package, _, key = name.rpartition(".")
        if package in sys.modules and not isinstance(sys.modules.get(name), types.ModuleType):
            setattr(sys.modules[package], key, _does_nothing)


def _does_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands where a notebook expects `check`, which only the judge's process can run."""


def _with_parents(modules: Iterable[str]) -> set[str]:
    parts = (name.split(".") for name in modules)
    return {".".join(part[:length]) for part in parts for length in range(1, len(part) + 1)}


def _drop_references(forgotten: set[str]) -> None:
    """Remove from the modules that stay each function and class that was defined in a module that is gone."""
    for name, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()) if within(name, ("helpers",)) else ():
            if isinstance(value, types.FunctionType | type) and value.__module__ in forgotten:
                delattr(module, key)


def _other_labs(lab: str) -> tuple[str, ...]:
    others = (other for other in registry.chapters_with_tasks() if other != lab)
    return tuple(f"helpers.grading.{registry.lab_of(other).topic}" for other in others)


def _forget(names: list[str]) -> None:
    """Remove these modules and everything in them, whoever still holds them."""
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
