"""The two ends of a language model with the vocabulary cut: the embedding, and the loss that never gathers the logits.

Legend: V = vocabulary, v = ceil(V / N) = rows a rank holds, N = ranks; B, T, h = batch, tokens, hidden; n = B T.
Rank r holds the rows r v to (r + 1) v; behind row V there are only zeros. After Shoeybi et al. 2019, "Megatron-LM",
section 3: gathering logits would send n V numbers, this loss sends 3 n.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from helpers.parallel.tensor_parallel.conjugate import all_reduce_identity, reduce_scatter_all_gather
from helpers.parallel.tensor_parallel.copies import shard_parameter
from helpers.parallel.tensor_parallel.tensor_plan import padded_cut


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank holds v rows: token ids (B, T), the same on every rank, to (B, T, h).

    Forward: all-reduce of (B, T, h), where each token's row comes from one rank and zeros from the others. Backward:
    nothing. With `sequence_dim` (the tokens': 1) every rank keeps its part of the tokens: forward reduce-scatter,
    backward all-gather. Raises ValueError for an id outside the vocabulary.
    """

    def __init__(self, embedding: nn.Embedding, group=None, sequence_dim: int | None = None):
        super().__init__()
        if embedding.padding_idx is not None or embedding.max_norm is not None or embedding.sparse:
            raise ValueError(
                "VocabParallelEmbedding cuts a plain nn.Embedding: leave out padding_idx, max_norm and sparse"
            )
        self.group, self.sequence_dim = group, sequence_dim
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.cuts = {"weight": padded_cut(embedding.num_embeddings, dist.get_world_size(group))}
        self.weight = shard_parameter(embedding.weight, self.cuts["weight"], group)  # (v, h)
        self.train(embedding.training)

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, group=None, **how) -> VocabParallelEmbedding:
        """This rank's rows of `embedding`, which must be the same on every rank."""
        return cls(embedding, group, **how)

    def forward(self, tokens: Tensor) -> Tensor:
        _check_ids(tokens, self.num_embeddings, "VocabParallelEmbedding")
        own = tokens - dist.get_rank(self.group) * self.weight.shape[0]  # (B, T)
        elsewhere = (own < 0) | (own >= self.weight.shape[0])
        rows = F.embedding(own.masked_fill(elsewhere, 0), self.weight)  # (B, T, h)
        rows = rows.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.sequence_dim is None:
            return all_reduce_identity(rows, self.group)  # (B, T, h)
        return reduce_scatter_all_gather(rows, self.group, self.sequence_dim)  # (B, T / N, h)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, rows here: {self.weight.shape[0]}"


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in nats of logits (..., v), this rank's part of the vocabulary; targets (...) int64 on every rank.

    The mean over targets that are not -100, or reduction="sum". Forward: all-reduce (max) of a number a token, then
    all-reduce of two: the sum of exponentials and the target's logit. Backward: nothing. Every rank gets the loss of
    the whole. Logits in 16 bits are counted in float32. Padding in the vocabulary must be -inf.
    Raises ValueError where the shapes do not fit or a target lies outside the vocabulary.
    """
    if logits.shape[:-1] != targets.shape or reduction not in ("mean", "sum"):
        raise ValueError(
            f"vocab_parallel_cross_entropy got logits {tuple(logits.shape)}, targets {tuple(targets.shape)} and "
            f"reduction={reduction!r}: targets must have the logits' shape without the last dimension, "
            "and reduction is 'mean' or 'sum'"
        )
    size = logits.shape[-1] * dist.get_world_size(group)
    _check_ids(targets[targets != -100], size, "vocab_parallel_cross_entropy")
    total = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), group)
    return total / (targets != -100).sum() if reduction == "mean" else total


class _CrossEntropy(torch.autograd.Function):
    """Logits (n, v) and targets (n) to the sum of the losses: log(sum of exp(logit - max)) - (target's logit - max)."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, group):
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        largest = wide.max(-1, keepdim=True).values  # (n, 1)
        _sum_over_ranks(largest, group, dist.ReduceOp.MAX)
        shifted = wide - largest  # (n, v)
        own = targets - dist.get_rank(group) * logits.shape[-1]  # (n,)
        here = (own >= 0) & (own < logits.shape[-1]) & (targets != -100)
        own = own.masked_fill(~here, 0).unsqueeze(-1)  # (n, 1)
        target_logit = shifted.gather(-1, own).squeeze(-1).masked_fill(~here, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(-1), target_logit])  # (2, n)
        _sum_over_ranks(sums, group, dist.ReduceOp.SUM)
        counts = targets != -100
        ctx.save_for_backward(exponentials, sums[0], own, here, counts)
        ctx.dtype = logits.dtype
        return (sums[0].log() - sums[1]).masked_fill(~counts, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        exponentials, total, own, here, counts = ctx.saved_tensors
        weight = grad * counts  # (n,): softmax - 1 at the target, 0 where nothing counts
        gradient = exponentials * (weight / total).unsqueeze(-1)  # (n, v)
        gradient.scatter_add_(-1, own, -(weight * here).unsqueeze(-1))
        return gradient.to(ctx.dtype), None, None


def _sum_over_ranks(tensor: Tensor, group, op) -> None:
    if dist.get_world_size(group) > 1:
        dist.all_reduce(tensor, op=op, group=group)


def _check_ids(ids: Tensor, size: int, who: str) -> None:
    """An id that no rank holds would count as zeros, in silence."""
    if ids.numel() and not (0 <= ids.min() and ids.max() < size):
        raise ValueError(
            f"{who} got ids from {ids.min().item()} to {ids.max().item()}, but the vocabulary has {size} entries, "
            "counted from 0"
        )
