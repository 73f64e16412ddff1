"""How far the model of time is off when it compares two plans of the same model on the same GPUs.

    python -m benchmarks.plan_pairs

An estimate may be off by 10 %, but most of that is common to two plans of one model on the same GPUs, so it cancels
when they are compared. What is left is the error of their ratio: predicted seconds of one over the other, divided by
the same ratio of measured seconds. The columns "right" say of how many pairs the plan that is predicted to be faster is
the faster one, by how far the predictions differ. From them come LAYOUT_TIE, VARIANT_TIE and RIGHT_WITHIN of
helpers/predict/advice/choice.py. The pairs are of vTrain's tables and of BLOOM's sweep, before any calibration, as the
planner uses the model, and their predicted steps lie within 30 % of each other.

The second table says what a choice costs. In each task with three measured plans or more, it takes the simplest of the
plans that are predicted to be at most `tie` slower than the fastest, and compares its measured step with the shortest
measured one. With a tie of 0 it takes the plan that is predicted to be fastest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from statistics import fmean, median

from benchmarks.measured_steps import vtrain_steps
from benchmarks.paired import write_table
from helpers.predict.advice.choice import complexity
from helpers.predict.time.calibrate import MeasuredStep, published_steps
from helpers.predict.time.step import step_time

NEAR = 1.3  # predicted steps within this ratio of each other
SHARE = 0.8  # of the pairs that lie within the error that is reported, as in the planner's 80 % intervals


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two plans of one task. predicted, measured: logarithms of the first one's seconds over the second one's."""

    table: str
    task: tuple
    has_same_layout: bool
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """By what share the predicted ratio is off."""
        return exp(abs(self.predicted - self.measured)) - 1


def tasks(rows: Sequence[MeasuredStep]) -> dict[tuple, list[MeasuredStep]]:
    """Rows that do the same work on the same GPUs with the same stack, by what they have in common."""
    same = defaultdict(list)
    for row in rows:
        batch = row.plan.dp * row.plan.micro_batch * row.plan.num_microbatches
        same[row.group, row.model, row.cluster, batch].append(row)
    return {task: members for task, members in same.items() if len(members) > 1}


def pairs(table: str, rows: Sequence[MeasuredStep]) -> Iterator[Pair]:
    """Every pair of plans of a task whose predicted steps are near."""
    for task, members in tasks(rows).items():
        seconds = [step_time(row.model, row.plan, row.cluster, row.stack).seconds for row in members]
        for (one, here), (other, there) in combinations(zip(members, seconds, strict=True), 2):
            predicted = log(here / there)
            if abs(predicted) <= log(NEAR):
                same = (one.plan.tp, one.plan.pp, one.plan.dp) == (other.plan.tp, other.plan.pp, other.plan.dp)
                measured = log(one.seconds / other.seconds)
                yield Pair(
                    table=table, task=task, has_same_layout=same, predicted=predicted, measured=measured
                )  # fmt: skip


def measured_tables() -> dict[str, list[MeasuredStep]]:
    """The tables that have several plans of one model on the same GPUs, by name."""
    bloom = [row for row in published_steps() if row.group == "BLOOM sweep"]
    tables = {"vTrain, one node": vtrain_steps("single_node"), "vTrain, many nodes": vtrain_steps("multi_node")}
    return tables | {"BLOOM, 48 nodes": bloom}


def all_pairs() -> list[Pair]:
    """The pairs of all tables."""
    return [pair for table, rows in measured_tables().items() for pair in pairs(table, rows)]


def error_of(found: Sequence[Pair]) -> float:
    """The error below which `SHARE` of the pairs lie, each task with the same weight."""
    count = defaultdict(int)
    for pair in found:
        count[pair.task] += 1
    ordered = sorted(found, key=lambda pair: pair.error)
    total = 0.0
    for pair in ordered:
        total += 1 / count[pair.task] / len(count)
        if total >= SHARE:
            return pair.error
    return ordered[-1].error


def between(found: Sequence[Pair], low: float, high: float) -> list[Pair]:
    """The pairs whose predictions differ by a share from `low` to `high`."""
    return [pair for pair in found if low <= exp(abs(pair.predicted)) - 1 < high]


def right_share(found: Sequence[Pair], low: float, high: float) -> float:
    """Of the pairs whose predictions differ by `low` to `high`, the share in the predicted order."""
    return fmean(pair.predicted * pair.measured > 0 for pair in between(found, low, high))


def right_text(found: Sequence[Pair], low: float, high: float) -> str:
    """`right_share` as text, with the number of pairs; a dash where there are none."""
    count = len(between(found, low, high))
    return f"{right_share(found, low, high):.0%} of {count}" if count else "-"


def lost(rows: Sequence[MeasuredStep], tie: float) -> list[float]:
    """For each task, how much longer the chosen plan's measured step is than the shortest measured one, as a share."""
    found = []
    for members in tasks(rows).values():
        if len(members) > 2:
            seconds = [step_time(row.model, row.plan, row.cluster, row.stack).seconds for row in members]
            near = [pair for pair in zip(members, seconds, strict=True) if pair[1] <= (1 + tie) * min(seconds)]
            chosen, _ = min(near, key=lambda pair: (complexity(pair[0].plan, pair[0].model.seq), pair[1]))
            found.append(chosen.seconds / min(row.seconds for row in members) - 1)
    return found


def cost_of_choices() -> list[dict[str, str]]:
    """The second table: for each table of measured steps, what choosing with different ties loses on average."""
    return [
        {
            "tasks of": table, "tasks": str(len(lost(rows, 0))),
            **{f"mean time lost, tie {tie:.0%}": f"{fmean(lost(rows, tie)):.1%}" for tie in TIES},
        }
        for table, rows in measured_tables().items()
    ]  # fmt: skip


def main() -> None:
    found = all_pairs()
    groups = {table: [pair for pair in found if pair.table == table] for table in dict.fromkeys(p.table for p in found)}
    rows = []
    for table, members in ({"all": found} | groups).items():
        for name, is_same in (("other axes", False), ("same axes, other micro-batch", True)):
            if chosen := [pair for pair in members if pair.has_same_layout == is_same]:
                bins = {f"right, {low:.0%} to {high:.0%}": right_text(chosen, low, high) for low, high in BINS}
                rows.append({
                    "pairs of": table, "plans with": name, "pairs": len(chosen),
                    "tasks": len({pair.task for pair in chosen}),
                    "median error": f"{median(pair.error for pair in chosen):.1%}",
                    "80 % within": f"{error_of(chosen):.1%}", **bins,
                })  # fmt: skip
    path = write_table("plan_pairs", rows, "python -m benchmarks.plan_pairs")
    costs = cost_of_choices()
    lines = [[*costs[0]], ["---"] * len(costs[0]), *([*row.values()] for row in costs)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    text = "\n".join([path.read_text(encoding="utf-8"), "## The measured time that a choice loses", "", table, ""])
    path.write_text(text, encoding="utf-8")
    print(text)


TIES = (0, 0.03, 0.05, 0.1, 0.15, 0.2)
BINS = ((0, 0.1), (0, 0.03), (0.03, 0.06), (0.06, 0.1), (0.1, 0.15), (0.15, 0.3))

if __name__ == "__main__":
    main()
