"""Paced compute takes its modelled time and gives the real result."""

import time

import pytest
import torch
from torch import nn

from helpers.observe.paced import PacedLinear, paced


def test_the_result_comes_no_earlier_than_modelled():
    start = time.perf_counter()
    assert paced(lambda: 6 * 7, 0.02) == 42
    assert time.perf_counter() - start >= 0.02


def test_a_slow_operation_is_not_cut_short():
    start = time.perf_counter()
    paced(lambda: time.sleep(0.02), 0.001)
    assert time.perf_counter() - start >= 0.02


def test_gradients_are_those_of_a_linear_layer_and_come_after_the_modelled_time():
    torch.manual_seed(0)
    layer = PacedLinear(3, 2, forward_seconds=0.01, backward_seconds=0.03).double()
    plain = nn.Linear(3, 2).double()
    plain.load_state_dict(layer.state_dict())
    x, y = torch.randn(4, 3).double().requires_grad_(), torch.randn(4, 3).double()
    y = x.detach().clone().requires_grad_()
    arrivals = []
    layer.weight.register_post_accumulate_grad_hook(lambda p: arrivals.append(time.perf_counter()))
    output = layer(x).square().sum()
    start = time.perf_counter()
    output.backward()
    plain(y).square().sum().backward()
    assert arrivals[0] - start >= 0.03
    for ours, theirs in ((x, y), (layer.weight, plain.weight), (layer.bias, plain.bias)):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_negative_duration_gets_a_sentence():
    with pytest.raises(ValueError, match="0 or more seconds"):
        paced(lambda: None, -1)
