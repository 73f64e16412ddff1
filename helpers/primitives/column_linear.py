"""Linear layers cut by columns that read one input, as one step of autograd, which hides communication behind compute.

Legend: B, T = batch, tokens; h = width of the input; m = a layer's outputs on this rank; N = ranks.
Forward: y = x W^T + b on the rank's own outputs; nothing is sent. Each rank uses the whole x, so in backward
    dx = sum over ranks and layers of dy W       one all-reduce for all layers together
    dW = dy^T x, db = sum of dy                  meanwhile
With sequence shards (`dim`) x arrives in parts along that dimension. Forward: all-gather. Backward: the gathered x was
not kept, so all-gather once more while dx is computed, then reduce-scatter of dx while dW is computed.
Korthikanti et al. 2022, section 4.2.2: keeping only the shard is what makes all activations 1/N.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from helpers.primitives.conjugate import start_all_gather, start_all_reduce, start_reduce_scatter


def column_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    group: dist.ProcessGroup | None,
    dim: int | None = None,
    overlap: bool = True,
) -> tuple[Tensor, ...]:
    """x (..., h) through each weight (m, h) and bias (m) or None: a tuple of (..., m).

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
        whole = x if dim is None else start_all_gather(x, group, dim)()  # (B, T, h)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        x, *weights = ctx.saved_tensors
        x_needs, parameters_need = ctx.needs_input_grad[0], ctx.needs_input_grad[5:]
        flat = [gradient.flatten(0, -2) for gradient in gradients]  # (B T, m)
        whole = _start_whole(ctx, x) if any(parameters_need[: len(weights)]) else None
        grad_x = _start_grad_x(ctx, flat, weights, gradients[0].shape[:-1]) if x_needs else None
        rows = whole().flatten(0, -2) if whole else None  # (B T, h)
        needs = zip(flat, parameters_need, strict=False)
        grad_weights = [dy.t() @ rows.to(dy.dtype) if need else None for dy, need in needs]  # (m, h)
        needs = zip(flat, parameters_need[len(weights) :], strict=True)
        grad_biases = [dy.sum(0) if need else None for dy, need in needs]  # (m,)
        return grad_x() if grad_x else None, None, None, None, None, *grad_weights, *grad_biases


def _start_whole(ctx, x: Tensor):
    """The whole input, again."""
    if ctx.dim is None:
        return lambda: x
    return _maybe_wait(ctx, start_all_gather(x, ctx.group, ctx.dim))


def _start_grad_x(ctx, flat: Sequence[Tensor], weights: Sequence[Tensor], shape: torch.Size):
    """This rank's share of dx, on its way to be added to the others'."""
    grad = flat[0] @ weights[0].to(flat[0].dtype)  # (B T, h)
    for dy, weight in zip(flat[1:], weights[1:], strict=True):
        grad.addmm_(dy, weight.to(dy.dtype))
    grad = grad.view(*shape, -1)  # (B, T, h)
    if ctx.dim is None:
        return _maybe_wait(ctx, start_all_reduce(grad, ctx.group, own=True))
    return _maybe_wait(ctx, start_reduce_scatter(grad, ctx.group, ctx.dim))


def _maybe_wait(ctx, started):
    if ctx.overlap:
        return started
    result = started()
    return lambda: result


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
