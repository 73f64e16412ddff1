"""Backward in two parts: together they are backward, and the first leaves exactly the large weights out."""

import pytest
import torch
from torch import nn

from helpers.parallel.pipeline.stage import deferred_weights
from helpers.parallel.shared.autocast import autocast
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet

MODELS = {
    "gpt": (lambda: GPT(GPTConfig.tiny()), lambda: torch.randint(0, 68, (2, 8))),
    "mlp": (lambda: MLP([8, 16, 4]), lambda: torch.randn(3, 8, dtype=torch.float64)),
    "resnet": (lambda: SmallResNet(width=4), lambda: torch.randn(2, 1, 8, 8, dtype=torch.float64)),
}


def gradients(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", MODELS)
def test_both_parts_together_are_backward(kind):
    build, draw = MODELS[kind]
    torch.manual_seed(0)
    model, x = build().double(), draw()
    for _ in range(2):  # the second time gradients are added
        model(x).sin().sum().backward()
    whole = gradients(model)
    model.zero_grad()
    for _ in range(2):
        with deferred_weights() as later:
            output = model(x)
        output.sin().sum().backward()
        later.run()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-12, atol=1e-14)


def test_the_first_part_gives_the_input_its_gradient_and_leaves_the_weight_out():
    layer, x = nn.Linear(4, 3), torch.randn(5, 4, requires_grad=True)
    with deferred_weights() as later:
        layer(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(5, 3) @ layer.weight)
    assert layer.weight.grad is None and torch.equal(layer.bias.grad, torch.full((3,), 5.0))
    later.run()
    assert torch.equal(layer.weight.grad, torch.ones(3, 5) @ x)


def test_frozen_weights_are_not_put_off():
    layer = nn.Linear(4, 3).requires_grad_(False)
    x = torch.randn(5, 4, requires_grad=True)
    with deferred_weights() as later:
        layer(x).sum().backward()
    assert not later.work and x.grad is not None


@pytest.mark.parametrize(
    "options", [dict(stride=2), dict(padding=1), dict(dilation=2), dict(groups=2), dict(bias=False)]
)
def test_convolutions_of_all_kinds(options):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, **options).double()
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64, requires_grad=True)
    layer(x).sin().sum().backward()
    expected = [x.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
    x.grad = None
    layer.zero_grad()
    with deferred_weights() as later:
        layer(x).sin().sum().backward()
    later.run()
    torch.testing.assert_close([x.grad, *(p.grad for p in layer.parameters())], expected)


@pytest.mark.parametrize("kind", ["gpt", "resnet"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_both_parts_under_autocast_compute_in_16_bits_and_keep_the_weights_type(kind, dtype):
    build, draw = MODELS[kind]
    torch.manual_seed(0)
    model, x = build().float(), draw()
    x = x.float() if x.is_floating_point() else x
    with autocast(dtype):
        loss = model(x).sin().sum()
    loss.backward()
    whole = gradients(model)
    model.zero_grad()
    with autocast(dtype), deferred_weights() as later:
        loss = model(x).sin().sum()
    loss.backward()
    later.run()
    for name, gradient in gradients(model).items():
        assert gradient.dtype == torch.float32
        few = 4 * torch.finfo(dtype).eps  # sums are rounded in another order
        torch.testing.assert_close(gradient, whole[name], rtol=few, atol=few * float(whole[name].abs().max()))
