"""The sentence for a time, a rate or a count that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isfinite


def above_zero(**values: float) -> None:
    """ValueError that names the first value which is no number above 0."""
    _hold(values, "above 0 (times in seconds)", lambda value: value > 0)


def not_negative(**values: float) -> None:
    """ValueError that names the first value which is no number of 0 or more."""
    _hold(values, "0 or more (times in seconds)", lambda value: value >= 0)


def whole(**values: int) -> None:
    """ValueError that names the first value which is no whole number of 1 or more."""
    _hold(values, "a whole number of 1 or more", lambda value: isinstance(value, int) and value >= 1)


def finite(**values: float) -> None:
    """ValueError that names the first value which has no end: what is played or counted through has to end."""
    _hold(values, "a finite number", isfinite)


def share(**values: float) -> None:
    """ValueError that names the first value which is no share of a whole."""
    _hold(values, "a share, from 0 to 1", lambda value: 0 <= value <= 1)


def _hold(values: dict[str, float], expected: str, holds: Callable[[float], bool]) -> None:
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError(f"{name} has more digits than a float can hold, but it must be {expected}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not holds(value):
            raise ValueError(f"{name} is {value!r}, but it must be {expected}")
