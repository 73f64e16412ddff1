"""Layers cut by columns that share an input: equal to whole layers, with one message a pass for all of them."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel.layers import SharedInput, column_linears


def inputs():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12).double(), nn.Linear(6, 24, bias=False).double()]
    return layers, torch.randn(2, 12, 6, dtype=torch.float64)


def whole():
    layers, x = inputs()
    x.requires_grad_()
    ys = [layer(x) for layer in layers]
    (ys[0].square().sum() + ys[1].square().sum()).backward()
    return {"x": x.grad, "w0": layers[0].weight.grad, "b0": layers[0].bias.grad, "w1": layers[1].weight.grad}


def split(dim, overlap):
    layers, x = inputs()
    rank, n = dist.get_rank(), dist.get_world_size()
    weights = [layer.weight.detach().chunk(n)[rank].requires_grad_() for layer in layers]
    bias = layers[0].bias.detach().chunk(n)[rank].requires_grad_()
    x = (x if dim is None else x.chunk(n, dim)[rank]).requires_grad_()
    with record_comms() as forward:
        ys = column_linears(x, weights, [bias, None], dist.group.WORLD, dim, overlap)
    with record_comms() as backward:
        (ys[0].square().sum() + ys[1].square().sum()).backward()
    join = lambda t, d=0: torch.cat(gather(t), d)  # noqa: E731
    found = {"w0": join(weights[0].grad), "b0": join(bias.grad), "w1": join(weights[1].grad)}
    found["x"] = x.grad if dim is None else join(x.grad, dim)
    return found, [event.op for event in forward.log.events], [event.op for event in backward.log.events]


def gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return parts


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_equals_whole_layers_with_one_message_a_pass(world, dim, overlap):
    if dim == 0 and len(world) > 2:
        dim = 1  # two rows are not for more ranks
    results = world.run(split, dim, overlap)
    assert_equal(whole(), [found for found, _, _ in results])
    messages = ([], []) if len(world) == 1 else ([], ["all_reduce"])
    if dim is not None and len(world) > 1:
        messages = (["all_gather"], ["all_gather", "reduce_scatter"])
    assert all((forward, backward) == messages for _, forward, backward in results)


def test_an_input_that_needs_no_gradient_costs_no_message(ranks):
    def backward():
        x, weight = torch.ones(3, 4), torch.ones(2, 4, requires_grad=True)
        with record_comms() as recorder:
            column_linears(x, [weight], [None], None)[0].sum().backward()
        return len(recorder.log.events), weight.grad.tolist()

    assert ranks[:2].run(backward) == [(0, [[3.0] * 4] * 2)] * 2


def test_frozen_weights_get_no_gradient_and_the_input_is_not_gathered_again(ranks):
    def backward():
        x, weight = torch.ones(3, 4, requires_grad=True), torch.ones(2, 4)
        (y,) = column_linears(x, [weight], [None], None, dim=0)
        with record_comms() as recorder:
            y.sum().backward()
        return [event.op for event in recorder.log.events], x.grad[0, 0].item(), weight.grad

    assert ranks[:2].run(backward) == [(["reduce_scatter"], 4.0, None)] * 2


def test_autocast_reaches_the_cut_layers(ranks):
    def grads():
        x, weight = torch.ones(3, 4, requires_grad=True), torch.ones(2, 4, requires_grad=True)
        with torch.autocast(computing_device().type, torch.bfloat16):
            (y,) = column_linears(x, [weight], [None], None)
            y.float().sum().backward()
        return y.dtype, x.grad.dtype, weight.grad.dtype, x.grad[0, 0].item()

    assert ranks[:2].run(grads) == [(torch.bfloat16, torch.float32, torch.float32, 4.0)] * 2


class Layer:
    group, sequence_dim, overlap = None, None, True

    def __init__(self, value):
        self.weight, self.asked = torch.full((1, 2), value), 0

    def weight_and_bias(self):
        self.asked += 1
        return self.weight, None


def test_the_first_of_the_layers_does_the_work_of_all_and_nothing_is_kept(ranks):
    def calls():
        layers = [Layer(1.0), Layer(2.0)]
        shared, x = SharedInput(layers), torch.ones(1, 2)
        first = [shared(each, x).item() for each in layers]
        asked = [each.asked for each in layers]
        kept = shared.x, shared.waiting
        other = torch.full((1, 2), 3.0)  # one layer alone, then another input: nothing stale comes out
        again = shared(layers[0], x).item(), shared(layers[1], other).item(), shared(layers[0], other).item()
        return first, asked, kept, again

    assert ranks[:1].run(calls) == [([2.0, 4.0], [1, 1], (None, {}), (2.0, 12.0, 6.0))]
