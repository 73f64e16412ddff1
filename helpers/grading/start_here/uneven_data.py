"""Judges 00.total, 00.mean and 00.layers: collectives over ranks with different amounts of data, or with none.

The grader calls three functions of each task:
  make_…   draws data of different lengths, one dict per rank; `rng.integer(2, 9)` is a random number from 2 to 9,
           and `rng.tensor(3)` a float64 tensor of three random numbers
  run_…    calls the learner's function, `submitted`, on each live rank; what it returns is that rank's output
  judge_…  makes Judgements from the inputs and outputs of a JudgedWorld, each a list by rank. Every rank's result must
           be what one process computes from all of the data

A rank that makes fewer calls than the others shows as a hang or a mismatch; see recognise_left_out.
`words["…"]` is what a sentence calls a value, from messages.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.grading.kit.comparisons import expect, expect_equal
from helpers.grading.kit.tensor_comparisons import expect_tensor, expect_tensors
from helpers.grading.plain_data import simplified
from helpers.grading.start_here import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.grading.tensor_cases import CaseGenerator

words = LAB.messages


def recognise_left_out(failure: RunFailure) -> Sequence[str]:
    """The mistakes that a run without outputs points to.

    Ranks that disagree about the next operation show that one of them called fewer collectives than the others, or that
    their tensors differ in shape or dtype.
    """
    if failure.kind not in ("hang", "mismatch"):
        return []
    called = set(re.findall(r"\bcalls (\w+)", failure.text))  # "rank 0 calls all_reduce SUM float64 (3,)"
    return ["shapes_differ" if failure.kind == "mismatch" and len(called) == 1 else "left_out"]


# -- 00.total --------------------------------------------------------------------------------------------------------
def make_total(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """With two ranks or more, one of them has no examples. It is never rank 0, so that `if rank == 0` fails."""
    sizes = [rng.integer(2, 9) for _ in range(world_size)]
    if world_size > 1:
        sizes[rng.integer(1, world_size - 1)] = 0
    return [{"examples": [rng.integer(0, 99) for _ in range(size)]} for size in sizes]


def run_total(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The number that the learner's function returns; 12.0 and a tensor with the one element 12 count as 12."""
    return {"total": simplified(submitted(list(inputs["examples"])))}


def judge_total(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the number of all examples on every rank."""
    counts = [len(of_rank["examples"]) for of_rank in world.inputs]
    for rank, output in enumerate(world.outputs):
        yield expect_equal(words["num_examples"].format(counts), sum(counts), output["total"], rank=rank)


TOTAL = Task(
    key="00.total",
    signature="total_of(examples)",
    make_inputs=make_total,
    run_submission=run_total,
    judge=judge_total,
    recognise_failure=recognise_left_out,
)


# -- 00.mean ---------------------------------------------------------------------------------------------------------
def make_mean(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each rank has a different number of losses, so that no two mistakes give the same number."""
    return [{"losses": rng.tensor(2 + 3 * rank + rng.integer(0, 2)).abs() + 1} for rank in range(world_size)]


def run_mean(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The mean that the learner's function returns; a float or a tensor with one element counts as its number."""
    mean = submitted(inputs["losses"].clone())
    is_number = isinstance(mean, float) or (isinstance(mean, torch.Tensor) and mean.numel() == 1)
    return {"mean": torch.tensor(float(mean), dtype=torch.float64) if is_number else mean}


def judge_mean(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects the mean over the losses of all ranks, as a tensor with one element of any shape."""
    losses = [of_rank["losses"] for of_rank in world.inputs]
    what = words["mean_loss"].format(list(map(len, losses)))
    for rank, output in enumerate(world.outputs):
        yield expect_tensor(what, torch.cat(losses).mean(), output["mean"], rank=rank)


MEAN = Task(
    key="00.mean",
    signature="mean_of_all(losses)",
    make_inputs=make_mean,
    run_submission=run_mean,
    judge=judge_mean,
    recognise_failure=recognise_left_out,
    must_not_change=("losses",),
)


# -- 00.layers -------------------------------------------------------------------------------------------------------
LAYER_NAMES = ("first", "second", "third")


def make_layers(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All layers have the same shape, as in the chapter. One rank other than 0 has no gradient of one of the layers.

    If that rank leaves out the call, its next call is paired with this layer's, since the shapes fit.
    """
    ranks = [{name: rng.tensor(3) for name in LAYER_NAMES} for _ in range(world_size)]
    if world_size > 1:
        ranks[rng.integer(1, world_size - 1)][rng.one_of(*LAYER_NAMES[:2])] = None  # not the last: a call must follow
    return [{"gradients": gradients} for gradients in ranks]


def run_layers(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The sums by layer that the learner's function returns; it may also add up in place and return nothing."""
    gradients = {name: None if one is None else one.clone() for name, one in inputs["gradients"].items()}
    sums = submitted(gradients)
    return {"sums": gradients if sums is None else sums}


def judge_layers(world: JudgedWorld) -> Iterator[Judgement]:
    """Expects for each layer the sum of the gradients on all ranks, where a missing gradient counts as zeros."""
    zeros = torch.zeros(3, dtype=torch.float64)
    gradients = [of_rank["gradients"] for of_rank in world.inputs]
    sums = {name: sum(zeros if one[name] is None else one[name] for one in gradients) for name in LAYER_NAMES}
    for rank, output in enumerate(world.outputs):
        is_dict = isinstance(output["sums"], dict)
        yield expect(is_dict, words["no_dict"].format(type(output["sums"]).__name__), rank=rank)
        if is_dict:
            yield from expect_tensors(words["layer_sum"], sums, output["sums"], rank=rank)


LAYERS = Task(
    key="00.layers",
    signature="sum_layers(gradients)",
    make_inputs=make_layers,
    run_submission=run_layers,
    judge=judge_layers,
    recognise_failure=recognise_left_out,
)
