"""Conjugate operators: what forward sends, backward sends the other way round, so that gradients come out whole.

Legend: N = ranks of the group, (B, T, h) = batch, tokens, hidden. `dim` is where a tensor is cut, in N equal parts.

    name                          forward           backward          payload each, of a whole tensor of n elements
    identity_all_reduce           nothing           all-reduce        n           Megatron's f
    all_reduce_identity           all-reduce        nothing           n           Megatron's g
    all_gather_split              all-gather        nothing           n / N       each keeps its part of the gradient
    split_all_gather              nothing           all-gather        n / N
    all_gather_reduce_scatter     all-gather        reduce-scatter    n / N, n    sequence parallel's g
    reduce_scatter_all_gather     reduce-scatter    all-gather        n, n / N    sequence parallel's g-bar

Which one to take follows from what every rank holds. The same tensor everywhere has the same gradient everywhere. Where
ranks do different things with one tensor, each knows a part of its gradient, and the parts must be added.
After Shoeybi et al. 2019, "Megatron-LM", section 3 (f and g), and Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4.2.2 (g and g-bar). With one rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from helpers.parallel.shared.collectives import all_gather_flat, reduce_scatter_flat

Started = Callable[[], Tensor]  # call it to wait for what was started, and to have the result


def identity_all_reduce(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """x itself. Forward: nothing. Backward: all-reduce of the gradient, a tensor like x.

    For a whole x that every rank multiplies with its own columns: each then knows only a part of x's gradient.
    """
    return _apply(x, group, 0, _identity, start_all_reduce)


def all_reduce_identity(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of all ranks' x. Forward: all-reduce of x. Backward: nothing, the gradient is whole already.

    For partial sums, as rows of a matrix leave them.
    """
    return _apply(x, group, 0, start_all_reduce, _identity)


def all_gather_split(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """The ranks' parts side by side along `dim`. Forward: all-gather. Backward: nothing, each keeps its part.

    For a result that every rank then uses in the same way: the loss of gathered logits.
    """
    return _apply(x, group, dim, start_all_gather, _split)


def split_all_gather(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """This rank's part of x along `dim`. Forward: nothing. Backward: all-gather of the parts' gradients.

    For an x that is the same on every rank, where sequence parallelism begins. Raises ValueError where the ranks
    cannot share `dim` equally.
    """
    return _apply(x, group, dim, _split, start_all_gather)


def all_gather_reduce_scatter(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """The ranks' parts side by side along `dim`. Forward: all-gather. Backward: reduce-scatter.

    For parts that every rank multiplies, whole, with its own columns: f and the way out of a sequence shard in one.
    """
    return _apply(x, group, dim, start_all_gather, start_reduce_scatter)


def reduce_scatter_all_gather(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """This rank's part, along `dim`, of the sum of all ranks' x. Forward: reduce-scatter. Backward: all-gather.

    For partial sums that go on as sequence shards: an all-reduce of which each rank keeps its part. Raises ValueError
    where the ranks cannot share `dim` equally.
    """
    return _apply(x, group, dim, start_reduce_scatter, start_all_gather)


class _Conjugate(torch.autograd.Function):
    """One way of sending in forward, the other in backward."""

    @staticmethod
    def forward(ctx, x: Tensor, group, dim: int, there: Callable[..., Started], back: Callable[..., Started]):
        ctx.back = lambda gradient: back(gradient, group, dim)()
        return there(x, group, dim)()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return ctx.back(gradient), None, None, None, None


def _apply(x: Tensor, group: dist.ProcessGroup | None, dim: int, there: Callable, back: Callable) -> Tensor:
    if dist.get_world_size(group) == 1:
        return x
    return _Conjugate.apply(x, group, dim % x.dim() if x.dim() else 0, there, back)


def _identity(x: Tensor, group, dim: int) -> Started:
    return lambda: x.view_as(x)


def start_all_reduce(x: Tensor, group, dim: int = 0, *, own: bool = False) -> Started:
    """Start adding up the ranks' x; x stays as it is, unless it is the caller's `own` and may hold the sum."""
    total = x.contiguous() if own else x.clone(memory_format=torch.contiguous_format)  # a gradient may have two readers
    work = dist.all_reduce(total, group=group, async_op=True)
    return lambda: _after(work, total)


def start_all_gather(x: Tensor, group, dim: int) -> Started:
    """Start fetching every rank's x, all of one shape; the result has them side by side along `dim`."""
    x = x.contiguous()
    parts = x.new_empty(dist.get_world_size(group), *x.shape)  # (N, ..., n / N, ...)
    work = all_gather_flat(parts.view(-1, *x.shape[1:]) if x.dim() else parts, x, group=group, async_op=True)
    return lambda: _after(work, parts, x).movedim(0, dim).flatten(dim, dim + 1)


def start_reduce_scatter(x: Tensor, group, dim: int) -> Started:
    """Start adding up the ranks' x; the result is this rank's part of the sum along `dim`."""
    num_parts = check_shares(x.shape, dim, group)
    parts = x.unflatten(dim, (num_parts, -1)).movedim(dim, 0).contiguous()  # (N, ..., n / N, ...)
    part = torch.empty_like(parts[0])
    work = reduce_scatter_flat(part, parts.flatten(0, 1), group=group, async_op=True)
    return lambda: _after(work, part, parts)


def _split(x: Tensor, group, dim: int) -> Started:
    num_parts = check_shares(x.shape, dim, group)
    return lambda: x.chunk(num_parts, dim)[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)


def _after(work: dist.Work, result: Tensor, *kept_until_then: Tensor) -> Tensor:
    work.wait()
    return result


def check_shares(shape: torch.Size, dim: int, group) -> int:
    """The number of ranks. Raises ValueError where they cannot share dimension `dim` of `shape` equally."""
    num_parts, length = dist.get_world_size(group), shape[dim]
    if length % num_parts or not length:
        below, above = length - length % num_parts, length - length % num_parts + num_parts
        near = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"{num_parts} ranks cannot share dimension {dim} of {tuple(shape)} equally: it is {length} long, "
            f"the nearest that works is {near}"
        )
    return num_parts
