"""3D parallelism on one screen: its groups are those of init_device_mesh, and its step is that of one process."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers.chapters.strategies import (
    ThreeDimensions,
    batch,
    compare_with_one_process,
    language_model,
    stage_of,
)
from helpers.compose.three_dimensions import clip_gradients, process_groups
from helpers.devices import computing_device
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel.transformer_block import TensorParallelBlock, TransformerBlock
from helpers.workloads import rank_slice, token_loss

STEPS = 3
SHAPES = [dict(pp=2, dp=2, tp=2), dict(pp=1, dp=2, tp=4), dict(pp=4, dp=1, tp=2)]


def test_eight_ranks_equal_one_process(eight):
    assert compare_with_one_process(eight, ThreeDimensions).startswith(
        "all 8 ranks equal one process after 3 steps: 79"
    )


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_the_groups_are_those_of_a_device_mesh(eight, sizes):
    def members():
        groups = process_groups(**sizes)
        mesh = init_device_mesh(computing_device().type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return [(dist.get_process_group_ranks(groups[axis]), dist.get_process_group_ranks(mesh.get_group(axis)))
                for axis in sizes]  # fmt: skip

    for of_rank in eight.run(members):
        for ours, theirs in of_rank:
            assert ours == theirs


def test_the_norm_counts_shards_once_and_replicated_parameters_once(ranks):
    def gradients(model):
        for parameter in model.parameters():
            parameter.grad = parameter.detach().clone()
        return model

    def clipped():
        groups = process_groups(pp=2, dp=1, tp=2)
        stage = gradients(TensorParallelBlock(blocks()[dist.get_rank(groups["pp"])], groups["tp"]))
        norm = clip_gradients(stage.parameters(), 0.5, groups)
        return {"norm": norm, "a norm's gradient": stage.block.mlp_norm.weight.grad}

    model = gradients(blocks())
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for rank, found in enumerate(ranks.run(clipped)):
        assert_equal({"norm": norm, "a norm's gradient": model[rank // 2].mlp_norm.weight.grad}, found)


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(*(TransformerBlock(16, 4, 24) for _ in range(2))).double()


def test_parallelize_module_with_fully_shard_and_pipelining_train_alike(eight):
    """PyTorch's own three, on one mesh: the losses and weights of every stage, without clipping."""
    for their, found in zip(eight.run(pytorchs), eight.run(ours), strict=True):
        assert_equal(their, found)


def pytorchs():
    mesh = init_device_mesh(computing_device().type, (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(0)
    rank = mesh.get_local_rank("pp")
    part = stage_of(language_model(), rank, 2)
    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
    plan |= {name: RowwiseParallel() for name in ("output", "down")}
    for block in part:
        if isinstance(block, TransformerBlock):
            parallelize_module(block, mesh["tp"], plan)
    fully_shard(part, mesh=mesh["dp"])
    stage = pipelining.PipelineStage(part, rank, 2, computing_device(), group=mesh.get_group("pp"))
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=4, loss_fn=token_loss)
    optimizer, history = torch.optim.AdamW(part.parameters(), lr=1e-2, foreach=False), {}
    for step in range(STEPS):
        inputs, targets = (rank_slice(tensor, mesh.get_local_rank("dp"), 2) for tensor in batch(step))
        optimizer.zero_grad()
        losses = []
        schedule.step(*([inputs] if rank == 0 else []), **({"target": targets, "losses": losses} if rank else {}))
        optimizer.step()
        history |= {f"{step} loss": torch.stack(losses).mean().detach()} if losses else {}
    return history | {name: tensor.full_tensor().clone() for name, tensor in part.state_dict().items()}


def ours():
    built = replace(ThreeDimensions.default_training, max_norm=1e9).under(ThreeDimensions).build()
    history = {}
    for step in range(STEPS):
        loss, _ = built.step(*(rank_slice(tensor, *built.rows) for tensor in batch(step)))
        history |= {} if loss is None else {f"{step} loss": loss}
    return history | {name: tensor for name, tensor in built.state().items() if not name.endswith(".grad")}
