"""What the labs' tests expect of known mistakes: none gives what the right way or another mistake gives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from helpers.grading import task_of
from helpers.grading.cases import Case
from helpers.grading.task import JudgedWorld, TaskRun


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


def each(right: Any, mistakes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Pairs of a key and a value: the right one, and those of each mistake, which may have several."""
    several = {key: one if isinstance(one, Sequence) else [one] for key, one in mistakes.items()}
    return [("right", right), *((key, one) for key, ones in several.items() for one in ones)]


def assert_told_apart(given: Iterable[tuple[str, Any]], alike: Callable[[Any, Any], bool]) -> None:
    """given: (key, value). Values that are alike must have the same key."""
    seen: list[tuple[str, Any]] = []
    for key, value in given:
        others = {other for other, theirs in seen if alike(value, theirs)} - {key}
        assert not others, f"{key} gives what {others} gives"
        seen.append((key, value))


def world_of(key: str, size: int, seed: int = 0, case: Case | None = None) -> JudgedWorld:
    """What the judge has of the inputs of a case, the plain one if none is given, before anybody answered."""
    inputs = task_of(key).inputs(seed, size, case)
    return JudgedWorld.of(
        inputs, TaskRun(outputs=[[None]] * size, events=[[[]]] * size, marks=[[[]]] * size, calls=[[[]]] * size)
    )
