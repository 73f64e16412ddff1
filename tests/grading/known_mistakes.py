"""What tests of the labs' judges share: many values in one item, and a world before anybody answered."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from helpers.grading import task_of
from helpers.grading.task import Case, JudgedWorld, TaskRun


def repeated(name: str, values: Iterable[Any]) -> Callable[[Callable], Callable]:
    """Like pytest.mark.parametrize, but all values are one item, which stops at the first that fails and names it."""
    values = tuple(values)

    def decorate(test: Callable) -> Callable:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run_each(**fixtures: Any) -> None:
            for value in values:
                try:
                    test(**fixtures, **{name: value})
                except Exception as error:
                    error.add_note(f"with {name} = {value!r}")
                    raise

        parameters = [one for one in signature.parameters.values() if one.name != name]
        run_each.__signature__ = signature.replace(parameters=parameters)
        return run_each

    return decorate


def world_of(key: str, size: int, seed: int = 0, case: Case | None = None) -> JudgedWorld:
    """What the judge has of the inputs of a case, the plain one if none is given, before anybody answered."""
    inputs = task_of(key).inputs(seed, size, case)
    nothing = [[[]]] * size
    return JudgedWorld.of(inputs, TaskRun(outputs=[[None]] * size, events=nothing, marks=nothing, calls=nothing))
