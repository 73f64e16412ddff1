"""Judges 11.efficiency and 11.fit, in which the learner's function reads times measured on several numbers of GPUs.

11.efficiency asks for speed-ups, efficiencies and the serial share, which is the part of the work that more GPUs do not
speed up. 11.fit asks for the law T(n) = a + b / n + c n of a step's seconds on n GPUs, and for the one measurement that
is an outlier. The function is called in one process with drawn measurements. A mistake is named only if its function
gives every answer.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `task_with_reasons` builds the Task, which calls the
learner's function with each case and compares the answers with those of the right function. Where one differs, a
`reason_of_…` says how the right one comes about. A mistake is a wrong solution that learners often write. Each table
`WRONG_…` maps the key of its hint in hints.yaml to functions that contain the mistake. `Words` is a text in English and
Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from helpers.grading.cases import CaseGenerator
from helpers.grading.scaling import LAB
from helpers.grading.scaling.reasons import listed, short, task_with_reasons
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml

Counts, Times = Sequence[int], Sequence[float]  # numbers of GPUs, and the seconds of a step on each

# -- 11.efficiency ---------------------------------------------------------------------------------------------------
# From measurements to the speed-up and the efficiency of each, and the serial share.
ScalingStudy = Callable[[Counts, Times], tuple[list[float], list[float], float]]


def make_efficiency(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Times a + b / n on n GPUs for eight jobs, each (numbers of GPUs, a, b).

    The first four are the lab text's own example, one that starts from one GPU, one without a serial part, and one that
    is not sorted. The others are drawn, and one of those is not sorted either.
    """
    jobs = [([2, 4, 8], 4, 16), ([1, 2, 4], 1, 8), ([4, 8, 16], 0, 64), ([16, 4, 64, 8], 3, 128)]
    for first in (1, 2, 3, 8):  # the fewest GPUs of a job; the most are 21 times as many, above all that are drawn
        gpus = sorted({first * rng.integer(2, 20) for _ in range(rng.integer(1, 3))} | {first, 21 * first})
        if first == 3:
            gpus = gpus[1:] + gpus[:1]  # not sorted: the fewest GPUs come last
        jobs.append((gpus, rng.integer(1, 9) / 4, 8 * rng.integer(2, 40)))
    return [{"cases": [[gpus, [a + b / n for n in gpus]] for gpus, a, b in jobs]}]


def law_of_two(few: int, slow: float, many: int, fast: float) -> tuple[float, float]:
    """a and b of T(n) = a + b / n, from the times on the fewest and on the most GPUs.

    few, many: the numbers of GPUs. slow, fast: the seconds on them.
    """
    b = (slow - fast) / (1 / few - 1 / many)
    return slow - b / few, b


def serial_from_two(*measured: float) -> float:
    """The serial share a / (a + b), from the arguments of `law_of_two`."""
    a, b = law_of_two(*measured)
    return a / (a + b)


def serial_from_one(speedup: float, factor: float) -> float:
    """The serial share from the speed-up on `factor` GPUs, which is right only if it is relative to one GPU."""
    return (1 / speedup - 1 / factor) / (1 - 1 / factor)


def scaling_study(
    baseline: str = "smallest", ideal: Callable[[int, int], float] = lambda n, n0: n, serial: Callable = serial_from_two
) -> ScalingStudy:
    """The right function, or with other arguments a wrong one.

    baseline: the measurement to which the others are compared: on the fewest GPUs ("smallest"), the first in the list
    ("listed"), or the smallest as if it had been made on one GPU ("one"). ideal: the speed-up on n GPUs without any
    loss, if the baseline has n0. serial: the serial share, from the first and the last measurement, with the arguments
    of `serial_from_two`.
    """

    def study(gpus: Counts, seconds: Times) -> tuple[list[float], list[float], float]:
        rows = sorted(zip(gpus, seconds, strict=True))  # pairs (GPUs, seconds), the fewest GPUs first
        slow = rows[0][1]
        n0, t0 = {"smallest": rows[0], "one": (1, slow), "listed": (gpus[0], seconds[0])}[baseline]
        speedups = [n0 * t0 / t for t in seconds]
        efficiencies = [s / ideal(n, n0) for s, n in zip(speedups, gpus, strict=True)]
        return speedups, efficiencies, serial(*rows[0], *rows[-1])

    return study


WRONG_STUDIES: dict[str, list[ScalingStudy]] = {
    "first_taken_for_one": [scaling_study("one")],
    # The ideal speed-up is taken to be n / n0, but here speed-ups start at n0, so efficiencies exceed 1.
    "more_than_whole": [scaling_study(ideal=lambda n, n0: n / n0)],
    "first_in_the_list": [scaling_study("listed")],
    # From the speed-up, which starts at the smallest number of GPUs, or from the plain ratio of the times.
    "serial_from_one_point": [
        scaling_study(serial=lambda few, slow, many, fast: serial_from_one(few * slow / fast, many)),
        scaling_study(serial=lambda few, slow, many, fast: serial_from_one(slow / fast, many)),
        scaling_study(serial=lambda few, slow, many, fast: serial_from_one(slow / fast, many / few)),
    ],
}


def reason_of_study(index: int, got: Any, gpus: Counts, seconds: Times) -> Words:
    """Why the speed-ups, the efficiencies or the serial share are what they are."""
    (n0, t0), last = min(zip(gpus, seconds, strict=True)), max(zip(gpus, seconds, strict=True))
    values = [
        (n0, short(t0)),
        (listed(scaling_study()(gpus, seconds)[0]), listed(gpus)),
        map(short, law_of_two(n0, t0, *last)),
    ]
    return words[f"why_study.{index}"].format(*values[index])


# The arguments of task_with_reasons: the reason, the key, the signature, how a sentence names each value, the right
# function, the wrong functions.
EFFICIENCY = task_with_reasons(
    reason_of_study,
    "11.efficiency",
    "strong_scaling(gpus, seconds)",
    [words["speed_ups"], words["efficiencies"], words["serial_share"]],
    scaling_study(),
    WRONG_STUDIES,
    make_inputs=make_efficiency,
)

# -- 11.fit ----------------------------------------------------------------------------------------------------------
Law = tuple[float, float, float, int]  # a, b and c, and the number of GPUs of the outlier
NOISE = 0.004  # relative, in every measurement
# The outlier is clear if leaving out any other measurement leaves a sum of squares that is so many times larger.
CLEAR = 9.0


def make_fit(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Eight series of measurements with one outlier each.

    A series is drawn again until it is clear which measurement is the outlier. In every second series a fit through all
    measurements misses some other measurement by most ("misleading"), so an answer that leaves that one out is wrong.
    This can happen where the numbers of GPUs double from one measurement to the next. In two of the other series they
    are evenly spaced instead ("even"), and the last measurement is the outlier.
    """
    cases: list[list[Any]] = []
    while len(cases) < 8:
        is_even = len(cases) % 4 == 0
        # Evenly spaced (8, 16, 24, …), or doubled (1, 2, 4, …).
        gpus = [8 * i for i in range(1, rng.integer(9, 11))] if is_even else [2**i for i in range(rng.integer(6, 8))]
        a, b, c = rng.integer(2, 8) / 4, rng.integer(20, 90), rng.integer(1, 6) / 100
        seconds = [(a + b / n + c * n) * (1 + NOISE * rng.integer(-100, 100) / 100) for n in gpus]
        outlier = len(gpus) - 1 if is_even else rng.one_of(0, 1, 2, 3, len(gpus) - 1)
        seconds[outlier] *= rng.one_of(0.6, 1.5, 1.8)
        case = [gpus, [round(t, 4) for t in seconds]]
        least, second_least = sorted(squares for squares, _, _ in leave_one_out(*case))[:2]
        is_misleading = law_without_furthest(*case)[-1] != gpus[outlier]
        is_clear = second_least > CLEAR * least and fitted_law(*case)[-1] == gpus[outlier]
        must_mislead = len(cases) % 2 == 1
        if is_clear and is_misleading == must_mislead:
            cases.append(case)
    return [{"cases": cases}]


def least_squares(gpus: Counts, seconds: Times, num_terms: int = 3) -> tuple[float, list[float], list[float]]:
    """Fits a + b / n + c n to all measurements; with two terms c is 0.

    Returns the sum of squares that is left, the constants a, b and c, and the distance of each measurement from the
    law.
    """
    n, t = np.array(gpus, dtype=float), np.array(seconds)
    columns = np.stack([n**0, 1 / n, n][:num_terms], axis=1)  # (measurements, terms)
    constants = np.linalg.lstsq(columns, t, rcond=None)[0]
    distances = np.abs(t - columns @ constants)
    a, b, c = [*constants.tolist(), 0.0][:3]  # the 0.0 is for a c that is not fitted
    return float((distances**2).sum()), [a, b, c], distances.tolist()


def leave_one_out(gpus: Counts, seconds: Times, num_terms: int = 3) -> list[tuple[float, list[float], int]]:
    """A fit without each measurement: the sum of squares, the constants, and the number of GPUs that was left out."""
    rows, fits = list(zip(gpus, seconds, strict=True)), []
    for left_out in gpus:
        others = zip(*(row for row in rows if row[0] != left_out), strict=True)
        squares, constants, _ = least_squares(*others, num_terms)
        fits.append((squares, constants, left_out))
    return fits


def fitted_law(gpus: Counts, seconds: Times, num_terms: int = 3) -> Law:
    """The right law: the outlier is the measurement without which the fit is best."""
    _, constants, outlier = min(leave_one_out(gpus, seconds, num_terms))
    return (*constants, outlier)


def law_without_furthest(gpus: Counts, seconds: Times) -> Law:
    """The mistake: the outlier is the measurement that a fit through all of them misses by most."""
    distances = least_squares(gpus, seconds)[2]
    _, constants, furthest = leave_one_out(gpus, seconds)[distances.index(max(distances))]
    return (*constants, furthest)


WRONG_LAWS: dict[str, list[Callable[..., Law]]] = {
    "through_the_outlier": [lambda gpus, seconds: (*least_squares(gpus, seconds)[1], fitted_law(gpus, seconds)[-1])],
    "furthest_is_left_out": [law_without_furthest],
    "growing_term_forgotten": [lambda gpus, seconds: fitted_law(gpus, seconds, num_terms=2)],
}


def reason_of_law(index: int, got: Any, gpus: Counts, seconds: Times) -> Words:
    """How small the sum of squares is without the outlier and without any other measurement, and the fitted law."""
    (least, law, outlier), (second_least, _, _), *_ = sorted(leave_one_out(gpus, seconds))
    return words["why_law"].format(outlier, f"{least:.2g}", f"{second_least:.2g}", *map(short, law))


FIT = task_with_reasons(
    reason_of_law,
    "11.fit",
    "fit_law(gpus, seconds)",
    [*(Words(en=name, zh=f" {name} ") for name in "abc"), words["outlier"]],
    fitted_law,
    WRONG_LAWS,
    tolerance=1e-6,  # relative; larger than usual, since another way to fit rounds differently
    make_inputs=make_fit,
)
