"""Stochastic rounding is right on average."""

import pytest
import torch

from helpers.parallel.amp.master_weights import stochastic_round


def test_stochastic_rounding_is_right_on_average():
    step = 2.0**-7
    for share in (0.25, 0.5, 0.9):
        exact = torch.full((40_000,), 1 + share * step)
        rounded = stochastic_round(exact, generator=torch.Generator().manual_seed(0))
        assert rounded.dtype == torch.bfloat16
        assert set(rounded.double().tolist()) == {1.0, 1 + step}
        went_up = (rounded > 1).double().mean().item()
        assert abs(went_up - share) < 0.01  # 4 standard deviations of 40,000 coins
        assert exact.bfloat16().unique().numel() == 1  # to nearest: all the same way


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_stochastic_rounding_keeps_what_fits_and_never_leaves_the_two_neighbours(sign):
    generator = torch.Generator().manual_seed(1)
    exact = sign * torch.rand(1000, generator=generator) * 2.0 ** torch.randint(-140, 100, (1000,), generator=generator)
    below = (exact.view(torch.int32) & -(1 << 16)).view(torch.float32)  # cut off: towards zero
    rounded = stochastic_round(exact, generator=generator).float()
    above = (below.view(torch.int32) + (1 << 16)).view(torch.float32)
    assert ((rounded == below) | (rounded == above)).all()
    fits = exact.bfloat16().float()
    assert torch.equal(stochastic_round(fits, generator=generator).float(), fits)


def test_stochastic_rounding_of_inf_nan_and_zero():
    odd_nans = torch.tensor([0x7F800001, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)  # only low bits; all bits
    special = torch.cat([torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0]), odd_nans])
    rounded = stochastic_round(special).float()
    assert rounded.isnan().tolist() == [False, False, True, False, True, True]
    assert torch.equal(rounded[[0, 1, 3]], special[[0, 1, 3]])


def test_a_thousand_small_updates_add_up_only_with_stochastic_rounding():
    nearest = random = torch.ones(400, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(2)
    for _ in range(1000):
        nearest = (nearest.float() + 2.0**-11).bfloat16()
        random = stochastic_round(random.float() + 2.0**-11, generator=generator)
    assert (nearest == 1).all()  # 2**-11 is below half a step, 2**-8
    assert abs(random.double().mean() - (1 + 1000 * 2.0**-11)) < 0.02


def test_of_a_transposed_tensor_and_of_a_parameter():
    matrix = torch.nn.Parameter(torch.rand(3, 4))
    rounded = stochastic_round(matrix.t())
    assert rounded.shape == (4, 3)
    assert not rounded.requires_grad
    assert (rounded.float() - matrix.t()).abs().max() < 2.0**-7


def test_what_a_learner_may_get_wrong():
    with pytest.raises(ValueError, match="only torch.float32 to torch.bfloat16"):
        stochastic_round(torch.ones(3), torch.float16)
    with pytest.raises(ValueError, match=r"call tensor.float\(\) first"):
        stochastic_round(torch.ones(3).double())
