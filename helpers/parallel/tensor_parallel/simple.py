"""Tensor parallelism on one screen: two matrices with a nonlinearity between them, split so that one sum is enough.

Legend: N = ranks; (..., h) = x and the result; m = width between the matrices, m_r = this rank's share of it.
f and g in the comments are Megatron's names for the two collectives of such a pair. f sends in backward, g in forward.
shard.py shards whole models in this way, including attention and vocabulary, by a plan of names.
After Shoeybi et al. 2019, "Megatron-LM", section 3, equation 3 and figure 3a.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.parallel.tensor_parallel.conjugate import all_reduce_identity, identity_all_reduce


class TensorParallelMLP(nn.Module):
    """Computes GeLU(x A + a) B + b with column-parallel A and row-parallel B, on ranks that all have the same x.

    Forward all-reduces the result (..., h), and backward all-reduces dx (..., h). Nothing is sent between the matrices,
    because GeLU works on each column alone. up (h to m) and down (m to h) must be the same on every rank. N need not
    divide m: the first ranks then store one more column. (torch stores A transposed, so its columns are rows there.)
    """

    def __init__(self, up: nn.Linear, down: nn.Linear, group=None, activation: Callable = F.gelu):
        super().__init__()
        self.group, self.activation = group, activation
        self.up_weight = self._shard(up.weight, dim=0)  # (m_r, h): some columns of A
        self.up_bias = self._shard(up.bias, dim=0)  # (m_r)
        self.down_weight = self._shard(down.weight, dim=1)  # (h, m_r): the rows of B that these columns feed
        self.down_bias = nn.Parameter(down.bias.detach().clone())  # (h), replicated on every rank

    def _shard(self, full: Tensor, dim: int) -> nn.Parameter:
        """Return this rank's shard of a full parameter, split along `dim`, as a new parameter."""
        shards = full.detach().tensor_split(dist.get_world_size(self.group), dim)
        return nn.Parameter(shards[dist.get_rank(self.group)].clone(memory_format=torch.contiguous_format))

    def forward(self, x: Tensor) -> Tensor:
        x = identity_all_reduce(x, self.group)  # f: each rank's columns give a part of dx, so backward adds the parts
        hidden = self.activation(F.linear(x, self.up_weight, self.up_bias))  # (..., m_r) complete columns
        partial_sums = F.linear(hidden, self.down_weight)  # (..., h) what this rank adds to the result
        y = all_reduce_identity(partial_sums, self.group)  # g: the sum; its gradient is whole on every rank
        return y + self.down_bias  # after the sum, or it would count N times
