"""A sharded layer equals one process: losses, gradients and weights of five steps, on every rank, in float64."""

from __future__ import annotations

import inspect
import sys
import weakref

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.zero import ShardedLayer, simple

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, BATCH = 5, 12


class Tied(nn.Module):
    """Two matrices that are one parameter, and a buffer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(7, 7), nn.Linear(7, 7, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.full((7,), 0.5))

    def forward(self, x):
        return torch.tanh(self.two(torch.tanh(self.one(x)))) + self.shift


def layers(seed=0):
    """Odd sizes: 63, 56, 1 and 40 elements, of which 4 ranks pad three."""
    torch.manual_seed(seed)
    return [each.double() for each in (nn.Linear(8, 7), Tied(), nn.PReLU(), nn.Linear(7, 5))]


def trained(seed, share, average, wrap, whole):
    model = nn.Sequential(*(wrap(layer) for layer in layers(seed)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    history, generator = {}, torch.Generator().manual_seed(7)
    for step in range(STEPS):
        x = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)[share]
        optimizer.zero_grad()
        loss = (model(x) - x[:, :5]).square().mean()
        loss.backward()
        history |= {f"{step} {index}.grad": whole(layer, grad=True) for index, layer in enumerate(model)}
        optimizer.step()
        history |= {f"{step} {index}": whole(layer) for index, layer in enumerate(model)} | {
            f"{step} loss": average(loss)
        }
    return history


def one_process():
    def whole(layer, grad=False):
        return torch.cat([(p.grad if grad else p.detach()).flatten().clone() for p in layer.parameters()])

    return trained(0, slice(None), torch.detach, lambda layer: layer, whole)


def on_ranks():
    def whole(layer, grad=False):
        flat = layer.layout.new_flat()
        layer.layout.all_gather(flat, layer.shard.grad if grad else layer.shard.detach())
        return flat[: layer.layout.numel]

    def average(loss):
        dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG)
        return mean

    rank, share = dist.get_rank(), BATCH // dist.get_world_size()
    return trained(rank, slice(rank * share, (rank + 1) * share), average, ShardedLayer, whole)


def test_equals_one_process(world):
    assert_equal(one_process(), world.run(on_ranks))


def test_a_layer_is_gathered_twice_and_whole_only_while_it_computes(ranks):
    def step():
        model, most = nn.Sequential(*(ShardedLayer(nn.Linear(6, 6)) for _ in range(3))), 0
        gather = ShardedLayer.gather

        def spy(layer):
            nonlocal most
            most = max(most, 1 + sum(other.full is not None for other in model))
            return gather(layer)

        ShardedLayer.gather = spy
        try:
            with record_comms() as recorder:
                model(torch.ones(2, 6, requires_grad=True)).sum().backward()
        finally:
            ShardedLayer.gather = gather
        return most, [event.op for event in recorder.log.events], [layer.full for layer in model]

    backward = ["all_gather", "reduce_scatter"] * 3
    assert ranks[:2].run(step) == [(1, ["all_gather"] * 3 + backward, [None] * 3)] * 2


def test_the_graph_does_not_keep_the_weights(ranks):
    def alive_after_forward():
        layer, gather, gathered = ShardedLayer(nn.Linear(6, 6)), ShardedLayer.gather, []

        def spy(self):
            flat = self.layout.new_flat()  # without a message, whose thread may hold it a moment longer
            gathered.append(weakref.ref(flat.untyped_storage()))
            return flat

        ShardedLayer.gather = spy
        try:
            y = layer(torch.ones(2, 6, requires_grad=True))
        finally:
            ShardedLayer.gather = gather
        return [one() is not None for one in gathered], [p.numel() for p in layer.parameters()], y.requires_grad

    assert ranks[:2].run(alive_after_forward) == [([False], [21, 0, 0], True)] * 2


class Fragile(nn.Module):
    """Its backward raises on request, after the second matrix has been gathered again."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.fail = nn.Linear(6, 6), nn.Linear(6, 6), False

    def forward(self, x):
        x = self.one(x)
        if self.fail:
            x.register_hook(lambda _: 1 / 0)
        return self.two(x)


@pytest.mark.cpu("a card raises what a hook raised when backward has ended, and the gradient is there")
def test_a_backward_that_raised_leaves_nothing_behind(ranks):
    def gradient(fail):
        torch.manual_seed(0)
        model = ShardedLayer(Fragile())
        model.layer.fail = fail
        if fail:
            with pytest.raises(ZeroDivisionError):
                model(torch.ones(2, 6)).sum().backward()
        model.layer.fail = False
        with torch.no_grad():
            model.shard += 1
        model(torch.ones(2, 6)).square().sum().backward()
        return {"gradient": model.shard.grad}

    for found, expected in zip(ranks[:2].run(gradient, True), ranks[:2].run(gradient, False), strict=True):
        assert_equal(expected, found)


def test_it_fits_one_screen():
    assert len(inspect.getsource(simple).partition("\nclass ")[2].splitlines()) <= 60
