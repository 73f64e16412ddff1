"""Stages 1 and 2 of ZeRO over NCCL, and the checkpoint from one to the other. With one GPU: a world of one rank."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers.observe.equality import assert_equal
from helpers.parallel.zero import Zero1, Zero2, sharded_checkpoint
from helpers.workloads import MLP
from tests.gpu.device import here

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WAYS = ("one process", "stage 1", "stage 1, all_reduce", "stage 2")
OPTIONS = dict(lr=1e-3, weight_decay=0.1, fused=True)


def make(way, model):
    if way == "one process":
        return torch.optim.AdamW(model.parameters(), **OPTIONS)
    if way == "stage 2":
        return Zero2(model, torch.optim.AdamW, bucket_bytes=2000, **OPTIONS)
    reduce = "all_reduce" if "all_reduce" in way else "reduce_scatter"
    return Zero1(model.named_parameters(), torch.optim.AdamW, reduce=reduce, bucket_bytes=2000, **OPTIONS)


def train(way, steps=range(10), load=None, save=None):
    device = here()
    rank, size = dist.get_rank(), dist.get_world_size()
    share = slice(None) if way == "one process" else slice(4 * rank, 4 * rank + 4)
    torch.manual_seed(0)
    model = MLP([8, 13, 9, 5]).double().to(device)
    optimizer = make(way, model)
    if load:
        sharded_checkpoint.load(load, optimizer, model=model)
    for step in steps:
        torch.manual_seed(step)
        x, y = (torch.randn(4 * size, width).double().to(device) for width in (8, 5))
        optimizer.zero_grad()
        (model(x[share]) - y[share]).square().mean().backward()
        optimizer.step()
    if save:
        sharded_checkpoint.save(save, optimizer, model=model)
    return {name: p.detach().cpu() for name, p in model.named_parameters()}


@pytest.mark.parametrize("way", WAYS[1:])
def test_ten_steps_equal_one_process(on_nccl, way):
    assert_equal(on_nccl.run(train, "one process")[0], on_nccl.run(train, way))


def test_a_checkpoint_goes_on_in_another_stage(on_nccl, tmp_path):
    folder = str(tmp_path / "step_5")
    on_nccl.run(train, "stage 1", range(5), save=folder)
    assert_equal(on_nccl.run(train, "one process")[0], on_nccl.run(train, "stage 2", range(5, 10), load=folder))
