"""The sentence for a time, a rate or a count that cannot be."""

from __future__ import annotations

from collections.abc import Callable


def above_zero(**values: float) -> None:
    """ValueError that names the first value which is no number above 0."""
    _hold(values, "above 0 (times in seconds)", lambda value: value > 0)


def not_negative(**values: float) -> None:
    """ValueError that names the first value which is no number of 0 or more."""
    _hold(values, "0 or more (times in seconds)", lambda value: value >= 0)


def whole(**values: int) -> None:
    """ValueError that names the first value which is no whole number of 1 or more."""
    _hold(values, "a whole number of 1 or more", lambda value: isinstance(value, int) and value >= 1)


def _hold(values: dict[str, float], expected: str, holds: Callable[[float], bool]) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
            raise ValueError(f"{name} is {value!r}, but it must be {expected}")
