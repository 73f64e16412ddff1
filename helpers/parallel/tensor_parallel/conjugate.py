"""Provides conjugate collectives: autograd functions whose backward sends the reverse of what forward sends.

Tensor-parallel layers are made of them. Megatron calls them mappings.
Legend: N = ranks of the group, (B, T, h) = batch, tokens, hidden. `dim`: the dimension that is sharded equally.

    name                          forward           backward          payload each, for a full tensor of n elements
    identity_all_reduce           nothing           all-reduce        n           Megatron's f
    all_reduce_identity           all-reduce        nothing           n           Megatron's g
    split_all_gather              nothing           all-gather        n / N
    all_gather_reduce_scatter     all-gather        reduce-scatter    n / N, n    sequence parallel's g
    reduce_scatter_all_gather     reduce-scatter    all-gather        n, n / N    sequence parallel's g-bar

What the ranks store decides which one to use. A tensor that is the same on every rank and is used in the same way has
the same gradient on every rank. Where ranks use one tensor in different ways, each has only a partial sum of its
gradient, and the partial sums must be added.
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

Started = Callable[[], Tensor]  # a collective in flight: calling it waits and returns the result


def identity_all_reduce(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return x itself. Forward sends nothing; backward all-reduces the gradient, a tensor like x.

    It is for a full x that every rank multiplies with its own columns, so that each has a partial sum of x's gradient.
    """
    return _apply(x, group, 0, _identity, start_all_reduce)


def all_reduce_identity(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of all ranks' x. Forward all-reduces x; backward sends nothing, because the gradient is complete.

    It is for the partial sums of a row-parallel layer.
    """
    return _apply(x, group, 0, start_all_reduce, _identity)


def split_all_gather(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """Return this rank's shard of x along `dim`. Forward sends nothing; backward all-gathers the shards' gradients.

    It is for an x that is the same on every rank, where sequence parallelism begins. Raises ValueError where the ranks
    cannot share `dim` equally.
    """
    return _apply(x, group, dim, _split, start_all_gather)


def all_gather_reduce_scatter(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """Return the ranks' shards joined along `dim`. Forward all-gathers; backward reduce-scatters.

    It is for sequence shards whose joined tensor every rank multiplies with its own columns.
    """
    return _apply(x, group, dim, start_all_gather, start_reduce_scatter)


def reduce_scatter_all_gather(x: Tensor, group: dist.ProcessGroup | None, dim: int) -> Tensor:
    """Return this rank's shard, along `dim`, of the sum of all ranks' x. Forward reduce-scatters; backward all-gathers.

    It is for partial sums whose result continues as sequence shards. Raises ValueError where the ranks cannot share
    `dim` equally.
    """
    return _apply(x, group, dim, start_reduce_scatter, start_all_gather)


class _Conjugate(torch.autograd.Function):
    """One collective in forward, and another in backward."""

    @staticmethod
    def forward(ctx, x: Tensor, group, dim: int, in_forward: Callable[..., Started], in_backward: Callable):
        ctx.in_backward = lambda gradient: in_backward(gradient, group, dim)()
        return in_forward(x, group, dim)()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return ctx.in_backward(gradient), None, None, None, None


def _apply(x: Tensor, group: dist.ProcessGroup | None, dim: int, in_forward: Callable, in_backward: Callable) -> Tensor:
    """Run one collective in forward and another in backward, on dimension `dim`; with one rank return x.

    Where no tensor is split or joined, `dim` is 0 and has no effect.
    """
    if dist.get_world_size(group) == 1:
        return x
    return _Conjugate.apply(x, group, dim % x.dim() if x.dim() else 0, in_forward, in_backward)


def _identity(x: Tensor, group, dim: int) -> Started:
    """Send nothing. A view, because an autograd function must not return its own input."""
    return lambda: x.view_as(x)


def start_all_reduce(x: Tensor, group, dim: int = 0, *, in_place: bool = False) -> Started:
    """Start adding up the ranks' x. in_place: x itself may receive the sum; otherwise x does not change."""
    total = x.contiguous() if in_place else x.clone(memory_format=torch.contiguous_format)  # others may read x, too
    work = dist.all_reduce(total, group=group, async_op=True)
    return lambda: _after(work, total)


def start_all_gather(x: Tensor, group, dim: int) -> Started:
    """Start gathering every rank's x, all of one shape; the result has them joined along `dim`."""
    x = x.contiguous()
    parts = x.new_empty(dist.get_world_size(group), *x.shape)  # (N, ..., n / N, ...)
    # the collective joins along dim 0; a scalar x has none
    work = all_gather_flat(parts.view(-1, *x.shape[1:]) if x.dim() else parts, x, group=group, async_op=True)
    return lambda: _after(work, parts, x).movedim(0, dim).flatten(dim, dim + 1)


def start_reduce_scatter(x: Tensor, group, dim: int) -> Started:
    """Start adding up the ranks' x; the result is this rank's shard of the sum along `dim`."""
    num_parts = check_shares(x.shape, dim, group)
    parts = x.unflatten(dim, (num_parts, -1)).movedim(dim, 0).contiguous()  # (N, ..., n / N, ...)
    part = torch.empty_like(parts[0])
    work = reduce_scatter_flat(part, parts.flatten(0, 1), group=group, async_op=True)
    return lambda: _after(work, part, parts)


def _split(x: Tensor, group, dim: int) -> Started:
    """Send nothing; the result is this rank's shard of x along `dim`."""
    num_parts = check_shares(x.shape, dim, group)
    return lambda: x.chunk(num_parts, dim)[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)


def _after(work: dist.Work, result: Tensor, *inputs_in_flight: Tensor) -> Tensor:
    """Wait and return the result. The inputs are passed so that their memory stays until then."""
    work.wait()
    return result


def check_shares(shape: torch.Size, dim: int, group) -> int:
    """Return the number of ranks. Raises ValueError where they cannot share dimension `dim` of `shape` equally."""
    num_parts, length = dist.get_world_size(group), shape[dim]
    if length % num_parts or not length:
        below, above = length - length % num_parts, length - length % num_parts + num_parts
        near = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"{num_parts} ranks cannot share dimension {dim} of {tuple(shape)} equally: it is {length} long, "
            f"the nearest that works is {near}"
        )
    return num_parts
