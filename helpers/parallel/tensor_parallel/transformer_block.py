"""Provides tensor parallelism on one screen: a transformer block whose matrices are sharded, and its two operators.

Each rank of a group has some heads of the attention and some columns of the MLP. The matrices that read the block's
input are column-parallel, and those that write its output are row-parallel, so nothing is sent between the two. (torch
stores a matrix transposed, so dim 0 of a weight runs over its columns.)

    f    CopyToTensorParallelRegion        forward sends nothing        backward all-reduces the gradient
    g    ReduceFromTensorParallelRegion    forward all-reduces          backward sends nothing

A block therefore sends two all-reduces of (B, T, h) in forward and two in backward. The norms are replicated, and all
ranks have the same input. shard.py does this for whole models, with biases, vocabulary and sequence parallelism.
After Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class TransformerBlock(nn.Module):
    """The block on one process, as in Llama: RMSNorm, causal attention, SwiGLU, no biases. (B, T, h) to (B, T, h).

    Every query head has its own key and value head; grouped queries are left out.
    Legend: B = sequences, T = tokens, h = hidden, H = heads, d = h / H, m = width of the MLP.
    """

    def __init__(self, hidden: int, num_heads: int, mlp_width: int):
        super().__init__()
        self.head_dim = hidden // num_heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, mlp_width, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp_width, hidden, bias=False)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H, T, d), with the heads of this rank
            for project in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # each head is independent of the others
        return self.output(heads.transpose(1, 2).flatten(2))  # (B, T, h)

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # (B, T, m) is elementwise, so each column is independent

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class TensorParallelBlock(nn.Module):
    """Computes the same as `block` on a group of ranks, and keeps only this rank's shards of its matrices.

    `block` must be the same on every rank. Raises ValueError where the ranks cannot share heads or columns equally.
    """

    def __init__(self, block: TransformerBlock, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.block, self.group = block, group
        num_ranks, num_heads = dist.get_world_size(group), block.query.out_features // block.head_dim
        if num_heads % num_ranks or block.up.out_features % num_ranks:
            raise ValueError(
                f"{num_heads} heads and {block.up.out_features} columns of the MLP are for {num_ranks} ranks: "
                "choose a number of ranks that divides both"
            )
        for linear in (block.query, block.key, block.value, block.gate, block.up):
            linear.weight = self.shard(linear.weight, dim=0)  # column-parallel: whole heads, and columns of the MLP
        for linear in (block.output, block.down):
            linear.weight = self.shard(linear.weight, dim=1)  # row-parallel: the rows that this rank's columns feed

    def shard(self, full: Tensor, dim: int) -> nn.Parameter:
        piece = full.detach().chunk(dist.get_world_size(self.group), dim)[dist.get_rank(self.group)]
        parameter = nn.Parameter(piece.clone(memory_format=torch.contiguous_format))  # the full matrix can be freed
        parameter.tensor_model_parallel = True  # Megatron's mark, by which other code tells a shard from a replica
        return parameter

    def forward(self, x: Tensor) -> Tensor:
        f, g, block = CopyToTensorParallelRegion.apply, ReduceFromTensorParallelRegion.apply, self.block
        x = x + g(block.attention(f(block.attention_norm(x), self.group)), self.group)
        return x + g(block.mlp(f(block.mlp_norm(x), self.group)), self.group)


class CopyToTensorParallelRegion(torch.autograd.Function):
    """f: every rank reads the same x. Each rank's matrices give a partial sum of dx, and backward adds these sums."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduced(gradient, ctx.group), None


class ReduceFromTensorParallelRegion(torch.autograd.Function):
    """g: each rank has a partial sum of y, and forward adds them. Each partial sum has the gradient of their sum."""

    @staticmethod
    def forward(ctx, partial_sum: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return all_reduced(partial_sum, group)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def all_reduced(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum over the ranks as a new tensor, because autograd may still use this one."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
