"""The sentence for a time, a rate or a count that cannot be."""

from __future__ import annotations

from math import isnan


def above_zero(**values: float) -> None:
    """ValueError that names the first value which is no number above 0."""
    for name, value in values.items():
        if not _number(value) or not value > 0:
            raise ValueError(f"{name} is {value!r}, but it must be above 0 (times in seconds)")


def not_negative(**values: float) -> None:
    """ValueError that names the first value which is no number of 0 or more."""
    for name, value in values.items():
        if not _number(value) or not value >= 0:
            raise ValueError(f"{name} is {value!r}, but it must be 0 or more (times in seconds)")


def whole(**values: int) -> None:
    """ValueError that names the first value which is no whole number of 1 or more."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number of 1 or more")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)
