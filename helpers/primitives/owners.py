"""Sharded gradients at their simplest: each parameter belongs to one rank, which alone gets its gradient.

Legend: N = ranks. Parameter i belongs to group rank i % N. After backward every gradient is reduced to its owner, and
the others drop theirs; after the owner's step every parameter is broadcast. This is the idea of ZeRO-2 (Rajbhandari et
al. 2020, section 5) without its even shards (chapter 08). It shows why a found-inf flag must be reduced.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class OwnedParameters:
    """Give `own` to the optimizer; call `reduce_gradients()` after backward and `broadcast()` after the step.

    Communication: a reduce and a broadcast of each parameter. Raises ValueError for fewer parameters than ranks.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None):
        self.parameters, self.group = list(parameters), group if group is not None else dist.group.WORLD
        if len(self.parameters) < self.group.size():
            raise ValueError(
                f"{len(self.parameters)} parameters for {self.group.size()} ranks: a rank would own none, use fewer"
            )

    @property
    def own(self) -> list[nn.Parameter]:
        return self.parameters[self.group.rank() :: self.group.size()]

    def owner(self, index: int) -> int:
        """The global rank that owns parameter `index`."""
        return dist.get_global_rank(self.group, index % self.group.size())

    def reduce_gradients(self) -> None:
        """Each gradient's mean over the ranks, at its owner only; elsewhere `grad` is None."""
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            dist.reduce(gradient, self.owner(index), group=self.group)
            parameter.grad = gradient / self.group.size() if dist.get_rank() == self.owner(index) else None

    @torch.no_grad()
    def broadcast(self) -> None:
        """Every rank gets each parameter from its owner."""
        for index, parameter in enumerate(self.parameters):
            dist.broadcast(parameter, self.owner(index), group=self.group)
