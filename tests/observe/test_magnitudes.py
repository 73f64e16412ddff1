"""Counts by power of two are exact for every dtype, and the recorder sees what linear layers compute."""

import pytest
import torch
from torch import nn

from helpers.observe.magnitudes import magnitudes, record_magnitudes
from helpers.records import Magnitudes
from helpers.workloads import GPTConfig
from tools.record_magnitudes import record


def test_counts_are_by_power_of_two_and_zeros_and_infinities_apart():
    found = magnitudes(torch.tensor([0.0, -1.0, 1.5, 1.999, 2.0, -0.25, float("inf"), float("nan")]), "some")
    assert found == Magnitudes(name="some", lowest=-2, counts=(1, 0, 3, 1), zeros=1, not_finite=2)
    assert (found.counted, found.total, found.highest) == (5, 8, 2)
    assert found.bins()[0] == (-2, 0.2)


def test_several_tensors_are_one_heap():
    found = magnitudes([torch.ones(2, 3), torch.full((2,), 4.0), torch.zeros(0)])
    assert (found.lowest, found.counts) == (0, (6, 0, 2))
    assert magnitudes([]).total == 0


@pytest.mark.parametrize(
    ("dtype", "smallest"),
    [
        (torch.float64, -1074),
        (torch.float32, -149),
        (torch.bfloat16, -133),
        (torch.float16, -24),
        (torch.float8_e5m2, -16),
        (torch.float8_e4m3fn, -9),
    ],
)
def test_subnormal_numbers_have_their_own_power(dtype, smallest):
    found = magnitudes(torch.tensor([2.0**smallest, 1.0], dtype=torch.float64).to(dtype))
    assert (found.lowest, found.highest, found.zeros) == (smallest, 1, 0)


def test_integers_get_a_sentence():
    with pytest.raises(ValueError, match="a tensor of torch.int64; give floating-point"):
        magnitudes(torch.arange(3))


def test_the_recorder_sees_each_linear_layer_and_leaves_nothing_behind():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False))
    for layer, weight in zip(model[::2], (1.0, 0.5), strict=True):
        nn.init.constant_(layer.weight, weight)
    with record_magnitudes(model) as recorder:
        (0.25 * model(torch.ones(4, 2))).sum().backward()
    found = recorder.magnitudes
    assert found["weights"] == Magnitudes(name="weights", lowest=-1, counts=(3, 6))
    assert found["activations"] == Magnitudes(name="activations", lowest=1, counts=(12 + 4,))  # 2, and 3 x 2 x 0.5 = 3
    # the gradient is 0.25 at the last output, and 0.25 x 0.5 at the first
    assert found["gradients of activations"] == Magnitudes(name="gradients of activations", lowest=-3, counts=(12, 4))
    assert found["gradients of weights"].total == 9
    model(torch.ones(4, 2))
    assert recorder.magnitudes["activations"].total == 16


def test_the_recorded_file_can_be_recorded_again():
    found = record(GPTConfig.tiny(), steps=2)
    assert found["gradients of weights"].total == 28_672 and found["activations"].total == 16 * 32 * (2 * 288 + 68)
    assert all(one.not_finite == 0 for one in found.values())
