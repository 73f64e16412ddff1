"""Provides ExpertParallel, which trains a model whose layers of experts are split over a group of ranks.

Every rank has its own examples, as in data parallelism, and each layer's experts are divided among the ranks of the
expert-parallel group. What follows for the gradients, with a loss that is the mean over each rank's own tokens:

    dense      a rank has the gradient of its own tokens: the mean over all ranks with other examples
    experts    a rank's experts have had the tokens of the whole expert-parallel group, so their gradient is a sum over
               it already: add up over the ranks with replicas of the same experts, and divide by all ranks with other
               examples, as for the dense ones

Dividing the gradients of experts by the number of their replicas alone is a mistake that many have made: they are
exactly as many times too large as the group has ranks. Adam hides it, because it divides by the gradient's size, and a
norm of all gradients shows it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.experts.expert_parallel import expert_parallel
from helpers.parallel.experts.layer import MixtureOfExperts, expert_layers
from helpers.parallel.shared.collectives import all_reduce_in_buckets, broadcast_tensors


class ExpertParallel(nn.Module):
    """Runs `model` with its experts split over `group`; rank r of N gets experts r E/N to (r+1) E/N - 1 of each layer.

    data_group: all ranks with other examples, of which `group` is a part; None means that they are the same ranks.
    replica_group: the ranks with the same experts, if there are any. The ranks start with the weights of rank 0 of
    `data_group`. Raises ValueError where the ranks do not divide the experts of a layer, or there is no such layer.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        data_group: dist.ProcessGroup | None = None,
        replica_group: dist.ProcessGroup | None = None,
    ):
        super().__init__()
        self.model, self.group, self.replica_group = model, group, replica_group
        self.data_group = group if data_group is None else data_group
        broadcast_tensors([*model.parameters(), *model.buffers()], self.data_group)
        layers = expert_layers(model)
        if not layers:
            raise ValueError(
                f"ExpertParallel got a {type(model).__name__} without a layer of experts: give it some with "
                "with_experts(model, num_experts=..., top_k=...)"
            )
        for layer in layers:
            self._split(layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs)

    def average_gradients(self) -> None:
        """Complete all gradients after backward, so that the optimizer sees the mean over all ranks' tokens."""
        dense, experts = split_gradients(self.model)
        all_reduce_in_buckets(dense, self.data_group)
        if self.replica_group is not None:
            all_reduce_in_buckets(experts, self.replica_group)
        for gradient in dense + experts:
            gradient /= dist.get_world_size(self.data_group)

    def _split(self, layer: MixtureOfExperts) -> None:
        """Keep this rank's experts, and let the others' be asked by messages."""
        rank, num_ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        num_experts = layer.config.num_experts
        if num_experts % num_ranks:
            raise ValueError(
                f"ExpertParallel got {num_experts} experts for {num_ranks} ranks, but every rank gets equally many: "
                f"choose a number of experts that {num_ranks} divides"
            )
        for name, full in list(layer.experts.named_parameters()):
            shard = full.detach().chunk(num_ranks)[rank].clone()
            setattr(layer.experts, name, nn.Parameter(shard, requires_grad=full.requires_grad))
        layer.compute = lambda tokens, experts, weights: expert_parallel(
            tokens, experts, weights, layer.experts, num_experts, self.group
        )
        layer.sum_counts = self._sum_over_data

    def _sum_over_data(self, counts: Tensor) -> Tensor:
        dist.all_reduce(counts, group=self.data_group)
        return counts


def global_norm(model: nn.Module, group: dist.ProcessGroup | None = None) -> Tensor:
    """The norm of all gradients, of all experts and of one replica of the rest; group: the expert-parallel ranks."""
    dense, experts = (
        sum((gradient.square().sum() for gradient in gradients), torch.zeros(()))
        for gradients in split_gradients(model)
    )
    dist.all_reduce(experts, group=group)
    return (dense + experts).sqrt()


def split_gradients(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of dense parameters and those of experts, in the order of the model's parameters."""
    of_experts = {id(parameter) for layer in expert_layers(model) for parameter in layer.experts.parameters()}
    found: tuple[list[Tensor], list[Tensor]] = [], []
    for parameter in model.parameters():
        if parameter.grad is not None:
            found[id(parameter) in of_experts].append(parameter.grad)
    return found
