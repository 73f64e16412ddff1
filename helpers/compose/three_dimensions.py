"""Provides 3D parallelism on one screen: data, tensor and pipeline parallelism as process groups, and a training step.

Rank = (pp * DP + dp) * TP + tp, so a tensor-parallel group has neighbouring ranks, which share a node. A rank sends

    tp    partial sums of activations in every layer, inside forward and backward
    pp    activations and their gradients at the ends of its stage, for each micro-batch
    dp    its gradients, once per step

    groups = process_groups(pp=2, dp=2, tp=2)                                    # eight ranks
    stage = nn.Sequential(*(TensorParallelBlock(block, groups["tp"]) for block in this_stage))
    pipeline = MiniPipeline(stage, loss_function, shape, groups["pp"])
    loss = train_step(pipeline.one_f_one_b, stage, optimizer, inputs, targets, groups)

The stage and the pipeline are any that use their group; the names above are those of this course's core files.
trainer.py does this for every plan of the course. Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

Groups = dict[str, dist.ProcessGroup]


def process_groups(*, pp: int, dp: int, tp: int) -> Groups:
    """Return this rank's group on each axis: the ranks that have the same place on both other axes."""
    groups, grid = {}, torch.arange(pp * dp * tp).view(pp, dp, tp)
    for axis, name in enumerate(("pp", "dp", "tp")):
        for ranks in grid.movedim(axis, -1).flatten(0, 1).tolist():
            group = dist.new_group(ranks)  # every rank makes every group, in the same order, also those of others
            if dist.get_rank() in ranks:
                groups[name] = group
    return groups


def train_step(
    run_pipeline: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor | None],
    stage: nn.Module, optimizer: torch.optim.Optimizer, inputs: Sequence[Tensor], targets: Sequence[Tensor],
    groups: Groups, max_norm: float = 1.0,
) -> Tensor | None:  # fmt: skip
    """Train on this replica's micro-batches. Returns their mean loss on the last stage, and None on the others."""
    optimizer.zero_grad()
    loss = run_pipeline(inputs, targets)  # forward and backward of all micro-batches; sends on pp, and the stage on tp
    for parameter in stage.parameters():  # the replicas' gradients, after the last micro-batch
        dist.all_reduce(parameter.grad, group=groups["dp"])
        parameter.grad /= dist.get_world_size(groups["dp"])
    clip_gradients(stage.parameters(), max_norm, groups)
    optimizer.step()
    return loss


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, groups: Groups) -> Tensor:
    """Scale the gradients down to `max_norm` and return their norm, which no rank can compute alone.

    Shards of a matrix (marked `tensor_model_parallel`) are added over tp, while replicated parameters count once, and
    then the stages are added over pp. The replicas on dp have equal gradients already.
    """
    parameters = list(parameters)
    squares = {True: parameters[0].new_zeros(()), False: parameters[0].new_zeros(())}
    for parameter in parameters:
        squares[getattr(parameter, "tensor_model_parallel", False)] += parameter.grad.square().sum()
    dist.all_reduce(squares[True], group=groups["tp"])
    total = squares[True] + squares[False]
    dist.all_reduce(total, group=groups["pp"])
    norm = total.sqrt()
    for parameter in parameters:
        parameter.grad *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm
