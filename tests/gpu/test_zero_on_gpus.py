"""Stages 1 and 2 of ZeRO over NCCL, and a checkpoint from one to the other. With one GPU: a world of one rank."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.compose import Plan, Trainer
from helpers.observe.equality import assert_equal
from helpers.parallel.zero import Zero1, Zero2
from helpers.workloads import MLP
from tests.gpu.device import here

WAYS = ("one process", "stage 1", "stage 1, all_reduce", "stage 2")
OPTIONS = dict(lr=1e-3, weight_decay=0.1, fused=True)


def make(way, model):
    if way == "one process":
        return torch.optim.AdamW(model.parameters(), **OPTIONS)
    if way == "stage 2":
        return Zero2(model, torch.optim.AdamW, bucket_bytes=2000, **OPTIONS)
    reduce = "all_reduce" if "all_reduce" in way else "reduce_scatter"
    return Zero1(model.named_parameters(), torch.optim.AdamW, reduce=reduce, bucket_bytes=2000, **OPTIONS)


def build():
    torch.manual_seed(0)
    return MLP([8, 13, 9, 5]).double().to(here())


def batch(step, size):
    torch.manual_seed(step)
    return [torch.randn(4 * size, width).double().to(here()) for width in (8, 5)]


def train(way):
    rank, size = dist.get_rank(), dist.get_world_size()
    share = slice(None) if way == "one process" else slice(4 * rank, 4 * rank + 4)
    model = build()
    optimizer = make(way, model)
    for step in range(10):
        x, y = batch(step, size)
        optimizer.zero_grad()
        (model(x[share]) - y[share]).square().mean().backward()
        optimizer.step()
    return {name: p.detach().cpu() for name, p in model.named_parameters()}


def train_half(stage, folder):
    """Five steps with a Trainer: the first five with stage 1, which saves, the others with stage 2, which loads."""
    size = dist.get_world_size()
    plan, how = Plan(dp=size, zero=stage), dict(loss=nn.functional.mse_loss, optimizer=torch.optim.AdamW, **OPTIONS)
    trainer = Trainer(build(), plan, **how) if stage == 1 else Trainer.load(folder, build(), plan, **how)
    for step in range(trainer.steps, trainer.steps + 5):
        trainer.step(*batch(step, size))
    if stage == 1:
        trainer.save(folder)
    return {name: tensor.cpu() for name, tensor in trainer.full_state().items()}


@pytest.mark.parametrize("way", WAYS[1:])
def test_ten_steps_equal_one_process(on_nccl, way):
    assert_equal(on_nccl.run(train, "one process")[0], on_nccl.run(train, way))


def test_a_checkpoint_goes_on_in_another_stage(on_nccl, tmp_path):
    folder = str(tmp_path / "step_5")
    on_nccl.run(train_half, 1, folder)
    assert_equal(on_nccl.run(train, "one process")[0], on_nccl.run(train_half, 2, folder))
