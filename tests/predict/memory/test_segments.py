"""The square-root rule, against its closed form and against what autograd keeps."""

import math

import pytest
import torch
from torch import nn

from helpers.parallel.shared.devices import VirtualDevices
from helpers.parallel.shared.recompute import checkpoint
from helpers.predict.memory.activation_bytes import activations_per_layer
from helpers.predict.memory.segments import best_segments, segments_peak
from helpers.specs import PRESETS, Plan


@pytest.mark.parametrize("num_layers", [1, 4, 9, 16, 25, 64, 100, 400])
def test_the_best_is_the_square_root(num_layers):
    root = math.isqrt(num_layers)
    assert best_segments(num_layers) == root
    assert segments_peak(num_layers, root) == 2 * root


def test_a_transformer_wants_a_segment_a_layer_until_it_is_deep():
    """34 s b h inside against 2 s b h that goes in: two layers in each segment cost 17 more and save n / 2 inputs."""
    sizes = dict(input_bytes=2, inside_bytes=34)
    assert [best_segments(n, **sizes) for n in (2, 8, 16, 33, 34)] == [2, 8, 16, 33, 17]
    assert best_segments(96, **sizes) < 96
    gpt3 = PRESETS["gpt3-175b"]
    kept = {r: activations_per_layer(gpt3, Plan(recompute=r)) for r in ("none", "full")}
    assert kept["none"] / kept["full"] == 17


def measured_peak(num_layers, num_segments):
    """Tensors of one chain at the worst moment of backward, in layers' outputs; sigmoid keeps its output."""
    x, bounds = torch.zeros(1000, requires_grad=True), [num_layers * k // num_segments for k in range(num_segments + 1)]
    layers, devices = [nn.Sigmoid() for _ in range(num_layers)], VirtualDevices(1)
    with devices:
        out = x
        for a, b in zip(bounds[:-1], bounds[1:], strict=True):
            out = checkpoint(nn.Sequential(*layers[a:b]), out, preserve_rng_state=False)
        loss = out.sum()
        del out
        loss.backward()
    return devices.peak(0) / 4000


def test_the_formula_follows_a_run():
    """The run holds a constant more: gradients that pass through, and the chain's own output."""
    above = [measured_peak(36, k) - segments_peak(36, k) for k in (1, 2, 3, 4, 6, 9, 12, 18, 36)]
    assert max(above) - min(above) <= 1.1 and 0 <= min(above) <= 4


@pytest.mark.parametrize("call", [
    lambda: segments_peak(4, 0), lambda: segments_peak(4, 5), lambda: best_segments(0),
])  # fmt: skip
def test_bad_numbers_get_a_sentence(call):
    with pytest.raises(ValueError, match="expected 1"):
        call()
