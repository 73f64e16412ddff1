"""Provides the tensor-parallel layers (column-, row- and vocabulary-parallel) and the loss over a vocabulary shard.

Legend: N = ranks; B, T, h = batch, tokens, hidden; k, m = inputs and outputs of a layer; V = vocabulary.
    column-parallel   y = x [A1 A2]: every rank has all of x and computes some outputs.
                      Forward sends nothing; backward all-reduces dx, (B, T, k)
    row-parallel      y = [x1 x2] [B1; B2]: each rank has some inputs, and the partial sums are added.
                      Forward all-reduces y, (B, T, m); backward sends nothing

Column-parallel layers that read one input form one autograd step, which overlaps communication with compute. Forward
computes y = x W^T + b for the rank's own outputs. Each rank uses all of x, so in backward
    dx = sum over ranks and layers of dy W       needs one all-reduce for all layers together
    dW = dy^T x, db = sum of dy                  are computed while it is in flight
With sequence parallelism (`dim`) each rank has a shard of x along that dimension, and forward all-gathers it. The
gathered x is not stored, so backward all-gathers it again while dx is computed, and reduce-scatters dx while dW is.
Storing only the shard is what makes all activations 1/N (Korthikanti et al. 2022, section 4.2.2).

Vocabulary: rank r stores the rows r v to (r + 1) v, with v = ceil(V / N); rows beyond V are zeros. For n = B T tokens,
gathering the logits would send n V elements, and this loss sends 3 n (Shoeybi et al. 2019, "Megatron-LM", section 3).

A `Split` (splits.py) says which entries of a parameter each rank stores. Functions with two collectives in their names,
such as all_reduce_identity, are autograd functions: the first runs in forward, the second in backward (conjugate.py).
A `start_…` function starts a collective and returns a function; calling that waits and returns the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from helpers.parallel.tensor_parallel.conjugate import (
    all_reduce_identity,
    identity_all_reduce,
    reduce_scatter_all_gather,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)
from helpers.parallel.tensor_parallel.splits import (
    Split,
    even_split,
    padded_split,
    shard_parameter,
    sum_gradient_over_replicas,
)

IGNORED = -100  # a target that does not count, as in torch's cross entropy


class _ShardedLinear(nn.Module):
    """Common base of the two linear layers: this rank's shard of `linear`, which must be the same on every rank.

    splits: by name, "weight" or "bias", how that parameter is split; a parameter without one stays full on every rank.
    sequence_dim: the dimension of the tokens under sequence parallelism, else None.
    """

    def __init__(self, linear: nn.Linear, group, splits: Mapping[str, Split], sequence_dim: int | None):
        super().__init__()
        self.group, self.splits, self.sequence_dim = group, splits, sequence_dim
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name in ("weight", "bias"):
            full = getattr(linear, name)
            is_split = name in splits and full is not None
            setattr(self, name, shard_parameter(full, splits[name], group) if is_split else full)
        self.train(linear.training)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, weight here: {tuple(self.weight.shape)}"


class ColumnParallelLinear(_ShardedLinear):
    """Maps x (..., k), the same on every rank, to this rank's outputs (..., m / N).

    Forward sends nothing. Backward all-reduces dx, (..., k), while dW is computed. With `sequence_dim` x is this rank's
    shard along that dimension: forward all-gathers it, and backward all-gathers it again and reduce-scatters dx.
    split: by default equal shards; where it replicates entries, backward all-reduces their gradients. Outputs in the
    padding of a split are -inf.
    Raises ValueError where the ranks cannot share the outputs equally.
    """

    overlap = True  # with False, backward waits for each message at once

    def __init__(self, linear: nn.Linear, group=None, sequence_dim: int | None = None, split: Split | None = None):
        split = split or even_split(linear.out_features, dist.get_world_size(group), what="ColumnParallelLinear")
        super().__init__(linear, group, {"weight": split, "bias": split}, sequence_dim)
        SharedInput([self])  # sets self.shared; `shard_tensor_parallel` may replace it by one for several layers

    def weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Return this rank's weight and bias, whose gradients are summed over ranks that store the same entries."""
        return tuple(
            sum_gradient_over_replicas(part, self.splits["weight"], self.group) for part in (self.weight, self.bias)
        )

    def forward(self, x: Tensor) -> Tensor:
        y, split = self.shared(self, x), self.splits["weight"]  # (..., m / N)
        padding = split.length - split.num_entries(dist.get_rank(self.group))  # outputs of this rank that do not exist
        if padding:  # only the last shards of a padded vocabulary
            y = F.pad(y[..., : split.length - padding], (0, padding), value=-torch.inf)
        return y


class RowParallelLinear(_ShardedLinear):
    """Maps this rank's inputs (..., k / N) to the result (..., m), which is the same on every rank.

    Forward all-reduces the partial sums (..., m) and then adds the bias once. Backward sends nothing. With
    `sequence_dim` forward reduce-scatters, and backward all-gathers and all-reduces the bias's gradient.
    Raises ValueError where the ranks cannot share the inputs equally.
    """

    def __init__(self, linear: nn.Linear, group=None, sequence_dim: int | None = None, split: Split | None = None):
        # dim=1: the inputs, because the weight is (out, in); `what` is named in the error
        split = split or even_split(linear.in_features, dist.get_world_size(group), dim=1, what="RowParallelLinear")
        super().__init__(linear, group, {"weight": split}, sequence_dim)

    def forward(self, x: Tensor) -> Tensor:
        partial_sums, bias = F.linear(x, self.weight), self.bias  # (..., m)
        if self.sequence_dim is None:
            y = all_reduce_identity(partial_sums, self.group)  # (..., m)
        else:
            y = reduce_scatter_all_gather(partial_sums, self.group, self.sequence_dim)  # (B, T / N, m)
            # each rank adds the bias to its own tokens only, so its gradient needs a sum
            bias = None if bias is None else identity_all_reduce(bias, self.group)
        return y if bias is None else y + bias


class SharedInput:
    """Computes column-parallel layers that read one input, such as query, key and value, in one autograd step.

    Each layer calls it in its own forward. The first call computes the outputs of all layers, and the others take
    theirs, so three layers cost one message per pass although the model calls them one by one.
    layers: modules with weight_and_bias(), group, sequence_dim and overlap; each gets this object as `shared`.
    """

    def __init__(self, layers: Sequence):
        self.layers = list(layers)
        self.x, self.waiting = None, {}  # the present input, and the outputs that their layers have not taken yet
        for layer in self.layers:
            layer.shared = self

    def __call__(self, layer, x: Tensor) -> Tensor:
        if x is not self.x or layer not in self.waiting:
            weights, biases = zip(*(layer.weight_and_bias() for layer in self.layers), strict=True)
            outputs = column_linears(x, weights, biases, layer.group, layer.sequence_dim, layer.overlap)
            self.x, self.waiting = x, dict(zip(self.layers, outputs, strict=True))
        y = self.waiting.pop(layer)
        if not self.waiting:
            self.x = None  # all layers have their outputs, so nothing is stored any more
        return y


def column_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    group: dist.ProcessGroup | None,
    dim: int | None = None,
    overlap: bool = True,
) -> tuple[Tensor, ...]:
    """Apply each weight (m / N, k) and bias (m / N, or None) to x (..., k); returns a tuple of (..., m / N).

    dim: the dimension along which x is sharded; with None every rank has all of x.
    overlap=False waits for each message at once, which shows what the waiting costs.
    """
    if dist.get_world_size(group) == 1:
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return _ColumnLinears.apply(x, group, dim, overlap, len(weights), *weights, *biases)


class _ColumnLinears(torch.autograd.Function):
    """The outputs of `count` layers for one x. parameters: all weights, then all biases (None where there is none)."""

    @staticmethod
    def forward(ctx, x: Tensor, group, dim: int | None, overlap: bool, count: int, *parameters):
        weights, biases = parameters[:count], parameters[count:]
        ctx.group, ctx.dim, ctx.overlap = group, dim, overlap
        ctx.save_for_backward(x, *weights)  # x as it came: with sequence parallelism only the shard
        full = x if dim is None else start_all_gather(x, group, dim)()  # (B, T, k)
        return tuple(F.linear(full, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        x, *weights = ctx.saved_tensors
        x_needs, parameters_need = ctx.needs_input_grad[0], ctx.needs_input_grad[5:]  # x and 4 options come before
        weights_need, biases_need = parameters_need[: len(weights)], parameters_need[len(weights) :]
        flat = [gradient.flatten(0, -2) for gradient in gradients]  # (B T, m / N)
        full = _start_full_x(ctx, x) if any(weights_need) else None
        grad_x = _start_grad_x(ctx, flat, weights, gradients[0].shape[:-1]) if x_needs else None
        rows = full().flatten(0, -2) if full else None  # (B T, k)
        grad_weights = [  # (m / N, k)
            dy.t() @ rows.to(dy.dtype) if need else None for dy, need in zip(flat, weights_need, strict=True)
        ]
        grad_biases = [dy.sum(0) if need else None for dy, need in zip(flat, biases_need, strict=True)]  # (m / N,)
        return grad_x() if grad_x else None, None, None, None, None, *grad_weights, *grad_biases


def _start_full_x(ctx, x: Tensor):
    """Start to gather the full input once more; calling the result returns it."""
    if ctx.dim is None:
        return lambda: x
    return _maybe_wait(ctx, start_all_gather(x, ctx.group, ctx.dim))


def _start_grad_x(ctx, flat: Sequence[Tensor], weights: Sequence[Tensor], shape: torch.Size):
    """Compute this rank's partial sum of dx and start to add up those of all ranks; calling the result returns dx.

    flat: dy of each layer, (B T, m / N). shape: the dimensions that dx has before its last one, (B, T).
    """
    grad = flat[0] @ weights[0].to(flat[0].dtype)  # (B T, k)
    for dy, weight in zip(flat[1:], weights[1:], strict=True):
        grad.addmm_(dy, weight.to(dy.dtype))
    grad = grad.view(*shape, -1)  # (B, T, k)
    if ctx.dim is None:
        return _maybe_wait(ctx, start_all_reduce(grad, ctx.group, in_place=True))
    return _maybe_wait(ctx, start_reduce_scatter(grad, ctx.group, ctx.dim))


def _maybe_wait(ctx, started):
    """Return `started`, a collective in flight. Where overlap is switched off, wait for it here already."""
    if ctx.overlap:
        return started
    result = started()
    return lambda: result


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank stores v rows: maps token ids (B, T), the same on every rank, to (B, T, h).

    Forward all-reduces (B, T, h), where each token's row comes from one rank and the others add zeros. Backward sends
    nothing. With `sequence_dim` (1, the tokens') every rank keeps its shard of the tokens: forward reduce-scatters and
    backward all-gathers. Raises ValueError for an id outside the vocabulary.
    """

    def __init__(self, embedding: nn.Embedding, group=None, sequence_dim: int | None = None):
        super().__init__()
        if embedding.padding_idx is not None or embedding.max_norm is not None or embedding.sparse:
            raise ValueError(
                "VocabParallelEmbedding shards a plain nn.Embedding: leave out padding_idx, max_norm and sparse"
            )
        self.group, self.sequence_dim = group, sequence_dim
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.splits = {"weight": padded_split(embedding.num_embeddings, dist.get_world_size(group))}
        self.weight = shard_parameter(embedding.weight, self.splits["weight"], group)  # (v, h)
        self.train(embedding.training)

    def forward(self, tokens: Tensor) -> Tensor:
        _check_ids(tokens, self.num_embeddings, "VocabParallelEmbedding")
        local = tokens - dist.get_rank(self.group) * self.weight.shape[0]  # (B, T), the row in this rank's shard
        on_other_ranks = (local < 0) | (local >= self.weight.shape[0])
        rows = F.embedding(local.masked_fill(on_other_ranks, 0), self.weight)  # (B, T, h)
        rows = rows.masked_fill(on_other_ranks.unsqueeze(-1), 0.0)
        if self.sequence_dim is None:
            return all_reduce_identity(rows, self.group)  # (B, T, h)
        return reduce_scatter_all_gather(rows, self.group, self.sequence_dim)  # (B, T / N, h)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, rows here: {self.weight.shape[0]}"


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in nats of logits (..., v), this rank's vocabulary shard, and targets (...) int64 on every rank.

    Every rank gets the loss over the full vocabulary: the mean over targets that are not -100, or with reduction="sum"
    their sum. Forward all-reduces (max) one number per token, then two: the sum of exponentials and the target's
    logit. Backward sends nothing. Logits in 16 bits are widened to float32. Padding in the vocabulary must be -inf.
    Raises ValueError where the shapes do not fit or a target lies outside the vocabulary.
    """
    if logits.shape[:-1] != targets.shape or reduction not in ("mean", "sum"):
        raise ValueError(
            f"vocab_parallel_cross_entropy got logits {tuple(logits.shape)}, targets {tuple(targets.shape)} and "
            f"reduction={reduction!r}: targets must have the logits' shape without the last dimension, "
            "and reduction is 'mean' or 'sum'"
        )
    size = logits.shape[-1] * dist.get_world_size(group)
    _check_ids(targets[targets != IGNORED], size, "vocab_parallel_cross_entropy")
    total = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), group)
    return total / (targets != IGNORED).sum() if reduction == "mean" else total


class _CrossEntropy(torch.autograd.Function):
    """The sum of the losses of logits (n, v): log(sum of exp(logit - max)) - (target's logit - max) for each token."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, group):
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        largest = wide.max(-1, keepdim=True).values  # (n, 1)
        _all_reduce(largest, group, dist.ReduceOp.MAX)
        shifted = wide - largest  # (n, v)
        local = targets - dist.get_rank(group) * logits.shape[-1]  # (n,) the target's column in this rank's shard
        counts = targets != IGNORED
        is_local = (local >= 0) & (local < logits.shape[-1]) & counts
        local = local.masked_fill(~is_local, 0).unsqueeze(-1)  # (n, 1)
        target_logit = shifted.gather(-1, local).squeeze(-1).masked_fill(~is_local, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(-1), target_logit])  # (2, n)
        _all_reduce(sums, group, dist.ReduceOp.SUM)
        ctx.save_for_backward(exponentials, sums[0], local, is_local, counts)
        ctx.dtype = logits.dtype
        return (sums[0].log() - sums[1]).masked_fill(~counts, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        exponentials, total, local, is_local, counts = ctx.saved_tensors
        weight = grad * counts  # (n,), 0 where a target does not count; the gradient is softmax - 1 at the target
        gradient = exponentials * (weight / total).unsqueeze(-1)  # (n, v)
        gradient.scatter_add_(-1, local, -(weight * is_local).unsqueeze(-1))
        return gradient.to(ctx.dtype), None, None


def _all_reduce(tensor: Tensor, group, op) -> None:
    if dist.get_world_size(group) > 1:
        dist.all_reduce(tensor, op=op, group=group)


def _check_ids(ids: Tensor, size: int, who: str) -> None:
    """Raise ValueError for an id outside the vocabulary, which would silently give zeros because no rank stores it."""
    if ids.numel() and not (0 <= ids.min() and ids.max() < size):
        raise ValueError(
            f"{who} got ids from {ids.min().item()} to {ids.max().item()}, but the vocabulary has {size} entries, "
            "counted from 0"
        )
