"""Solves small systems of linear equations and fits a few coefficients by least squares, in plain Python.

The fits of scaling/ and of time/calibrate.py have two to six coefficients, for which numpy would take longer to import
than these functions take to run.
"""

from __future__ import annotations

from collections.abc import Sequence


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x with matrix @ x = right, by Gaussian elimination. matrix: (n, n), not singular. right: (n,)."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [value - factor * above for value, above in zip(rows[row], rows[column], strict=True)]
    x = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * x[column] for column in range(row + 1, size))
        x[row] = (rows[row][size] - known) / rows[row][row]
    return x


def normal_equations(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float] = ()
) -> tuple[list[list[float]], list[float]]:
    """The matrix and the right side whose solution is the (weighted) least squares fit of rows @ x = targets.

    rows: (measurements, coefficients). targets: (measurements,). weights: of the squared errors, 1 each by default.
    """
    weighted = list(zip(rows, targets, weights or [1] * len(rows), strict=True))
    size = range(len(rows[0]))
    matrix = [[sum(weight * row[i] * row[j] for row, _, weight in weighted) for j in size] for i in size]
    return matrix, [sum(weight * row[i] * target for row, target, weight in weighted) for i in size]


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The coefficients x with the least sum of squares of rows @ x - targets.

    rows: (measurements, coefficients), with linearly independent columns. targets: (measurements,). Fractions give
    exact coefficients, and for dependent columns a ZeroDivisionError.
    """
    return solve(*normal_equations(rows, targets))
