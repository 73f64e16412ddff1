"""Tensor parallelism on one screen: two matrices with a nonlinearity between them, cut so that one sum is enough.

Legend: N = ranks; (..., h) = x and the result; m = width between the matrices, m_r = this rank's part of it.
shard.py cuts whole models in this way, attention and vocabulary too, by a plan of names.
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
    """GeLU(x A + a) B + b with A cut by columns and B by rows, on ranks that all have the same x (..., h).

    Forward: all-reduce of the result (..., h). Backward: all-reduce of dx (..., h). Nothing is sent between the
    matrices, since GeLU works on each column alone. up (h to m) and down (m to h) must be the same on every rank. N
    need not divide m: the first ranks then hold a column more. (torch stores A transposed: its columns are rows.)
    """

    def __init__(self, up: nn.Linear, down: nn.Linear, group=None, activation: Callable = F.gelu):
        super().__init__()
        self.group, self.activation = group, activation
        self.up_weight = self._own_part(up.weight, dim=0)  # (m_r, h): some columns of A
        self.up_bias = self._own_part(up.bias, dim=0)  # (m_r)
        self.down_weight = self._own_part(down.weight, dim=1)  # (h, m_r): the rows of B that meet them
        self.down_bias = nn.Parameter(down.bias.detach().clone())  # (h), whole on every rank

    def _own_part(self, whole: Tensor, dim: int) -> nn.Parameter:
        parts = whole.detach().tensor_split(dist.get_world_size(self.group), dim)
        return nn.Parameter(parts[dist.get_rank(self.group)].clone(memory_format=torch.contiguous_format))

    def forward(self, x: Tensor) -> Tensor:
        x = identity_all_reduce(x, self.group)  # f: each rank's columns give a part of dx, so backward adds the parts
        hidden = self.activation(F.linear(x, self.up_weight, self.up_bias))  # (..., m_r) complete columns
        partial_sums = F.linear(hidden, self.down_weight)  # (..., h) what this rank adds to the result
        y = all_reduce_identity(partial_sums, self.group)  # g: the sum; its gradient is whole on every rank
        return y + self.down_bias  # after the sum, or it would count N times
