"""Judges 11.efficiency and 11.fit, in which the learner's function reads times measured on several numbers of GPUs.

11.efficiency asks for speed-ups, efficiencies and the serial share, which is the part of the work that more GPUs do not
speed up. 11.fit asks for the law T(n) = a + b / n + c n of a step's seconds on n GPUs, and for the one measurement that
is an outlier. The function is called in one process with drawn measurements.

How to read it. A question is the list of arguments of one call of the learner's function; `make_…` draws the questions
of a task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5, and returns them under "cases", where the Task looks
for them. A Task passes `world_size` to every such function, and these two ignore it. `question_task` builds the Task,
which calls the learner's function with each question and compares the answers with the answers of the right function.
Below the sentence about a wrong value, `rule_of_…` says how the right one comes about, with the numbers of the
question. `Words` is a text in English and Chinese.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from helpers.grading.kit.answers import question_task
from helpers.grading.scaling import LAB
from helpers.grading.tensor_cases import CaseGenerator
from helpers.learner.words import Words

words = LAB.messages  # the texts of messages.yaml

Counts, Times = Sequence[int], Sequence[float]  # numbers of GPUs, and the seconds of a step on each


# -- 11.efficiency ---------------------------------------------------------------------------------------------------
def make_efficiency(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Times a + b / n on n GPUs for eight jobs, each (numbers of GPUs, a, b).

    The first four are fixed. The others are drawn, and one of those is not sorted.
    """
    jobs = [
        ([2, 4, 8], 4, 16),  # the example of the lab's text
        ([1, 2], 1, 8),  # the fewest measurements
        ([4, 8, 16], 0, 64),  # no serial part
        ([16, 4, 64, 8], 3, 128),  # not sorted
    ]
    # first: the fewest GPUs of a job; the largest count is 21 × first; drawn ones are at most 20 × first.
    for first in (1, 2, 3, 8):
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


def strong_scaling(gpus: Counts, seconds: Times) -> tuple[list[float], list[float], float]:
    """The speed-up and the efficiency of each measurement, and the serial share."""
    first, last = min(zip(gpus, seconds, strict=True)), max(zip(gpus, seconds, strict=True))
    speedups = [first[0] * first[1] / t for t in seconds]
    a, b = law_of_two(*first, *last)
    return speedups, [speedup / n for speedup, n in zip(speedups, gpus, strict=True)], a / (a + b)


def rule_of_study(index: int, question: Sequence[Any], answer: Any) -> Words:
    """Why the speed-ups, the efficiencies or the serial share are what they are."""
    gpus, seconds = question
    first, last = min(zip(gpus, seconds, strict=True)), max(zip(gpus, seconds, strict=True))
    speedups = [f"{speedup:.6g}" for speedup in strong_scaling(gpus, seconds)[0]]
    values = (first, (speedups, gpus), law_of_two(*first, *last))  # what the text of each of the three rules needs
    return words[f"study_rule.{index}"].format(*values[index])


EFFICIENCY = question_task(
    "11.efficiency",
    "strong_scaling(gpus, seconds)",
    [words["speed_ups"], words["efficiencies"], words["serial_share"]],
    strong_scaling,
    rules=[functools.partial(rule_of_study, index) for index in range(3)],
    make_inputs=make_efficiency,
)

# -- 11.fit ----------------------------------------------------------------------------------------------------------
Law = tuple[float, float, float, int]  # a, b and c, and the number of GPUs of the outlier
NOISE = 0.004  # relative, in every measurement
# The outlier is clear if leaving out any other single measurement in its place would make the sum of squares that the
# fit leaves more than this many times larger.
CLEAR = 9.0


def make_fit(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Eight series of measurements with one outlier each, in any order.

    series          numbers of GPUs               a fit through all measurements
    0 and 4         evenly spaced: 8, 16, 24, …   misses the outlier by most, which is the measurement on most GPUs
    2 and 6         doubled: 1, 2, 4, …           misses the outlier by most
    1, 3, 5 and 7   doubled: 1, 2, 4, …           misses another measurement by most, so it is misleading

    In a misleading series an answer that takes the measurement which this fit misses by most is wrong. A series is
    drawn again until it is clear which measurement is the outlier.
    """
    questions: list[list[Any]] = []
    while len(questions) < 8:
        is_evenly_spaced = len(questions) % 4 == 0
        # Evenly spaced (8, 16, 24, …), or doubled (1, 2, 4, …).
        count = rng.integer(9, 11) - 1 if is_evenly_spaced else rng.integer(6, 8)
        gpus = [8 * (i + 1) if is_evenly_spaced else 2**i for i in range(count)]
        a, b, c = rng.integer(2, 8) / 4, rng.integer(20, 90), rng.integer(1, 6) / 100
        seconds = [(a + b / n + c * n) * (1 + NOISE * rng.integer(-100, 100) / 100) for n in gpus]
        outlier = len(gpus) - 1 if is_evenly_spaced else rng.one_of(0, 1, 2, 3, len(gpus) - 1)
        seconds[outlier] *= rng.one_of(0.6, 1.5, 1.8)
        question = [gpus, [round(t, 4) for t in seconds]]
        least, second_least = sorted(squares for squares, _, _ in leave_one_out(*question))[:2]
        is_misleading = furthest(*question) != gpus[outlier]
        is_clear = second_least > CLEAR * least and fitted_law(*question)[-1] == gpus[outlier]
        must_mislead = len(questions) % 2 == 1
        if is_clear and is_misleading == must_mislead:
            order = torch.randperm(len(gpus), generator=rng).tolist()  # the text promises no order
            questions.append([[values[i] for i in order] for values in question])
    return [{"cases": questions}]


def least_squares(gpus: Counts, seconds: Times) -> tuple[float, list[float], list[float]]:
    """Fits a + b / n + c n to all measurements.

    Returns the sum of squares that is left, the constants a, b and c, and the distance of each measurement from the
    law.
    """
    n, t = np.array(gpus, dtype=float), np.array(seconds)
    columns = np.stack([n**0, 1 / n, n], axis=1)  # (measurements, terms)
    constants = np.linalg.lstsq(columns, t, rcond=None)[0]
    distances = np.abs(t - columns @ constants)
    return float((distances**2).sum()), constants.tolist(), distances.tolist()


def leave_one_out(gpus: Counts, seconds: Times) -> list[tuple[float, list[float], int]]:
    """A fit without each measurement: the sum of squares, the constants, and the number of GPUs that was left out."""
    rows, fits = list(zip(gpus, seconds, strict=True)), []
    for left_out in gpus:
        others = zip(*(row for row in rows if row[0] != left_out), strict=True)
        squares, constants, _ = least_squares(*others)
        fits.append((squares, constants, left_out))
    return fits


def fitted_law(gpus: Counts, seconds: Times) -> Law:
    """The right law: the outlier is the measurement without which the fit is best."""
    _, constants, outlier = min(leave_one_out(gpus, seconds))
    return (*constants, outlier)


def furthest(gpus: Counts, seconds: Times) -> int:
    """The number of GPUs of the measurement that a fit through all of them misses by most."""
    distances = least_squares(gpus, seconds)[2]
    return gpus[distances.index(max(distances))]


def rule_of_law(question: Sequence[Any], answer: Any) -> Words:
    """How small the sum of squares is without the outlier and without any other measurement, and the fitted law."""
    (least, law, outlier), (second_least, _, _), *_ = sorted(leave_one_out(*question))
    return words["law_rule"].format(outlier, least, second_least, *law)


FIT = question_task(
    "11.fit",
    "fit_law(gpus, seconds)",
    [*(Words(en=name, zh=f" {name} ") for name in "abc"), words["outlier"]],
    fitted_law,
    rules=[rule_of_law] * 4,
    tolerance=1e-6,  # relative; larger than usual, since another way to fit rounds differently
    make_inputs=make_fit,
)
