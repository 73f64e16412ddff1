"""A training under a strategy is compared with one process, and what differs is an error that shows it."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.observe.training import (
    DataParallelRanks,
    Training,
    beside_one_process,
    check_predicted,
    same_on_every_rank,
)
from helpers.parallel.ddp import DistributedDataParallel

TRAINING = Training(
    model=lambda: nn.Linear(4, 2).double(),
    batch=lambda step: (torch.full((4, 4), step + 1.0).double() + torch.arange(4)[:, None], torch.ones(4, 2).double()),
    loss=nn.functional.mse_loss,
    options={"lr": 0.1},
    steps=2,
)


class Averaged(DataParallelRanks):
    def __init__(self, model, training):
        super().__init__(model, training, forward=DistributedDataParallel(model))


class WithoutRankOne(Averaged):
    """A rank that is left out of the mean."""

    def after_backward(self):
        if dist.get_rank() == 1:
            self.model.weight.grad.zero_()


def test_every_rank_has_the_losses_weights_and_gradients_of_one_process(ranks):
    clipped = replace(TRAINING, max_norm=0.1)
    assert clipped.run()["norms"].min() > 0.1, "the norm before clipping"
    assert beside_one_process(ranks[:2], clipped.under(Averaged)).startswith("equal: 6 tensors x 2 ranks")


def test_a_rank_that_differs_is_an_error(ranks):
    with pytest.raises(AssertionError, match="rank 1 of 2"):
        beside_one_process(ranks[:2], replace(TRAINING, steps=1).under(WithoutRankOne))


def test_what_was_not_predicted_or_is_not_the_same_is_an_error():
    assert check_predicted([1], [1]) == [1] and same_on_every_rank([3, 3]) == 3
    with pytest.raises(RuntimeError, match=r"rank 0 sent \[1\], and \[2\] was predicted"):
        check_predicted([1], [2], "rank 0 ")
    with pytest.raises(RuntimeError, match=r"stage 1: the ranks hold different amounts, 3 and \[4\]"):
        same_on_every_rank([3, 4], "stage 1: ")
