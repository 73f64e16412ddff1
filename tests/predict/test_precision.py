"""What a number format keeps of values."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.observe.magnitudes import magnitudes
from helpers.predict.precision import NUMBER_FORMATS, SCALES, best_scale, recorded, recorded_magnitudes, surviving
from helpers.records import Magnitudes

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8 E5M2": torch.float8_e5m2, "fp8 E4M3": torch.float8_e4m3fn}


def values(spread=8.0, centre=-20.0):
    """A heap that lies evenly in log2 within each bin, about as gradients do."""
    powers = centre + spread * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.exp2(powers).float()


def counted(scaled, dtype):
    """The same shares, from torch's rounding of every value."""
    rounded, finfo = scaled.to(dtype).float(), torch.finfo(dtype)
    overflow = rounded.isinf() | (scaled > finfo.max) & (rounded == finfo.max)
    zero, normal = rounded == 0, (scaled >= finfo.smallest_normal) & ~overflow
    return [flag.double().mean().item() for flag in (normal, ~(zero | normal | overflow), zero, overflow)]


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**24, 1000.0])
def test_shares_are_those_of_torchs_rounding(name, scale):
    heap = values()
    found = surviving(magnitudes(heap), name, scale)
    shares = [found.normal, found.subnormal, found.zero, found.overflow]
    assert sum(shares) == pytest.approx(1)
    # exact at powers of two; a bound inside a bin, such as 448, assumes that values lie evenly there
    assert shares == pytest.approx(counted(heap * scale, TORCH[name]), abs=2e-3)


def test_bounds_at_powers_of_two_are_exact():
    heap = torch.tensor([2.0**-25 * (1 - 2**-20), 2.0**-25 * (1 + 2**-20), 2.0**-24, 2.0**-14, 1.0])
    found = surviving(magnitudes(heap), "fp16")
    shares = [found.zero, found.subnormal, found.normal, found.overflow]
    assert shares == pytest.approx([1 / 5, 2 / 5, 2 / 5, 0], abs=1e-12)


def test_a_scale_moves_every_value_up_by_its_power():
    heap = values()
    scaled = surviving(magnitudes(heap * 2.0**9), "fp16")
    assert surviving(magnitudes(heap), "fp16", 2.0**9) == scaled


def test_the_best_scale_keeps_most_without_one_overflow():
    """The largest bin ends at 2**-3. Times 2**19 it would end at 2**16, which 65504 cuts."""
    heap = Magnitudes(lowest=-40, counts=(1,) * 37)
    assert best_scale(heap, "fp16") == 2.0**18
    assert surviving(heap, "fp16", 2.0**18).overflow == 0 < surviving(heap, "fp16", 2.0**19).overflow
    assert best_scale(Magnitudes(lowest=-30, counts=(1,)), "fp16") == 2.0**16  # more would bring nothing
    assert best_scale(heap, "bf16") == 1.0
    assert best_scale(Magnitudes(lowest=40, counts=(1,)), "fp16", SCALES) == 1.0  # all overflow


def test_the_recorded_gpt_is_the_one_of_the_course():
    found = recorded_magnitudes()
    assert list(found) == ["weights", "activations", "gradients of activations", "gradients of weights"]
    assert found["weights"].total == found["gradients of weights"].total == 10_698_240
    # q, k, v, projection (4 x 384), up (1536) and down (384) in 6 blocks, and the head's 68, for 16 x 64 tokens
    assert found["activations"].total == 16 * 64 * (6 * (5 * 384 + 1536) + 68)
    shares = surviving(recorded("gradients of activations"), "fp16")
    assert 0.4 < shares.zero < 0.55 and shares.overflow == 0


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: surviving(Magnitudes(counts=(1,)), "fp12"), "no number format 'fp12'; the known ones are fp32"),
        (lambda: surviving(Magnitudes(counts=(1,)), "fp16", 0.0), "the loss scale is 0.0; give a positive number"),
        (lambda: surviving(Magnitudes(counts=(1,)), "fp16", math.inf), "the loss scale is inf"),
        (lambda: recorded("losses"), "no magnitudes are recorded under 'losses'; the known ones are weights"),
        (lambda: surviving(Magnitudes(name="noise", zeros=5), "fp16"), "noise: no value is finite and above 0"),
    ],
)
def test_bad_input_gets_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), *TORCH.items()])
def test_numbers_equal_those_of_torch(name, dtype):
    ours, theirs = NUMBER_FORMATS[name], torch.finfo(dtype)
    assert (ours.largest, ours.epsilon) == (theirs.max, theirs.eps)
    assert 1 + ours.exponent_bits + ours.mantissa_bits == theirs.bits  # 1 for the sign
    assert ours.smallest_normal == theirs.smallest_normal
    if dtype is not torch.float32:  # finfo gives no exact smallest subnormal, so read it off the bits
        bits = torch.uint8 if theirs.bits == 8 else torch.int16
        assert torch.tensor([1], dtype=bits).view(dtype).double().item() == ours.smallest_subnormal


def test_tf32_has_the_range_of_fp32_and_fewer_digits():
    assert NUMBER_FORMATS["fp32"].smallest_subnormal == 2**-149
    tf32 = NUMBER_FORMATS["tf32"]
    assert (tf32.exponent_bits, tf32.mantissa_bits) == (8, 10)
    assert tf32.smallest_normal == NUMBER_FORMATS["fp32"].smallest_normal


def torch_fate(value, name, dtype):
    rounded = torch.tensor(value, dtype=torch.float64).to(dtype).double().item()
    if rounded == NUMBER_FORMATS[name].largest < value:
        return "largest"
    if math.isinf(rounded):
        return "∞"
    if rounded == 0:
        return "0"
    return "normal" if value >= NUMBER_FORMATS[name].smallest_normal else "subnormal"


@pytest.mark.parametrize(("name", "dtype"), TORCH.items())
def test_fates_are_those_of_torchs_own_rounding(name, dtype):
    one = NUMBER_FORMATS[name]
    step = 2.0 ** math.floor(math.log2(one.largest)) * one.epsilon
    normal, largest = one.smallest_normal, one.largest
    near = [one.smallest_subnormal / 2, one.smallest_subnormal, normal, largest, largest + step / 2]
    for value in (scale * value for value in near for scale in (0.95, 1.0, 1.05, 2.0)):
        if value < 3e38:  # beyond it the value is infinite in torch's own intermediate float32
            assert one.rounded_class(value) == one.rounded_class(-value) == torch_fate(value, name, dtype), value
    with pytest.raises(ValueError, match="the value is NaN"):
        one.rounded_class(math.nan)
