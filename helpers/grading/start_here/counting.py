"""00.total and 00.mean: what all ranks hold together, where their shares differ in length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.comparisons import expect_equal, expect_tensor
from helpers.grading.start_here import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.learner.words import Words

COUNT = Words(en="the number of examples", zh="样本总数")
MEAN_LOSS = Words(en="the mean loss", zh="平均损失")
LEFT_OUT = ("hang", "mismatch")


def left_out(failure: RunFailure) -> Sequence[str]:
    """Ranks disagree about what comes next: somebody called less than the others."""
    return ["left_out"] if failure.kind in LEFT_OUT else []


# -- 00.total --------------------------------------------------------------------------------------------------------
def make_total(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """From two ranks on, one of them has nothing, and never the first: `if rank == 0` must not look right."""
    sizes = [rng.integer(2, 9) for _ in range(world_size)]
    if world_size > 1:
        sizes[rng.integer(1, world_size - 1)] = 0
    return [{"examples": [rng.integer(0, 99) for _ in range(size)]} for size in sizes]


def run_total(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    total = submitted(list(inputs["examples"]))
    return {"total": total.item() if isinstance(total, torch.Tensor) and total.numel() == 1 else total}


def judge_total(world: JudgedWorld) -> Iterator[Judgement]:
    """A whole number, as an int, a float or a tensor of one element."""
    counts = [len(one["examples"]) for one in world.inputs]
    for rank, output in enumerate(world.outputs):
        got = output["total"]
        got = int(got) if isinstance(got, float) and got.is_integer() else got
        mistakes = {"own_count": counts[rank], "counts_ranks": world.size}
        wrong = {key: value for key, value in mistakes.items() if value != sum(counts)}
        yield expect_equal(COUNT, sum(counts), got, rank=rank, mistakes=wrong)


TOTAL = Task(
    key="00.total",
    signature="total_of(examples)",
    make_inputs=make_total,
    run_submission=run_total,
    judge=judge_total,
    recognise_failure=left_out,
    hints=LAB.hints("left_out", "own_count", "counts_ranks"),
)


# -- 00.mean ---------------------------------------------------------------------------------------------------------
def make_mean(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each rank has another number of losses, so that no two mistakes give the same number."""
    return [{"losses": rng.tensor(2 + 3 * rank + rng.integer(0, 2)).abs() + 1} for rank in range(world_size)]


def run_mean(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    losses = inputs["losses"].clone()
    mean = submitted(losses)
    return {"mean": torch.tensor(mean, dtype=torch.float64) if isinstance(mean, float) else mean}


def judge_mean(world: JudgedWorld) -> Iterator[Judgement]:
    held = [one["losses"] for one in world.inputs]
    whole = torch.cat(held)
    mistakes = {
        "mean_of_means": torch.stack([one.mean() for one in held]).mean(),
        "sum_for_mean": whole.sum(),
        "divided_by_ranks": whole.sum() / world.size,
    }
    for rank, output in enumerate(world.outputs):
        got = output["mean"]
        one = got.reshape(()).double() if isinstance(got, torch.Tensor) and got.numel() == 1 else got
        yield expect_tensor(MEAN_LOSS, whole.mean(), one, rank=rank, mistakes=mistakes)


MEAN = Task(
    key="00.mean",
    signature="mean_of_all(losses)",
    make_inputs=make_mean,
    run_submission=run_mean,
    judge=judge_mean,
    recognise_failure=left_out,
    hints=LAB.hints("left_out", "mean_of_means", "sum_for_mean", "divided_by_ranks"),
    must_not_change=("losses",),
)
