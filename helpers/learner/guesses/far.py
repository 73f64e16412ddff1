"""How far an answer is from the truth, and how numbers of any unit are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.learner.guesses.answers import Answer

TOLERANCE = 1e-6  # relative: a prediction that is computed is the declared number
NEAR = 0.01  # relative: a guess that is as near as this is right


@dataclass(frozen=True, kw_only=True)
class Off:
    """is_right: the choice, the order, the number within 1 %, or the truth inside the range. ratio: the number (of a
    range its geometric middle) over the truth; None where there is none."""

    is_right: bool
    ratio: float | None = None


def compare(form: str, value: object, truth: Answer | None) -> Off | None:
    """How far off; None without a truth or without an answer."""
    if value is None or truth is None:
        return None
    if form in ("choice", "order"):
        return Off(is_right=_plain(value) == _plain(truth))
    if form == "between":
        low, high = value
        return Off(is_right=low <= truth <= high, ratio=_ratio(middle(low, high), truth))
    return Off(is_right=abs(value - truth) <= NEAR * abs(truth), ratio=_ratio(value, truth))


def middle(low: float, high: float) -> float:
    """The geometric middle of a range; the arithmetic one where that is none."""
    return math.sqrt(low * high) if low > 0 and high > 0 else (low + high) / 2


def agrees(predicted: object, truth: Answer, within: float = TOLERANCE) -> bool:
    """Whether a prediction is the declared answer: within this share of a number, equal otherwise."""
    if isinstance(truth, float):
        try:
            return math.isclose(float(predicted), truth, rel_tol=within, abs_tol=0.0)
        except (TypeError, ValueError):
            return False
    return _plain(predicted) == _plain(truth)


def told(value: object, unit: str = "") -> str:
    """A number with its unit, "7 B" or "64.19 MB"; a range, "5 to 8 ms"; an order, "a, b, c"; a text as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        is_range = len(value) == 2 and all(isinstance(one, int | float) for one in value)
        return f"{told(value[0])} – {told(value[1], unit)}" if is_range else ", ".join(map(str, value))
    return f"{_digits(float(value))} {unit}".rstrip()


def _digits(value: float) -> str:
    """A whole number with commas, another with four digits that count."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e15 and math.isclose(value, round(value), rel_tol=1e-9):
        return f"{round(value):,}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.4g}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ratio(value: float, truth: float) -> float | None:
    return value / truth if truth and value / truth > 0 else None


def _plain(value: object) -> object:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else value
