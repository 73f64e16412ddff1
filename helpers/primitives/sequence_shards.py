"""Modules that work on each token alone, on a rank's part of the tokens: what sequence parallelism adds to a model.

Legend: N = ranks, B, T, h = batch, tokens, hidden; tokens are dimension 1 of (B, T, h).
A parameter is whole on every rank, but meets the rank's tokens only, so its gradient there is a part of the sum.
Without the all-reduce nothing fails: every rank trains a norm of its own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.primitives.conjugate import identity_all_reduce, split_all_gather
from helpers.primitives.shard_random import ShardDropout, ShardRandom


class SequenceParallelNorm(nn.LayerNorm):
    """LayerNorm of this rank's tokens, (B, T / N, h). Forward: nothing. Backward: all-reduce of 2 h numbers."""

    @classmethod
    def from_norm(cls, norm: nn.LayerNorm, group: dist.ProcessGroup | None = None) -> SequenceParallelNorm:
        """The same parameters, not copies."""
        shard = cls(norm.normalized_shape, norm.eps, elementwise_affine=False)
        shard.weight, shard.bias, shard.group = norm.weight, norm.bias, group
        shard.elementwise_affine = norm.elementwise_affine
        return shard.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        own = [parameter for parameter in (self.weight, self.bias) if parameter is not None]
        whole = identity_all_reduce(torch.stack(own), self.group).unbind() if own else ()  # (2, h), one message
        return F.layer_norm(x, self.normalized_shape, *whole, eps=self.eps)


class SequenceParallelEmbedding(nn.Module):
    """Positions (T) to the embeddings of this rank's tokens, (T / N, h).

    Forward: every rank looks up all and keeps its part. Backward: all-gather of the gradient, so it is whole.
    """

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.weight, self.group = embedding.weight, group

    def forward(self, positions: Tensor) -> Tensor:
        return split_all_gather(F.embedding(positions, self.weight), self.group, dim=0)


def sequence_shard(module: nn.Module, group: dist.ProcessGroup | None, dim: int, random: ShardRandom) -> nn.Module:
    """A norm, dropout or embedding of positions, for this rank's part of the tokens, which are dimension `dim`."""
    if isinstance(module, nn.LayerNorm):
        return SequenceParallelNorm.from_norm(module, group)
    if isinstance(module, nn.Embedding):
        return SequenceParallelEmbedding(module, group)
    return ShardDropout(module.p, random, dim).train(module.training)
