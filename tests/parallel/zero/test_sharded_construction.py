"""A model built in shards has the values of its own constructor."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.devices import computing_device
from helpers.parallel.zero.sharded_construction import ShardedConstruction


class Particular(nn.Module):
    """What constructors do: in-place chains, arithmetic, views, a second pass over old values, buffers, numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(50, 60), nn.BatchNorm1d(60)
        self.embedding = nn.Embedding(70, 30, padding_idx=3)  # a row of zeros, through a view
        self.scaled = nn.Parameter(torch.randn(40, 50) * 0.02 + torch.arange(50.0))
        self.uniform = nn.Parameter(torch.empty(40, 50).uniform_(-1, 1).clamp_(-0.5, 0.5).add_(1))
        self.ramp = nn.Parameter(torch.linspace(0, 1, 33))
        self.rates = nn.Parameter(torch.tensor([0.5, 0.25]))
        self.register_buffer("mask", torch.ones(50, 50).tril())
        with torch.no_grad():
            self.first.weight.mul_(3)  # the constructor comes back to it
            self.embedding.weight[5] = 1.0


def values_of(model, read):
    return {name: read(tensor).detach().clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def both():
    torch.manual_seed(5)
    plain = Particular()
    torch.manual_seed(5)
    with ShardedConstruction(dist.group.WORLD, computing_device()) as construction:
        model = Particular()
    assert [name for name, parameter in model.named_parameters() if not parameter.is_meta] == ["rates"]
    construction.fill_buffers(model)
    after = torch.rand(3)
    torch.manual_seed(5)
    Particular()
    assert torch.equal(after, torch.rand(3))  # as many random numbers were drawn
    read = lambda tensor: construction.values(tensor) if tensor.is_meta else tensor  # noqa: E731
    return values_of(plain, lambda tensor: tensor), values_of(model, read)


@pytest.mark.parametrize("world_size", [1, 3])
def test_values_are_those_of_the_plain_constructor(ranks, world_size):
    for right, mine in ranks[:world_size].run(both):
        assert right.keys() == mine.keys()
        assert [name for name in right if not torch.equal(right[name], mine[name])] == []


def test_values_are_given_once(ranks):
    def twice():
        with ShardedConstruction(dist.group.WORLD, computing_device()) as construction:
            weight = torch.zeros(3)
        construction.values(weight)
        with pytest.raises(RuntimeError, match="has no values here"):
            construction.values(weight)

    ranks[:1].run(twice)


def test_values_that_nothing_wrote_are_refused(ranks):
    """torch's trunc_normal_ returns at once on the meta device: the weights would be what memory held before."""

    def truncated():
        with ShardedConstruction(dist.group.WORLD, computing_device()) as construction:
            weight = nn.init.trunc_normal_(torch.empty(3, 4))
        with pytest.raises(RuntimeError, match=r"no operation.*\(3, 4\).*trunc_normal_"):
            construction.values(weight)

    ranks[:1].run(truncated)
