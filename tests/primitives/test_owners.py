"""Each parameter's owner alone gets its mean gradient and updates it; together that is one process."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers.measure.equality import assert_equal
from helpers.primitives.owners import OwnedParameters
from helpers.workloads import MLP, synthetic

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def build():
    torch.manual_seed(0)
    return MLP([8, 6, 6, 4]).double()


def batch(rank: int):
    return synthetic(4, 8, 4, seed=rank, dtype=torch.float64)


def loss_of(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def train_owned():
    model = build()
    owned = OwnedParameters(model.parameters())
    optimizer = torch.optim.SGD(owned.own, lr=0.1, momentum=0.9)
    for _ in range(3):
        model.zero_grad()
        loss_of(model, *batch(dist.get_rank())).backward()
        owned.reduce_gradients()
        kept = [index for index, parameter in enumerate(owned.parameters) if parameter.grad is not None]
        optimizer.step()
        owned.broadcast()
    return kept, dict(model.named_parameters())


def train_alone(world_size: int):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (torch.cat(parts) for parts in zip(*map(batch, range(world_size)), strict=True))
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return dict(model.named_parameters())


def test_equals_one_process_and_each_gradient_has_one_owner(world):
    results = world.run(train_owned)
    size = len(results)
    assert [kept for kept, _ in results] == [list(range(rank, 6, size)) for rank in range(size)]
    assert_equal(train_alone(size), [weights for _, weights in results])


def test_fewer_parameters_than_ranks(ranks):
    def message():
        with pytest.raises(ValueError) as caught:
            OwnedParameters([torch.nn.Parameter(torch.ones(1))])
        return str(caught.value)

    assert all("1 parameters for 2 ranks" in text for text in ranks[:2].run(message))
