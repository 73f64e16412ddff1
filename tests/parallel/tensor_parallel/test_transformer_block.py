"""The tensor-parallel block on one screen trains like the plain block, and like PyTorch's parallelize_module."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers.chapters.strategies import TensorParallel
from helpers.devices import computing_device
from helpers.observe.comms import record_comms
from helpers.observe.training import OneProcess, Training, beside_one_process
from helpers.parallel.tensor_parallel.transformer_block import TensorParallelBlock, TransformerBlock

HIDDEN, HEADS, WIDTH = 24, 12, 36
PLAN = {f"*.{name}": ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
PLAN |= {f"*.{name}": RowwiseParallel() for name in ("output", "down")}


def blocks():
    return nn.Sequential(*(TransformerBlock(HIDDEN, HEADS, WIDTH) for _ in range(2))).double()


def batch(step):
    x = torch.randn(3, 5, HIDDEN, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, x.roll(1, 1)


TRAINING = Training(
    model=blocks, batch=batch, loss=nn.functional.mse_loss, options=dict(lr=1e-2, foreach=False), steps=4
)


class Parallelized(OneProcess):
    """PyTorch's way."""

    def __init__(self, model, training):
        mesh = init_device_mesh(computing_device().type, (dist.get_world_size(),))
        super().__init__(parallelize_module(model, mesh, PLAN), training)

    def state(self):
        weights = dict(self.model.named_parameters())
        found = weights | {f"{name}.grad": weight.grad for name, weight in weights.items()}
        full = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in found.items()}
        return {name: each.detach() for name, each in full.items()}


def test_every_rank_equals_one_process(world):
    beside_one_process(world, TRAINING.under(TensorParallel))


def test_pytorchs_parallelize_module_trains_alike(ranks):
    beside_one_process(ranks[:2], TRAINING.under(Parallelized))


def test_two_all_reduces_in_forward_and_two_in_backward(ranks):
    def messages():
        model, x = TensorParallelBlock(blocks()[0]), batch(0)[0].requires_grad_()
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
