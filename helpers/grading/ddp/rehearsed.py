"""03.rehearsed: a step that runs on gloo, made clean for NCCL. What the ranks called is played by NCCL's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.ddp import LAB
from helpers.grading.ddp.gradients import GRADIENT, mean_of
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect_equal, expect_tensor, expect_tensors
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.words import Words

SPIKE = 9.0  # a squared error above it is one, as the lab's text says
TOTAL = Words(en="the sum of the squared errors", zh="平方误差之和")
FLAG = Words(en="whether any rank has a spike", zh="是否有 rank 出现尖峰")


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Rows of one long series, two or more per rank. In the plain case one rank has a spike, and it is not rank 0."""
    widths = [rng.integer(2, 4), rng.integer(3, 5), rng.integer(1, 3)]
    model = making.mlp(widths)
    same = {"widths": widths, "weights": {name: rng.tensor(*p.shape) / 2 for name, p in model.named_parameters()}}
    inputs = []
    for _ in range(world_size):
        num_rows = rng.integer(2, 4)
        inputs.append(same | {"x": rng.tensor(num_rows, widths[0]), "y": rng.tensor(num_rows, widths[-1]) / 4})
    if rng.case.number == 0:
        inputs[rng.integer(1, world_size - 1)]["y"][0, 0] = 20.0
    return inputs
