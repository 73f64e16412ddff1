"""Measures how far a guess is from the truth, and how well a learner guesses by kind of question and by chapter.

A chapter asks for a guess before it shows a result, and declares the true answer (the "truth"). A guess has a form: a
"number", a range "between" two numbers, a "choice", or an "order" of things. It has a kind, which says what it is
about: "memory", "traffic", "time" or "count". A number or a range is off by a factor. The typical factor of several
guesses is their geometric median, the median of the logarithms, so that 2 times too high and 2 times too low are
equally far. An answer that was given after the result had been opened does not count. `helpers.widgets` shows the
typical factors, and the quiz first asks about subjects that were guessed poorly. The widgets that show a guess beside
the truth also take from here `format_answer`, which writes any answer as text, because both must be written alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from helpers.learner.guesses.questions import KINDS, Declaration, DeclaredAnswer, all_declarations
from helpers.learner.guesses.storage import StoredGuess, stored_guesses
from helpers.learner.progress import FilePath

TOLERANCE = 1e-6  # relative: within this, a number that a notebook computes by a formula equals the declared one
NEAR = 0.01  # relative: a guess within this is right
# A guess that is off by a factor of 2 is far off, and a wrong choice counts as off by it. The 1e-9 is for factors that
# come out slightly below 2 only because of rounding.
FAR = 2.0 * (1 - 1e-9)


# -- one answer ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far an answer is from the truth."""

    is_right: bool  # the right choice or order, a number within 1 %, or a range that contains the truth
    ratio: float | None = None  # the number, or the geometric middle of the range, divided by the truth; else None


def compare(form: str, value: object, truth: DeclaredAnswer | None) -> Deviation | None:
    """How far an answer of this form is from the truth; None without a truth or without an answer."""
    if value is None or truth is None:
        return None
    if form in ("choice", "order"):
        return Deviation(is_right=_plain(value) == _plain(truth))
    if form == "between":
        low, high = value
        return Deviation(is_right=low <= truth <= high, ratio=_ratio(geometric_middle(low, high), truth))
    return Deviation(is_right=abs(value - truth) <= NEAR * abs(truth), ratio=_ratio(value, truth))


def geometric_middle(low: float, high: float) -> float:
    """The geometric middle of a range, or its arithmetic middle where an end is not positive."""
    return math.sqrt(low * high) if low > 0 and high > 0 else (low + high) / 2


def is_declared_answer(predicted: object, truth: DeclaredAnswer, within: float = TOLERANCE) -> bool:
    """Whether what a notebook predicts, by a formula, or measures is the declared answer.

    A number must be within this relative tolerance, anything else equal.
    """
    if isinstance(truth, float):
        try:
            return math.isclose(float(predicted), truth, rel_tol=within, abs_tol=0.0)
        except (TypeError, ValueError):
            return False
    return _plain(predicted) == _plain(truth)


def format_answer(value: object, unit: str = "") -> str:
    """An answer as text: a number "7 B" or "64.19 MB", a range "5 – 8 ms", an order "a, b, c", a text as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        if len(value) == 2 and all(isinstance(one, int | float) for one in value):
            return f"{format_answer(value[0])} – {format_answer(value[1], unit)}"
        return ", ".join(map(str, value))
    return f"{_digits(float(value))} {unit}".rstrip()


def _digits(value: float) -> str:
    """A number as `format_answer` writes it: a whole one with commas, another one with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e15 and math.isclose(value, round(value), rel_tol=1e-9):
        return f"{round(value):,}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.4g}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))  # so that four digits are significant
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ratio(value: float, truth: float) -> float | None:
    """Value divided by truth; None where that is not positive, since it has no logarithm then."""
    return value / truth if truth and value / truth > 0 else None


def _plain(value: object) -> object:
    """A list or tuple as a tuple of texts, so that the two can be compared; other values as they are."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else value


# -- all answers -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class GuessCalibration:
    """How good a group of guesses is."""

    num_numbers: int = 0  # how many are numbers or ranges
    times: float | None = None  # the geometric median of guess / truth of these; None without any
    num_chosen: int = 0  # how many are choices and orders
    num_right: int = 0  # how many of the choices and orders are right
    far: float = 1.0  # the typical factor by which all of them are off, 1 or more, whether too high or too low


@dataclass(frozen=True, kw_only=True)
class JudgedGuess:
    """One guess with its deviation from the truth."""

    guess: StoredGuess
    deviation: Deviation

    @property
    def chapter(self) -> str:
        """The chapter's number, "08"."""
        return self.guess.key.partition(".")[0]

    @property
    def factor(self) -> float:
        """How far it is off, as a factor of 1 or more."""
        if self.deviation.ratio is None:
            return 1.0 if self.deviation.is_right else FAR
        return max(self.deviation.ratio, 1 / self.deviation.ratio)


def judged_guesses(path: FilePath = None) -> tuple[JudgedGuess, ...]:
    """The guesses whose truth is declared, in the order in which they were made; none where nothing can be read."""
    try:
        guesses, known = stored_guesses(path), all_declarations()
    except (OSError, RuntimeError, ValueError):  # no file, no home, a declaration that is written wrongly
        return ()
    return tuple(
        JudgedGuess(guess=guess, deviation=compare(guess.form, guess.value, known[guess.key].answer))
        for guess in guesses.values()
        if _is_comparable(guess, known)
    )


def by_kind(path: FilePath = None) -> dict[str, GuessCalibration]:
    """How well each kind of question was guessed; kinds without a guess are left out."""
    every = judged_guesses(path)
    groups = {kind: [one for one in every if one.guess.kind == kind] for kind in KINDS}
    return {kind: _calibration(group) for kind, group in groups.items() if group}


def poorly_guessed_chapters(path: FilePath = None) -> dict[str, float]:
    """Maps each chapter, "08", to the typical factor by which its guesses are off, where that is 2 or more."""
    every = judged_guesses(path)
    groups = {one.chapter: [other for other in every if other.chapter == one.chapter] for one in every}
    return {chapter: far for chapter, group in groups.items() if (far := _calibration(group).far) >= FAR}


def poorly_guessed_kinds(path: FilePath = None) -> dict[str, float]:
    """Maps each kind to the typical factor by which its guesses are off, where that is 2 or more."""
    return {kind: one.far for kind, one in by_kind(path).items() if one.far >= FAR}


def geometric_median(ratios: Iterable[float]) -> float:
    """The median on a logarithmic scale. Raises ValueError without ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    if not logarithms:
        raise ValueError("a median needs at least one ratio")
    return math.exp(statistics.median(logarithms))


def _calibration(group: list[JudgedGuess]) -> GuessCalibration:
    """The calibration of a group that is not empty."""
    ratios = [one.deviation.ratio for one in group if one.deviation.ratio is not None]
    chosen = [one for one in group if one.guess.form in ("choice", "order")]
    return GuessCalibration(
        num_numbers=len(ratios), times=geometric_median(ratios) if ratios else None, num_chosen=len(chosen),
        num_right=sum(one.deviation.is_right for one in chosen), far=geometric_median(one.factor for one in group),
    )  # fmt: skip


def _is_comparable(guess: StoredGuess, known: dict[str, Declaration]) -> bool:
    """Whether there is a truth of the same form. An older version of the course may have stored another form."""
    if guess.value is None or guess.is_late or guess.key not in known:
        return False
    types = {"choice": str, "order": tuple}
    return isinstance(known[guess.key].answer, types.get(guess.form, float))
