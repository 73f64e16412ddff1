"""What a format can tell apart, tried on torch's own numbers, and stochastic rounding, right on average."""

from __future__ import annotations

import pytest
import torch

from helpers.parallel.amp import rounding
from helpers.parallel.amp.rounding import stochastic_round

FORMATS = {
    torch.float16: (11, -24),
    torch.bfloat16: (8, -133),
    torch.float32: (24, -149),
    torch.float8_e4m3fn: (4, -9),
    torch.float8_e5m2: (3, -16),
}


@pytest.mark.parametrize(("dtype", "bits", "exponent"), [(dtype, *facts) for dtype, facts in FORMATS.items()])
def test_bits_and_smallest_number(dtype, bits, exponent):
    assert rounding.significand_bits(dtype) == bits
    assert rounding.smallest_subnormal(dtype) == 2.0**exponent
    assert torch.tensor(2.0**exponent, dtype=torch.float64).to(dtype).double().item() == 2.0**exponent


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_the_smallest_number_is_zero_and_anything_above_is_not(dtype):
    edge = torch.tensor(rounding.zero_below(dtype), dtype=torch.float64)
    assert edge.to(dtype) == 0  # a tie, and zero is the even side
    assert (edge * 1.001).float().to(dtype).double() == rounding.smallest_subnormal(dtype)
    assert rounding.zero_below(torch.float16) == 2.0**-25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_step_after_one(dtype):
    one = torch.ones((), dtype=dtype)
    assert one + rounding.relative_step(dtype) > one
    assert one + rounding.relative_step(dtype) / 2 == one


def all_weights(dtype: torch.dtype) -> torch.Tensor:
    """Every number of the format from 1 up to 2, and 2 itself: (steps + 1,)."""
    step = rounding.relative_step(dtype)
    return torch.arange(1, 2 + step, step, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_an_update_is_lost_beyond_these_ratios(dtype, bits):
    possible, always = rounding.lost_update_ratios(dtype)
    assert (possible, always) == (2.0**bits, 2.0 ** (bits + 1))
    weights = all_weights(dtype)

    def lost(ratio: float, sign: int) -> torch.Tensor:
        exact = weights + sign * weights / ratio
        return exact.to(dtype).double() == weights

    for sign in (1, -1):
        assert lost(always * 1.001, sign).all()
        assert not lost(possible * 0.999, sign).any()
        between = lost(possible * 1.2, sign)
        assert between.any()
        assert not between.all()


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
    with pytest.raises(ValueError, match="not a floating-point type"):
        rounding.relative_step(torch.int8)
