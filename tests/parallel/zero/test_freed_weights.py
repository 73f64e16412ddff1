"""A freed weight keeps its shape, and says what it is when somebody wants its values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.parallel.zero.freed_weights import FreedWeight, free_weight, freed_weight, restore_weight

NOTHING = torch.full((1,), torch.nan)


def test_shape_dtype_and_gradient_can_be_read():
    weight = freed_weight("up.weight", torch.Size([3, 4]), NOTHING, True)
    assert weight.shape == (3, 4) and weight.numel() == 12 and weight.dim() == 2 and weight.dtype == torch.float32
    assert weight.requires_grad and weight.is_leaf and weight.grad is None
    assert weight.untyped_storage().nbytes() == 4
    assert repr(weight) == "FreedWeight('up.weight', shape=(3, 4), dtype=torch.float32)"


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: torch.ones(2, 4) @ w.t(),
        lambda w: F.linear(torch.ones(2, 4), w),
        lambda w: torch.stack([w, w]),
        lambda w: w.detach(),
        lambda w: w.data,
        lambda w: w.mT,
        lambda w: w[0],
        lambda w: w.sum(),
        lambda w: w.copy_(torch.ones(3, 4)),
        lambda w: F.linear(torch.ones(2, 4), weight=w),
    ],
)
def test_values_cannot(use):
    with pytest.raises(RuntimeError, match=r"up\.weight is freed.*model\.full_state\(\)\['up\.weight'\]"):
        use(freed_weight("up.weight", torch.Size([3, 4]), NOTHING, True))


def test_shown_it_is_an_ordinary_parameter_and_freed_again_it_holds_nothing():
    weight, values = freed_weight("up.weight", torch.Size([3, 4]), NOTHING, True), torch.arange(12.0).view(3, 4)
    restore_weight(weight, values)
    assert type(weight) is nn.Parameter and torch.equal(weight.detach(), values)
    F.linear(torch.ones(2, 4), weight).sum().backward()
    free_weight(weight, NOTHING)
    assert (
        isinstance(weight, FreedWeight) and weight.shape == (3, 4) and torch.equal(weight.grad, torch.full((3, 4), 2))
    )
    assert weight.untyped_storage().nbytes() == 4
