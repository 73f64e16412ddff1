"""The least squares of plain Python give what numpy gives."""

import subprocess
import sys

import numpy as np
import pytest

from helpers.predict.least_squares import least_squares, normal_equations, solve


@pytest.mark.parametrize("coefficients", [1, 2, 6])
def test_fits_and_solutions_are_numpys(coefficients):
    draw = np.random.default_rng(coefficients)
    rows, targets, weights = draw.normal(size=(40, coefficients)), draw.normal(size=40), draw.uniform(0.1, 1, size=40)
    by_numpy = np.linalg.lstsq(rows, targets, rcond=None)[0]
    assert least_squares(rows.tolist(), targets.tolist()) == pytest.approx(by_numpy, rel=1e-10)
    roots = np.sqrt(weights)
    by_numpy = np.linalg.lstsq(rows * roots[:, None], targets * roots, rcond=None)[0]
    weighted = normal_equations(rows.tolist(), targets.tolist(), weights.tolist())
    assert solve(*weighted) == pytest.approx(by_numpy, rel=1e-10)


def test_a_zero_on_the_diagonal_is_no_obstacle():
    assert solve([[0.0, 2.0], [4.0, 1.0]], [6.0, 7.0]) == [1.0, 3.0]


def test_calculators_and_explorers_load_neither_numpy_nor_msgspec():
    code = (
        "import sys, helpers.predict.scaling, helpers.predict.time.calibrate, helpers.widgets\n"
        "print(*sys.modules.keys() & {'numpy', 'msgspec'})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
