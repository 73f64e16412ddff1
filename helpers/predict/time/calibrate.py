"""Fits the few constants of the step-time model to measured steps, and says how wide the interval of an estimate is.

The model (step.py) predicts a step from nominal rates and from `Constants`, which say what share of each rate a machine
reaches. A constant starts at its nominal value with a prior, which says by what factor machines and kernels usually
differ from the nominal rates. The measured steps move it as far as they agree: least squares on logarithms, each step
weighted by how near it lies to the fit, so that a few outliers do not bend it (Huber 1964). A single step moves only
the constants that it depends on; many steps determine all constants on which they depend. A `Stack` (stacks.py) is the
training framework that ran a step, such as Megatron-Core. A row is a measured step, and its residual is the logarithm
of measured over predicted seconds.

`published_steps` reads the measured steps of published tables from data/. benchmarks/measured_steps.py reads more.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

from helpers.predict.least_squares import normal_equations, solve
from helpers.predict.time.stacks import STACKS, Stack
from helpers.predict.time.step import NOMINAL, Constants, StepTime, step_time
from helpers.specs import GPUS, Cluster, Link, ModelSpec, Plan
from helpers.specs.hardware import INTRA


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A measured training step. group: the table that lists it. name: its row there. seconds: of the step."""

    group: str
    name: str
    model: ModelSpec
    plan: Plan
    cluster: Cluster
    stack: Stack
    seconds: float


# The beginning of "group, row" -> the name of the stack that ran it, for a table without the column `stack`. Of two
# that match, the first counts.
STACK_OF = {
    "Narayanan T1": "Megatron 2021", "Narayanan T2 ZeRO-3": "DeepSpeed ZeRO-3", "Narayanan T2 PTD": "Megatron 2021",
    "Megatron-Core": "Megatron-Core", "Megatron 2020": "Megatron 2020", "Korthikanti": "Megatron 2022",
    "Llama 3": "Llama 3", "BLOOM": "Megatron-DeepSpeed", "MegaScale T2 Megatron-LM": "Megatron 2022",
    "MegaScale T2 MegaScale": "MegaScale", "llm-foundry": "llm-foundry", "nanotron": "nanotron",
    "TorchTitan, 405B": "TorchTitan AsyncTP", "TorchTitan": "TorchTitan",
}  # fmt: skip
# (the beginning of a group's name, a GPU) -> the variant of this GPU that all rows of the group ran on, by its name.
VARIANT_OF = {("TorchTitan", "H100 SXM"): "H100 SXM 96 GB 500 W", ("Megatron 2020", "V100 SXM2"): "V100 SXM3"}
# What steps.csv calls a GPU -> its key in GPUS, and in what its variant differs.
VARIANTS: dict[str, tuple[str, dict[str, float]]] = {
    "A100 40": ("A100 40 GB", {}),
    "V100 SXM3": ("V100", {}),  # of DGX-2H, with 450 W
    "H100 SXM 96 GB 500 W": ("H100", {"memory": 96e9, "memory_bandwidth": 2.4e12}),  # HBM2e, power limit 500 W
} | {gpu.name: (key, {}) for key, gpu in GPUS.items()}
DATA = Path(__file__).parent / "data"


def published_steps(path: Path = DATA / "published" / "steps.csv") -> list[MeasuredStep]:
    """The measured steps of a table like steps.csv, whose columns are the fields of ModelSpec, Cluster and Plan.

    precision: as in Plan, or "fp8", which is mixed precision with matrix products in 8 bits. stack, cp_method: may be
    missing or empty; the row's name then says the stack, and the stack its method. Raises ValueError for a row of
    unknown origin or hardware.
    """
    with open(path, encoding="utf-8") as file:
        return [_published(row) for row in csv.DictReader(file)]


def _published(row: dict[str, str]) -> MeasuredStep:
    """One row of steps.csv as a MeasuredStep."""
    number = {key: int(row[key]) for key in row if row[key] and row[key].lstrip("-").isdigit()}  # the whole numbers
    stack = _stack_of(row)
    # The table has no columns for biases and positions: a model with LayerNorm is taken for a GPT, others for Llamas.
    model = ModelSpec(
        num_layers=number["num_layers"], hidden=number["hidden"], num_heads=number["num_heads"],
        num_kv_heads=number["num_kv_heads"], ffn_hidden=number["ffn_hidden"], vocab=number["vocab"], seq=number["seq"],
        gated=bool(number["gated"]), norm=row["norm"], tied_embeddings=bool(number["tied"]),
        bias=row["norm"] == "layer", positions="learned" if row["norm"] == "layer" else "rope",
    )  # fmt: skip
    axes = {name: number[name] for name in ("dp", "tp", "pp", "cp", "zero", "micro_batch", "num_microbatches")}
    is_fp8 = row["precision"] == "fp8"
    plan = Plan(
        **axes, num_chunks=number["chunks"], sequence_parallel=bool(number["sequence_parallel"]),
        recompute=row["recompute"], attention=row["attention"], precision="mixed" if is_fp8 else row["precision"],
        fp8=is_fp8, cp_method=row.get("cp_method") or stack.cp_method,
    )  # fmt: skip
    return MeasuredStep(
        group=row["group"], name=row["row"], model=model, plan=plan, cluster=_cluster_of(row, number), stack=stack,
        seconds=float(row["seconds"]),
    )  # fmt: skip


def _stack_of(row: dict[str, str]) -> Stack:
    """The stack that ran a row of steps.csv. ValueError for an unknown name, or a group that nobody assigned one."""
    whole = f"{row['group']}, {row['row']}"
    name = row.get("stack") or next((name for start, name in STACK_OF.items() if whole.startswith(start)), None)
    if name not in STACKS:
        raise ValueError(
            f"published: the row {row['group']!r}, {row['row']!r} ran the stack {row.get('stack')!r}, which is not "
            f"known; fill its column stack with one of {', '.join(STACKS)}"
        )
    return STACKS[name]


def _cluster_of(row: dict[str, str], number: dict[str, int]) -> Cluster:
    """The cluster of a row of steps.csv. number: its whole numbers. ValueError for an unknown GPU."""
    variants = [
        name for (start, gpu), name in VARIANT_OF.items() if row["group"].startswith(start) and gpu == row["gpu"]
    ]
    name = variants[0] if variants else row["gpu"]
    if name not in VARIANTS:
        raise ValueError(
            f"published: the row {row['group']!r}, {row['row']!r} ran on {name!r}, which is not known; there are "
            f"{', '.join(VARIANTS)}"
        )
    key, differs = VARIANTS[name]
    # network_gbps is of all cards of a node. The tables do not say how many, so nodes of 8 GPUs or more get 8 cards.
    gigabits, cards = float(row["network_gbps"]), 8 if number["gpus_per_node"] >= 8 else 1
    return Cluster(
        gpu=replace(GPUS[key], name=name, **differs), gpus_per_node=number["gpus_per_node"], num_nodes=number["nodes"],
        intra=INTRA[key], inter=Link.from_gigabits(gigabits / cards, latency=5e-6), network_cards=cards,
    )  # fmt: skip


# How far a constant lies from its nominal value before anything is measured: one standard deviation of its logarithm.
PRIOR = {"products": 0.15, "memory": 0.25, "inside": 0.35, "network": 0.35, "launch": 0.5, "step": 1.0}
ROW = 0.1  # the standard deviation of a measured step's logarithm with all constants known: the model's own error
ROW_WEIGHT = 10  # how many measured steps ROW counts as, where the model's own error is estimated anew
ITERATIONS = 8  # of the Gauss-Newton loop in `calibrate`, at most
LARGEST_MOVE, SMALLEST_MOVE = 0.5, 1e-3  # of a logarithm in one iteration; the iterations end below the second
NEAR = 1.5  # a measured step that lies farther from the fit than this many standard deviations counts less (Huber)
MOVE = 0.02  # by which a constant's logarithm is changed to find the slope
EIGHTY = 1.28  # standard deviations of an 80 % interval
KNOWN, PARTLY_KNOWN = 0.6, 0.2  # shares of the prior's uncertainty that the rows must remove for these words


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted constants. known: for each, the share of the prior's uncertainty that the rows removed (0: none of it).

    rows: the number of measured steps. residue: standard deviation of their logarithms around the fit. covariance: of
    the constants' logarithms. stack: the stack of all rows, None where each row had its own.
    """

    stack: Stack | None
    constants: Constants
    known: dict[str, float]
    rows: int
    residue: float
    covariance: tuple[tuple[float, ...], ...]

    def __str__(self) -> str:
        """How well the rows determine each constant, one line per constant; "doubt" is the prior's uncertainty."""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        lines = [f"{len(self.known)} constants from {rows}; an estimate's form adds {self.residue:.0%} of doubt"]
        for name, share in self.known.items():
            text = "partly known" if share > PARTLY_KNOWN else "not seen by these rows, so nominal"
            text = "known" if share > KNOWN else text
            lines.append(f"{name:9} {getattr(self.constants, name):6.3g}  {text} ({share:.0%} of the doubt is gone)")
        return "\n".join(lines)

    def estimate(self, model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack | None = None) -> StepTime:
        """The step with its 80 % interval, from the uncertainty of the constants and the error of the model itself.

        The uncertainty of the constants is carried over by the slope of the step's logarithm by each constant's.
        """
        stack = stack or self.stack
        if stack is None:
            raise ValueError("Calibration.estimate: the rows were of several stacks; say of which the estimate is")
        step = step_time(model, plan, cluster, stack, self.constants)
        slope = []
        for name in self.known:
            moved = step_time(model, plan, cluster, stack, _moved(self.constants, {name: MOVE}))
            slope.append(log(moved.seconds / step.seconds) / MOVE)
        variance = sum(
            first * second * self.covariance[i][j] for i, first in enumerate(slope) for j, second in enumerate(slope)
        )
        # factor: the interval goes from the step's seconds / factor to its seconds * factor.
        return replace(step, factor=exp(EIGHTY * (variance + self.residue**2) ** 0.5))


def calibrate(
    rows: Sequence[MeasuredStep],
    stack: Stack | None = None,
    *,
    names: Sequence[str] = tuple(PRIOR),
    start: Constants = NOMINAL,
) -> Calibration:
    """Fit the constants `names` to measured steps. stack: for all rows, instead of each row's own.

    start: the constants at which the priors are centred; those that are not in `names` keep its values. Raises
    ValueError without a row, for a row without a time, and for an unknown constant.
    """
    names = tuple(names)
    if unknown := [name for name in names if name not in PRIOR]:
        raise ValueError(f"calibrate: no constant is called {', '.join(unknown)}; there are {', '.join(PRIOR)}")
    if not rows:
        raise ValueError("calibrate: no rows; give at least one measured step, or estimate with Constants()")
    for row in rows:
        if not 0 < row.seconds < float("inf"):
            raise ValueError(f"calibrate: {row.name} took {row.seconds!r} seconds, not more than 0: mend the row")
    offset, precision, residual, weight = _fit(rows, stack, start, names)
    constants = _moved(start, dict(zip(names, offset, strict=True)))
    # The inverse of `precision`, column by column; it is symmetric, so its columns are its rows.
    covariance = [solve(precision, [float(i == j) for j in range(len(names))]) for i in range(len(names))]
    known = {name: 1 - covariance[i][i] ** 0.5 / PRIOR[name] for i, name in enumerate(names)}
    degrees = max(1, len(rows) - len(names))
    squares = sum(one * error**2 for one, error in zip(weight, residual, strict=True))
    residue = ((ROW**2 * ROW_WEIGHT + squares) / (ROW_WEIGHT + degrees)) ** 0.5
    return Calibration(
        stack=stack, constants=constants, known=known, rows=len(rows), residue=residue,
        covariance=tuple(map(tuple, covariance)),
    )  # fmt: skip


def _fit(rows, stack, start, names) -> tuple[list[float], list[list[float]], list[float], list[float]]:
    """The offset of each constant's logarithm, the inverse of their covariance, and each row's residual and weight."""
    prior = [PRIOR[name] for name in names]
    offset = [0.0] * len(names)
    for _ in range(ITERATIONS):  # Gauss-Newton
        residual, slopes = _residuals(rows, stack, start, names, offset)
        weight = [min(1.0, NEAR * ROW / max(abs(one), 1e-9)) for one in residual]  # 1e-9 avoids a division by 0
        precision, right = normal_equations(slopes, residual, [one / ROW**2 for one in weight])
        for i, deviation in enumerate(prior):  # the prior is one more row per constant
            precision[i][i] += 1 / deviation**2
            right[i] -= offset[i] / deviation**2
        move = solve(precision, right)
        offset = [old + min(max(by, -LARGEST_MOVE), LARGEST_MOVE) for old, by in zip(offset, move, strict=True)]
        if max(map(abs, move)) < SMALLEST_MOVE:
            break
    return offset, precision, residual, weight


def _moved(constants: Constants, by: dict[str, float]) -> Constants:
    """The constants with these logarithms added."""
    return replace(constants, **{name: getattr(constants, name) * exp(offset) for name, offset in by.items()})


def _residuals(rows, stack, start, names, offset):
    """log(measured / predicted) of each row, and per row the slopes of its predicted logarithm by each constant's.

    offset: by how much the logarithm of each constant in `names` lies above the one in `start`.
    """
    current = dict(zip(names, offset, strict=True))

    def logs(by: dict[str, float]) -> list[float]:
        """The logarithm of each predicted step, with these offsets added to the logarithms of the constants."""
        constants = _moved(start, by)
        return [log(step_time(row.model, row.plan, row.cluster, stack or row.stack, constants).seconds) for row in rows]

    predicted = logs(current)
    moved = [logs(current | {name: current[name] + MOVE}) for name in names]
    slopes = [[(one - before) / MOVE for one in after] for before, *after in zip(predicted, *moved, strict=True)]
    return [log(row.seconds) - before for row, before in zip(rows, predicted, strict=True)], slopes
