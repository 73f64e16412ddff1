"""What measurements say. 11.efficiency: speed-up, efficiency and the serial share. 11.fit: a law and its outlier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit import answers
from helpers.grading.scaling import LAB
from helpers.learner.words import Words

Counts, Times = Sequence[int], Sequence[float]

# -- 11.efficiency ---------------------------------------------------------------------------------------------------
Study = Callable[[Counts, Times], tuple[list[float], list[float], float]]


def make_efficiency(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The text's own, from one GPU, without a serial part, not in order; then any."""
    jobs = [([2, 4, 8], 4, 16), ([1, 2, 4], 1, 8), ([4, 8, 16], 0, 64), ([16, 4, 64, 8], 3, 128)]
    for first in (1, 2, 3, 8):
        gpus = sorted({first * rng.integer(2, 20) for _ in range(rng.integer(1, 3))} | {first, 21 * first})
        jobs.append((gpus if first != 3 else gpus[1:] + gpus[:1], rng.integer(1, 9) / 4, 8 * rng.integer(2, 40)))
    return [{"cases": [[gpus, [a + b / n for n in gpus]] for gpus, a, b in jobs]}]


def of_two(few: int, slow: float, many: int, fast: float) -> float:
    """The serial share of T = a + b / n, from the smallest count and the largest."""
    b = (slow - fast) / (1 / few - 1 / many)
    return 1 - b / (slow - b / few + b)


def of_one(faster: float, more: float) -> float:
    """The same from one speed-up, which holds where the other measurement was made on one GPU."""
    return (1 / faster - 1 / more) / (1 - 1 / more)


def studied(
    first: str = "smallest", ideal: Callable[[int, int], float] = lambda n, n0: n, serial: Callable = of_two
) -> Study:
    """first: what all is held against. ideal: the speed-up on n GPUs of which nothing is lost."""

    def study(gpus: Counts, seconds: Times) -> tuple[list[float], list[float], float]:
        rows = sorted(zip(gpus, seconds, strict=True))
        slow = rows[0][1]
        n0, t0 = {"smallest": rows[0], "one": (1, slow), "listed": (gpus[0], seconds[0])}[first]
        speedups = [n0 * t0 / t for t in seconds]
        efficiencies = [s / ideal(n, n0) for s, n in zip(speedups, gpus, strict=True)]
        return speedups, efficiencies, serial(*rows[0], *rows[-1])

    return study


WRONG_STUDIES: dict[str, list[Study]] = {
    "first_taken_for_one": [studied("one")],
    "more_than_whole": [studied(ideal=lambda n, n0: n / n0)],
    "first_in_the_list": [studied("listed")],
    "serial_from_one_point": [
        studied(serial=lambda few, slow, many, fast: of_one(few * slow / fast, many)),
        studied(serial=lambda few, slow, many, fast: of_one(slow / fast, many)),
        studied(serial=lambda few, slow, many, fast: of_one(slow / fast, many / few)),
    ],
}
COLUMNS = (
    ("the list of speed-ups", "加速比列表"),
    ("the list of efficiencies", "效率列表"),
    ("the serial share", "串行占比"),
)
STUDIED, CALL = [Words(en=en, zh=zh) for en, zh in COLUMNS], "strong_scaling(gpus, seconds)"
EFFICIENCY = answers.question_task(
    "11.efficiency",
    CALL,
    STUDIED,
    studied(),
    WRONG_STUDIES,
    make_inputs=make_efficiency,
    hints=LAB.hints(*WRONG_STUDIES),
)

# -- 11.fit ----------------------------------------------------------------------------------------------------------
Law = tuple[float, float, float, int]
NOISE, CLEAR = 0.004, 9.0  # of a measurement; by what factor the sum of squares of every other choice is larger


def make_fit(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """In every second one the fit of all is furthest from a good measurement, which the doubled counts have at their
    ends. Of many even steps it is not: there the last one is the outlier, and the furthest as well."""
    cases: list[list[Any]] = []
    while len(cases) < 8:
        is_even = len(cases) % 4 == 0
        gpus = [8 * i for i in range(1, rng.integer(9, 11))] if is_even else [2**i for i in range(rng.integer(6, 8))]
        a, b, c = rng.integer(2, 8) / 4, rng.integer(20, 90), rng.integer(1, 6) / 100
        seconds = [(a + b / n + c * n) * (1 + NOISE * rng.integer(-100, 100) / 100) for n in gpus]
        odd = len(gpus) - 1 if is_even else rng.one_of(0, 1, 2, 3, len(gpus) - 1)
        seconds[odd] *= rng.one_of(0.6, 1.5, 1.8)
        case = [gpus, [round(t, 4) for t in seconds]]
        least, following = sorted(left[0] for left in leaving_out(*case))[:2]
        is_misled = misled(*case)[-1] != gpus[odd]
        if following > CLEAR * least and fitted(*case)[-1] == gpus[odd] and is_misled == bool(len(cases) % 2):
            cases.append(case)
    return [{"cases": cases}]


def least_squares(gpus: Counts, seconds: Times, terms: int = 3) -> tuple[float, list[float], list[float]]:
    """The sum of squares that is left, a, b and c, and how far each measurement is from the law."""
    n, t = np.array(gpus, dtype=float), np.array(seconds)
    columns = np.stack([n**0, 1 / n, n][:terms], axis=1)  # (measurements, terms)
    found = np.linalg.lstsq(columns, t, rcond=None)[0]
    far = np.abs(t - columns @ found)
    return float((far**2).sum()), [*found.tolist(), 0.0][:3], far.tolist()


def leaving_out(gpus: Counts, seconds: Times, terms: int = 3) -> list[tuple[float, list[float], int]]:
    """Without each measurement: sum of squares, constants, and the count that is left out."""
    rows = list(zip(gpus, seconds, strict=True))
    return [(*least_squares(*zip(*(row for row in rows if row[0] != n), strict=True), terms)[:2], n) for n in gpus]


def fitted(gpus: Counts, seconds: Times, terms: int = 3) -> Law:
    _, constants, odd = min(leaving_out(gpus, seconds, terms))
    return (*constants, odd)


def misled(gpus: Counts, seconds: Times) -> Law:
    """Without the measurement from which the fit of all is furthest away."""
    far = least_squares(gpus, seconds)[2]
    _, constants, odd = leaving_out(gpus, seconds)[far.index(max(far))]
    return (*constants, odd)


WRONG_LAWS: dict[str, list[Callable[..., Law]]] = {
    "through_the_outlier": [lambda gpus, seconds: (*least_squares(gpus, seconds)[1], fitted(gpus, seconds)[-1])],
    "furthest_is_left_out": [misled],
    "growing_term_forgotten": [lambda gpus, seconds: fitted(gpus, seconds, terms=2)],
}
ODD = Words(en="the outlier's number of GPUs", zh="异常测量的 GPU 数")
FITTED = [*(Words(en=name, zh=f" {name} ") for name in "abc"), ODD]
FIT = answers.question_task(
    "11.fit",
    "fit_law(gpus, seconds)",
    FITTED,
    fitted,
    WRONG_LAWS,
    near=1e-6,
    make_inputs=make_fit,
    hints=LAB.hints(*WRONG_LAWS),
)
