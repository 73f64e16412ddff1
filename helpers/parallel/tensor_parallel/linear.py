"""Linear layers of which each rank holds some columns or some rows.

Legend: N = ranks; B, T = batch, tokens; k, m = inputs and outputs of a layer.
    columns   y = x [A1 A2]: x whole, outputs side by side. Forward: nothing. Backward: all-reduce of dx, (B, T, k)
    rows      y = [x1 x2] [B1; B2]: x cut, results added. Forward: all-reduce of y, (B, T, m). Backward: nothing

Columns that read one input are one step of autograd, which hides communication behind compute. Forward: y = x W^T + b
on the rank's own outputs. Each rank uses the whole x, so in backward
    dx = sum over ranks and layers of dy W       one all-reduce for all layers together
    dW = dy^T x, db = sum of dy                  meanwhile
With sequence shards (`dim`) x arrives in parts along that dimension. Forward: all-gather. Backward: the gathered x was
not kept, so all-gather once more while dx is computed, then reduce-scatter of dx while dW is computed.
Korthikanti et al. 2022, section 4.2.2: keeping only the shard is what makes all activations 1/N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from helpers.parallel.tensor_parallel.conjugate import (
    all_gather_split,
    all_reduce_identity,
    identity_all_reduce,
    reduce_scatter_all_gather,
    split_all_gather,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)
from helpers.parallel.tensor_parallel.copies import shard_parameter, sum_over_copies
from helpers.parallel.tensor_parallel.tensor_plan import Cut, even_cut


class _Sharded(nn.Module):
    """What cut layers share: this rank's part of a Linear, and how it was cut."""

    def __init__(self, linear: nn.Linear, group, cuts: Mapping[str, Cut], sequence_dim: int | None):
        super().__init__()
        self.group, self.cuts, self.sequence_dim = group, cuts, sequence_dim
        self.in_features, self.out_features = linear.in_features, linear.out_features
        for name in ("weight", "bias"):
            whole = getattr(linear, name)
            is_cut = name in cuts and whole is not None
            setattr(self, name, shard_parameter(whole, cuts[name], group) if is_cut else whole)
        self.train(linear.training)

    @classmethod
    def from_linear(cls, linear: nn.Linear, group: dist.ProcessGroup | None = None, *args, **how) -> _Sharded:
        """This rank's part of `linear`, which must be the same on every rank."""
        return cls(linear, group, *args, **how)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, weight here: {tuple(self.weight.shape)}"


class ColumnParallelLinear(_Sharded):
    """x (..., k), the same on every rank, to this rank's outputs (..., m / N).

    Forward: nothing; with `gather_output` all-gather to (..., m). Backward: all-reduce of dx, (..., k), while dW is
    computed. With `sequence_dim` x is this rank's part along that dimension: forward all-gather, backward all-gather
    and reduce-scatter. cut: None for equal parts; of one with copies, backward all-reduces the copies' gradients.
    Outputs in a cut's padding are -inf. Raises ValueError where the ranks cannot share the outputs equally.
    """

    overlap = True  # False: wait for each message at once

    def __init__(self, linear, group=None, gather_output: bool = False, sequence_dim=None, cut: Cut | None = None):
        cut = cut or even_cut(linear.out_features, dist.get_world_size(group), what="ColumnParallelLinear")
        super().__init__(linear, group, {"weight": cut, "bias": cut}, sequence_dim)
        self.gather_output = gather_output
        SharedInput([self])

    def weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        return tuple(sum_over_copies(part, self.cuts["weight"], self.group) for part in (self.weight, self.bias))

    def forward(self, x: Tensor) -> Tensor:
        y, cut = self.shared(self, x), self.cuts["weight"]  # (..., m / N)
        padding = cut.length - cut.owned(dist.get_rank(self.group))
        if padding:
            y = F.pad(y[..., : cut.length - padding], (0, padding), value=-torch.inf)
        if not self.gather_output:
            return y
        parts = all_gather_split(y, self.group, dim=-1).chunk(dist.get_world_size(self.group), -1)
        return replace(cut, dim=y.dim() - 1).join(parts)  # (..., m)


class RowParallelLinear(_Sharded):
    """This rank's inputs (..., k / N) to the whole result (..., m), the same on every rank.

    Forward: all-reduce of (..., m); then the bias, once. Backward: nothing. With `sequence_dim` forward reduce-scatter,
    backward all-gather, and all-reduce of the bias's gradient. input_is_parallel=False takes a whole x, of which each
    rank uses its part: backward all-gather of dx. Raises ValueError where the ranks cannot share the inputs equally.
    """

    def __init__(self, linear, group=None, input_is_parallel: bool = True, sequence_dim=None, cut: Cut | None = None):
        cut = cut or even_cut(linear.in_features, dist.get_world_size(group), dim=1, what="RowParallelLinear")
        super().__init__(linear, group, {"weight": cut}, sequence_dim)
        self.input_is_parallel = input_is_parallel

    def forward(self, x: Tensor) -> Tensor:
        if not self.input_is_parallel:
            x = split_all_gather(x, self.group, dim=-1)  # (..., k / N)
        partial_sums, bias = F.linear(x, self.weight), self.bias  # (..., m)
        if self.sequence_dim is None:
            y = all_reduce_identity(partial_sums, self.group)  # (..., m)
        else:
            y = reduce_scatter_all_gather(partial_sums, self.group, self.sequence_dim)  # (B, T / N, m)
            bias = None if bias is None else identity_all_reduce(bias, self.group)  # it met only these tokens
        return y if bias is None else y + bias


class SharedInput:
    """Layers that read one input, such as query, key and value: the first call does the work of all.

    Called by each layer in its own forward. So three layers cost one message a pass, and a model calls them one by one
    as before. layers: modules with weight_and_bias(), group, sequence_dim and overlap; they get this as `shared`.
    """

    def __init__(self, layers: Sequence):
        self.layers, self.x, self.waiting = list(layers), None, {}
        for layer in self.layers:
            layer.shared = self

    def __call__(self, layer, x: Tensor) -> Tensor:
        if x is not self.x or layer not in self.waiting:
            weights, biases = zip(*(each.weight_and_bias() for each in self.layers), strict=True)
            outputs = column_linears(x, weights, biases, layer.group, layer.sequence_dim, layer.overlap)
            self.x, self.waiting = x, dict(zip(self.layers, outputs, strict=True))
        y = self.waiting.pop(layer)
        if not self.waiting:
            self.x = None  # nothing is kept beyond the last of them
        return y


def column_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    group: dist.ProcessGroup | None,
    dim: int | None = None,
    overlap: bool = True,
) -> tuple[Tensor, ...]:
    """x (..., k) through each weight (m / N, k) and bias (m / N) or None: a tuple of (..., m / N).

    dim: the dimension along which every rank holds a part of x; None: every rank holds all of it.
    overlap=False waits for each message at once, to show what the waiting costs.
    """
    if dist.get_world_size(group) == 1:
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return _ColumnLinears.apply(x, group, dim, overlap, len(weights), *weights, *biases)


class _ColumnLinears(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group, dim: int | None, overlap: bool, count: int, *parameters):
        weights, biases = parameters[:count], parameters[count:]
        ctx.group, ctx.dim, ctx.overlap = group, dim, overlap
        ctx.save_for_backward(x, *weights)  # x as it came: with sequence shards only the part
        whole = x if dim is None else start_all_gather(x, group, dim)()  # (B, T, k)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        x, *weights = ctx.saved_tensors
        x_needs, parameters_need = ctx.needs_input_grad[0], ctx.needs_input_grad[5:]
        flat = [gradient.flatten(0, -2) for gradient in gradients]  # (B T, m / N)
        whole = _start_whole(ctx, x) if any(parameters_need[: len(weights)]) else None
        grad_x = _start_grad_x(ctx, flat, weights, gradients[0].shape[:-1]) if x_needs else None
        rows = whole().flatten(0, -2) if whole else None  # (B T, k)
        needs = zip(flat, parameters_need, strict=False)
        grad_weights = [dy.t() @ rows.to(dy.dtype) if need else None for dy, need in needs]  # (m / N, k)
        needs = zip(flat, parameters_need[len(weights) :], strict=True)
        grad_biases = [dy.sum(0) if need else None for dy, need in needs]  # (m / N,)
        return grad_x() if grad_x else None, None, None, None, None, *grad_weights, *grad_biases


def _start_whole(ctx, x: Tensor):
    """The whole input, again."""
    if ctx.dim is None:
        return lambda: x
    return _maybe_wait(ctx, start_all_gather(x, ctx.group, ctx.dim))


def _start_grad_x(ctx, flat: Sequence[Tensor], weights: Sequence[Tensor], shape: torch.Size):
    """This rank's share of dx, on its way to be added to the others'."""
    grad = flat[0] @ weights[0].to(flat[0].dtype)  # (B T, k)
    for dy, weight in zip(flat[1:], weights[1:], strict=True):
        grad.addmm_(dy, weight.to(dy.dtype))
    grad = grad.view(*shape, -1)  # (B, T, k)
    if ctx.dim is None:
        return _maybe_wait(ctx, start_all_reduce(grad, ctx.group, own=True))
    return _maybe_wait(ctx, start_reduce_scatter(grad, ctx.group, ctx.dim))


def _maybe_wait(ctx, started):
    if ctx.overlap:
        return started
    result = started()
    return lambda: result
