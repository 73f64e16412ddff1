"""A pair of cut matrices equals one process: losses, gradients and weights of five steps, on every rank, in float64."""

from __future__ import annotations

import inspect
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel import TensorParallelMLP

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, WIDTH = 5, 6
CUT = {"up.weight": 0, "up.bias": 0, "down.weight": 1}  # the dimension in which each is cut


class PlainMLP(nn.Module):
    def __init__(self, up, down):
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Residual(nn.Module):
    """Two pairs and a layer before them, which learns from what the pairs send back."""

    def __init__(self, middle, make):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, WIDTH).double()
        widths = [(nn.Linear(WIDTH, middle).double(), nn.Linear(middle, WIDTH).double()) for _ in range(2)]
        self.pairs = nn.ModuleList(make(*pair) for pair in widths)

    def forward(self, x):
        x = self.first(x)
        for pair in self.pairs:
            x = x + pair(x)
        return x


def whole(name, part):
    """The ranks' parts of a tensor, put together; with one process the tensor itself."""
    name = ".".join(name.replace("_", ".").split(".")[-2:])
    if name not in CUT or not dist.is_initialized():
        return part.clone()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    return torch.cat(parts, CUT[name])


def trained(middle, make):
    model, history = Residual(middle, make), {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(3)
    for step in range(STEPS):
        x = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        history[f"{step} loss"] = loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            common = f"{step} {name}".replace("_", ".")
            history[common] = whole(name, parameter.detach())
            history[f"{common}.grad"] = whole(name, parameter.grad)
    return {name: tensor.detach() for name, tensor in history.items()}


@pytest.mark.parametrize("middle", [12, 10, 3], ids=["even", "uneven", "a rank without columns"])
def test_equals_one_process(world, middle):
    assert_equal(trained(middle, PlainMLP), world.run(trained, middle, TensorParallelMLP))


def test_one_sum_forward_and_one_backward(ranks):
    def step():
        x = torch.ones(2, WIDTH, requires_grad=True)
        model = TensorParallelMLP(nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH))
        with record_comms() as forward:
            y = model(x)
        with record_comms() as backward:
            y.sum().backward()
        return [[(e.op, e.payload_bytes) for e in recorder.log.events] for recorder in (forward, backward)]

    assert ranks[:2].run(step) == [[[("all_reduce", 4 * 2 * WIDTH)]] * 2] * 2


def test_it_fits_one_screen():
    assert len(inspect.getsource(TensorParallelMLP).splitlines()) <= 60
