"""00.layers: a rank that lacks a layer's gradient calls all the same, or its next one is paired with this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.comparisons import expect_tensors
from helpers.grading.start_here import LAB
from helpers.grading.start_here.counting import left_out
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words

NAMES = ("first", "second", "third")
TOTAL = Words(en="the sum of layer {}", zh="{} 层的和")


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """All layers have one shape, as in the chapter. One rank, and never the first, has no gradient of one layer."""
    ranks = [{name: rng.tensor(3) for name in NAMES} for _ in range(world_size)]
    if world_size > 1:
        ranks[rng.integer(1, world_size - 1)][rng.one_of(*NAMES[:2])] = None
    return [{"gradients": one} for one in ranks]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    gradients = {name: None if one is None else one.clone() for name, one in inputs["gradients"].items()}
    sums = submitted(gradients)
    return {"sums": gradients if sums is None else sums}  # an answer may add up in place


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    nothing = torch.zeros(3, dtype=torch.float64)
    held = [
        {name: nothing if one is None else one for name, one in given["gradients"].items()} for given in world.inputs
    ]
    sums = {name: sum(one[name] for one in held) for name in NAMES}
    for rank, output in enumerate(world.outputs):
        yield from expect_tensors(TOTAL, sums, output["sums"], rank=rank, mistakes={"own_layers": held[rank]})


LAYERS = Task(
    key="00.layers",
    signature="sum_layers(gradients)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    recognise_failure=left_out,
    hints=LAB.hints("left_out", "own_layers"),
)
