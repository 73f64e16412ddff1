"""Few constants fitted on measured steps, said openly: what the rows knew, what they did not, how wide an estimate is.

A constant starts at 1 with a prior (how far machines and kernels differ from the nominal rates, as a factor), and the
rows move it as far as they agree: least squares on logarithms, each row weighted by how near it lies, so that a few
outliers do not bend the fit (Huber 1964). One row moves what it is made of; many rows decide everything they can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from helpers.predict.time.measured import Row
from helpers.predict.time.model import NOMINAL, Constants, StepTime, step_time
from helpers.predict.time.stacks import Stack
from helpers.specs import Cluster, ModelSpec, Plan

# How far a constant lies from its nominal value before anything is measured: one standard deviation, of its logarithm.
PRIOR = {"products": 0.15, "memory": 0.25, "inside": 0.35, "network": 0.35, "launch": 0.5, "step": 1.0}
ROW = 0.1  # the same for a row, with all constants known: what the form leaves out
STEPS, NEAR, MOVE = 8, 1.5, 0.02
EIGHTY = 1.28  # standard deviations of an 80 % interval


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Constants, and for each the share of the prior's doubt that the rows took away (0: they did not see it).

    rows: how many. residue: standard deviation of the rows' logarithms around the fit. covariance: of the constants'.
    """

    stack: Stack | None
    constants: Constants
    known: dict[str, float]
    rows: int
    residue: float
    covariance: tuple[tuple[float, ...], ...]

    def __str__(self) -> str:
        """What the rows knew and what they did not, a line a constant."""
        rows = f"{self.rows} row" + "s" * (self.rows > 1)
        lines = [f"{len(self.known)} constants from {rows}; an estimate's form adds {self.residue:.0%} of doubt"]
        for name, share in self.known.items():
            said = "known" if share > 0.6 else "partly known" if share > 0.2 else "not seen by these rows, so nominal"
            lines.append(f"{name:9} {getattr(self.constants, name):6.3g}  {said} ({share:.0%} of the doubt is gone)")
        return "\n".join(lines)

    def estimate(self, model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack | None = None) -> StepTime:
        """The step with its interval: what the constants leave open, and what the form does."""
        stack = stack or self.stack
        if stack is None:
            raise ValueError("Calibration.estimate: the rows were of several stacks; say of which the estimate is")
        found = step_time(model, plan, cluster, stack, self.constants)
        slope = []
        for name in self.known:
            moved = step_time(model, plan, cluster, stack, _moved(self.constants, {name: MOVE}))
            slope.append(log(moved.seconds / found.seconds) / MOVE)
        open_ = float(np.array(slope) @ np.array(self.covariance) @ np.array(slope)) if slope else 0.0
        return replace(found, factor=exp(EIGHTY * (open_ + self.residue**2) ** 0.5))


def calibrate(
    rows: Sequence[Row],
    stack: Stack | None = None,
    *,
    names: Sequence[str] = tuple(PRIOR),
    start: Constants = NOMINAL,
) -> Calibration:
    """Fit the constants `names` on `rows`. stack: for all rows, instead of each one's own.

    ValueError without a row, for a row without a time, and for a constant that is not there.
    """
    names = tuple(names)
    if unknown := [name for name in names if name not in PRIOR]:
        raise ValueError(f"calibrate: no constant is called {', '.join(unknown)}; there are {', '.join(PRIOR)}")
    if not rows:
        raise ValueError("calibrate: no rows; give at least one measured step, or estimate with Constants()")
    for row in rows:
        if not 0 < row.seconds < float("inf"):
            raise ValueError(f"calibrate: {row.name} took {row.seconds!r} seconds, not more than 0: mend the row")
    doubt = np.array([PRIOR[name] for name in names])
    offset = np.zeros(len(names))
    for _ in range(STEPS):  # Gauss and Newton, with the prior as rows of its own
        residual, slope = _residuals(rows, stack, start, names, offset)
        weight = np.minimum(1.0, NEAR * ROW / np.maximum(np.abs(residual), 1e-9))
        precision = np.diag(doubt**-2.0) + (slope * weight[:, None]).T @ slope / ROW**2
        move = np.linalg.solve(precision, (slope * weight[:, None]).T @ residual / ROW**2 - offset / doubt**2)
        offset = offset + np.clip(move, -0.5, 0.5)
        if np.abs(move).max() < 1e-3:
            break
    constants = _moved(start, dict(zip(names, offset, strict=True)))
    covariance = np.linalg.inv(precision)
    known = {name: float(1 - covariance[i, i] ** 0.5 / doubt[i]) for i, name in enumerate(names)}
    spare = max(1, len(rows) - len(names))
    residue = ((ROW**2 * 10 + float(weight @ residual**2)) / (10 + spare)) ** 0.5
    return Calibration(
        stack=stack, constants=constants, known=known, rows=len(rows), residue=residue,
        covariance=tuple(map(tuple, covariance)),
    )  # fmt: skip


def _moved(constants: Constants, by: dict[str, float]) -> Constants:
    return replace(constants, **{name: getattr(constants, name) * exp(offset) for name, offset in by.items()})


def _residuals(rows, stack, start, names, offset):
    """log(measured / predicted) of each row, and how its prediction moves with each constant."""
    here = dict(zip(names, offset, strict=True))

    def logs(by: dict[str, float]) -> np.ndarray:
        constants = _moved(start, by)
        return np.array(
            [log(step_time(row.model, row.plan, row.cluster, stack or row.stack, constants).seconds) for row in rows]
        )

    now = logs(here)
    slope = [(logs(here | {name: here[name] + MOVE}) - now) / MOVE for name in names]
    return np.array([log(row.seconds) for row in rows]) - now, np.stack(slope, axis=1)
