"""Clipping by the global norm equals torch's, and with shards it equals the norm of the whole."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.parallel.shared.clip import clip_grad_norm_, gradient_norm
from helpers.parallel.shared.placement import Placement, place
from helpers.ranks import RankError


def model_with_gradients(scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(2, 2)).double()
    (scale * model[:2](torch.randn(5, 4).double())).square().sum().backward()  # the last layer has no gradient
    return model


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.0, 0.1, 1e6])
def test_equals_torch(norm_type, max_norm):
    ours, theirs = model_with_gradients(), model_with_gradients()
    norm = clip_grad_norm_(ours.parameters(), max_norm, norm_type)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm, norm_type)
    torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_shards_have_the_norm_of_the_whole(ranks, norm_type):
    whole = torch.arange(1.0, 13.0, dtype=torch.float64)

    def shard_norm():
        shards = whole.chunk(dist.get_world_size())[dist.get_rank()].split(2)
        return gradient_norm(shards, norm_type=norm_type, group=dist.group.WORLD).item()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_what_is_whole_on_every_rank_counts_once(ranks, norm_type):
    """Four numbers cut in two, two numbers on both ranks."""

    def clipped(max_norm):
        part, whole = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        place(part, Placement.sharded("tp", None))
        place(whole, Placement.replicated("tp", None))
        part.grad = torch.tensor([1.0, 2.0]) + 2 * dist.get_rank()
        whole.grad = torch.tensor([5.0, 6.0])
        norm = clip_grad_norm_([part, whole], max_norm, norm_type)
        return norm.item(), part.grad.norm(norm_type).item(), whole.grad.norm(norm_type).item()

    expected = torch.arange(1.0, 7.0).norm(norm_type).item()
    for rank, (norm, part, whole) in enumerate(ranks[:2].run(clipped, 0.5)):
        assert norm == pytest.approx(expected)
        own = torch.tensor([1.0, 2.0]) + 2 * rank
        assert part == pytest.approx(own.norm(norm_type).item() * 0.5 / expected, rel=1e-5)
        assert whole == pytest.approx(torch.tensor([5.0, 6.0]).norm(norm_type).item() * 0.5 / expected, rel=1e-5)


def test_a_group_on_which_the_parameters_do_not_lie_gets_a_sentence(ranks):
    def clip():
        pair = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            whole = place(nn.Parameter(torch.ones(2)), Placement.replicated("tp", pair))
            whole.grad = torch.ones(2)
            clip_grad_norm_([whole], 1.0, group=dist.group.WORLD)

    with pytest.raises(
        RankError, match=r"a group of the ranks \[0, 1, 2\], but .* lie on the ranks \[0, 1\] of tp: leave"
    ):
        ranks[:3].run(clip)


def test_bad_input_gets_a_sentence():
    model = model_with_gradients()
    with pytest.raises(ValueError, match="a norm is never negative"):
        clip_grad_norm_(model.parameters(), -1.0)
    with pytest.raises(ValueError, match="norm_type=0"):
        clip_grad_norm_(model.parameters(), 1.0, 0)
    with pytest.raises(RuntimeError, match="inf or NaN in the loss"):
        clip_grad_norm_(model_with_gradients(math.inf).parameters(), 1.0, error_if_nonfinite=True)


def test_no_gradients_have_norm_zero():
    assert clip_grad_norm_([torch.zeros(2)], 1.0) == 0
