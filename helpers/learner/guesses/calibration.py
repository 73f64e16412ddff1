"""How well somebody guesses: each first answer beside its declared truth, by kind and by chapter.

The typical factor is the geometric median: the median of the logarithms, so that 2 times high and 2 times low are
equally far. An answer that was given after the result had been opened counts nowhere.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.learner.guesses.answers import all_declared
from helpers.learner.guesses.far import Off, compare
from helpers.learner.guesses.notes import Kept, kept
from helpers.learner.guesses.question import KINDS

FAR = 2.0 * (1 - 1e-9)  # the factor from which on a guess is far off; a choice that is not right counts as this


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Guesses of one kind. times: the geometric median of guess over truth, None without numbers. num_right of
    num_chosen: choices and orders. far: the typical factor, high or low alike."""

    num_numbers: int = 0
    times: float | None = None
    num_chosen: int = 0
    num_right: int = 0
    far: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One guess with what came of it."""

    kept: Kept
    off: Off

    @property
    def chapter(self) -> str:
        return self.kept.key.partition(".")[0]

    @property
    def factor(self) -> float:
        """How far, as a factor of 1 or more."""
        if self.off.ratio is None:
            return 1.0 if self.off.is_right else FAR
        return max(self.off.ratio, 1 / self.off.ratio)


def judged(path: str | os.PathLike | None = None) -> tuple[Judged, ...]:
    """The guesses whose truth is declared, in the order in which they were made; none where nothing can be read."""
    try:
        answers, known = kept(path), all_declared()
    except (OSError, RuntimeError, ValueError):  # no file, no home, a declaration that is written wrongly
        return ()
    return tuple(_judged(one, known[one.key].answer) for one in answers.values() if _is_comparable(one, known))


def by_kind(path: str | os.PathLike | None = None) -> dict[str, Calibration]:
    """Kind -> how well its numbers and choices were guessed; kinds without a guess are left out."""
    every = judged(path)
    groups = {kind: [one for one in every if one.kept.kind == kind] for kind in KINDS}
    return {kind: _calibration(group) for kind, group in groups.items() if group}


def far_chapters(path: str | os.PathLike | None = None) -> dict[str, float]:
    """Chapter, "08" -> the typical factor of its guesses, where that is 2 or more."""
    every = judged(path)
    groups = {one.chapter: [other for other in every if other.chapter == one.chapter] for one in every}
    return {chapter: far for chapter, group in groups.items() if (far := _calibration(group).far) >= FAR}


def far_kinds(path: str | os.PathLike | None = None) -> dict[str, float]:
    """Kind -> the typical factor of its guesses, where that is 2 or more."""
    return {kind: one.far for kind, one in by_kind(path).items() if one.far >= FAR}


def geometric_median(ratios: Iterable[float]) -> float:
    """The median on a logarithmic scale. ValueError without ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    if not logarithms:
        raise ValueError("a median needs at least one ratio")
    return math.exp(statistics.median(logarithms))


def _calibration(group: list[Judged]) -> Calibration:
    ratios = [one.off.ratio for one in group if one.off.ratio is not None]
    chosen = [one for one in group if one.kept.form in ("choice", "order")]
    return Calibration(
        num_numbers=len(ratios),
        times=geometric_median(ratios) if ratios else None,
        num_chosen=len(chosen),
        num_right=sum(one.off.is_right for one in chosen),
        far=geometric_median(one.factor for one in group),
    )


def _is_comparable(one: Kept, known: dict) -> bool:
    """A file of an older course may hold an answer in another form than is asked for today."""
    if one.value is None or one.is_late or one.key not in known:
        return False
    truth = known[one.key].answer
    kinds = {"choice": str, "order": tuple}
    return isinstance(truth, kinds.get(one.form, float))


def _judged(one: Kept, truth: object) -> Judged:
    return Judged(kept=one, off=compare(one.form, one.value, truth))
