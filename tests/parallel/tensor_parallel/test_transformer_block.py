"""The tensor-parallel block on one screen trains like the plain block, and like PyTorch's parallelize_module."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel.transformer_block import TensorParallelBlock, TransformerBlock

STEPS, HIDDEN, HEADS, WIDTH = 4, 24, 12, 36
ROWS = ("output", "down")  # the row-parallel matrices; all others are column-parallel
COLUMNS = ("query", "key", "value", "gate", "up")


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(*(TransformerBlock(HIDDEN, HEADS, WIDTH) for _ in range(2))).double()


def batches():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, 3, 5, HIDDEN, generator=generator, dtype=torch.float64)


def full(name, tensor):
    """A shard's full tensor; a DTensor's as well; any other tensor itself."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().clone()
    if ".block." not in name or "norm" in name:
        return tensor.clone()
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, tensor.contiguous())
    return torch.cat(pieces, 1 if name.split(".")[-2] in ROWS else 0)


def trained(model):
    optimizer, history = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False), {}
    for step, x in enumerate(batches()):
        optimizer.zero_grad()
        loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        history[f"{step} loss"] = loss.detach()
        for name, parameter in model.named_parameters():
            history[f"{step} {name.replace('.block', '')}"] = full(name, parameter.detach())
            history[f"{step} {name.replace('.block', '')}.grad"] = full(name, parameter.grad)
    return history


def ours():
    return trained(nn.Sequential(*map(TensorParallelBlock, blocks())))


def pytorchs():
    mesh = init_device_mesh(computing_device().type, (dist.get_world_size(),))
    plan = {f"*.{name}": ColwiseParallel() for name in COLUMNS} | {f"*.{name}": RowwiseParallel() for name in ROWS}
    return trained(parallelize_module(blocks(), mesh, plan))


def test_every_rank_equals_one_process(world):
    assert_equal(trained(blocks()), world.run(ours))


def test_two_ranks_equal_one_process_and_parallelize_module(ranks):
    theirs = ranks[:2].run(pytorchs)
    assert_equal(trained(blocks()), theirs)
    assert_equal(theirs[0], ranks[:2].run(ours))


def test_two_all_reduces_in_forward_and_two_in_backward(ranks):
    def messages():
        model, x = TensorParallelBlock(blocks()[0]), batches()[0].requires_grad_()
        with record_comms() as forward:
            y = model(x)
        with record_comms() as backward:
            y.sum().backward()
        return [[(event.op, event.payload_bytes) for event in one.log.events] for one in (forward, backward)]

    one = ("all_reduce", 3 * 5 * HIDDEN * 8)
    assert ranks[:2].run(messages) == [[[one] * 2] * 2] * 2


def test_a_rank_keeps_its_share_of_the_matrices(ranks):
    def kept():
        return sum(parameter.numel() for parameter in TensorParallelBlock(blocks()[0]).parameters())

    matrices = 4 * HIDDEN**2 + 3 * HIDDEN * WIDTH
    assert ranks.run(kept) == [matrices // 4 + 2 * HIDDEN] * 4


def test_heads_that_cannot_be_shared_are_refused(ranks):
    def build():
        with pytest.raises(ValueError, match="4 heads and 30 columns of the MLP are for 3 ranks"):
            TensorParallelBlock(TransformerBlock(16, 4, 30))

    ranks[:3].run(build)
