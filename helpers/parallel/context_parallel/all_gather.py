"""Provides attention over a split sequence by an all-gather: each rank gets all keys and values before it computes.

    forward    all-gathers keys and values; then each rank computes the attention of its own queries
    backward   all-gathers them again, because only shards were kept, and reduce-scatters their gradients

It sends as many bytes as the ring in both passes. Llama 3 was trained this way for two reasons (The Llama 3 Herd of
Models, 2024, section 3.3.2). A rank that has all keys can use any mask, such as one for packed documents. And keys and
values are small with grouped queries, so the time of the all-gather, which grows with the number of tokens, is little
beside the time of attention, which grows with its square. The price is memory for the keys and values of the full
sequence while a layer computes, and a rank computes nothing before the all-gather has ended.
Shards of unequal length are padded to the longest one, because the two collectives need equal sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from helpers.parallel.context_parallel.ring import attend, attend_backward, visible_part
from helpers.parallel.context_parallel.sequence import join_sequence, split_sequence
from helpers.parallel.shared.collectives import all_gather_flat, reduce_scatter_flat


def all_gather_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indices: Sequence[Tensor],
    group: dist.ProcessGroup | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """The attention of this rank's queries (B, H, T, d) to all ranks' keys and values (B, G, T, d): (B, H, T, d).

    The arguments are those of `ring_attention`.
    """
    query = query.to(torch.promote_types(query.dtype, torch.float32))  # 16-bit keys and values meet 32-bit queries
    query = query.unflatten(1, (key.shape[1], -1)) / query.shape[-1] ** 0.5  # (B, G, H / G, T, d): grouped queries
    out = AllGatherAttention.apply(query, key.unsqueeze(2), value.unsqueeze(2), indices, group, starts)
    return out.flatten(1, 2).to(value.dtype)


class AllGatherAttention(torch.autograd.Function):
    """Attention of (B, G, H / G, T, d) to (B, G, 1, T, d) on all ranks."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, indices, group, starts) -> Tensor:
        key_value = gather_sequence(torch.stack((key, value)), indices, group)
        out, lse = torch.empty_like(query), torch.empty_like(query[..., :1])
        for rows, columns, mask in visible_parts(indices, group, starts):
            out[..., rows, :], lse[..., rows, :] = attend(
                query[..., rows, :], *key_value[..., columns, :].to(out.dtype), mask
            )
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.indices, ctx.group, ctx.starts = indices, group, starts
        return out

    @staticmethod
    def backward(ctx, grad_out: Tensor):
        query, key, value, out, lse = ctx.saved_tensors
        key_value = gather_sequence(torch.stack((key, value)), ctx.indices, ctx.group)
        delta = (grad_out * out).sum(-1, keepdim=True)
        grad_query, grad_key_value = torch.empty_like(query), torch.zeros_like(key_value)
        for rows, columns, mask in visible_parts(ctx.indices, ctx.group, ctx.starts):
            of_rows = (each[..., rows, :] for each in (grad_out, delta, lse, query))
            grad_query[..., rows, :], part = attend_backward(*of_rows, *key_value[..., columns, :].to(out.dtype), mask)
            grad_key_value[..., columns, :] += part
        grad_key, grad_value = reduce_scatter_sequence(grad_key_value, ctx.indices, ctx.group)
        return grad_query, grad_key, grad_value, None, None, None


def visible_parts(indices: Sequence[Tensor], group: dist.ProcessGroup | None, starts: Tensor | None):
    """Yield (rows of this rank's queries, rows of all keys, mask) for each chunk of queries that follow each other.

    Every query sees a key, which is that of its own token.
    """
    queries = indices[dist.get_rank(group)]
    edges = [0, *((queries.diff() > 1).nonzero().flatten() + 1).tolist(), len(queries)]
    every_key = torch.arange(sum(map(len, indices)))
    for first, stop in zip(edges[:-1], edges[1:], strict=True):
        _, columns, mask = visible_part(queries[first:stop], every_key, starts)
        yield slice(first, stop), columns, mask


def gather_sequence(shard: Tensor, indices: Sequence[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """Return the full sequence (..., all tokens, d) from the ranks' shards (..., T, d), by one all-gather."""
    padded = _padded(shard, indices)
    gathered = padded.new_empty(len(indices), *padded.shape)
    all_gather_flat(gathered.flatten(0, 1), padded, group=group)
    return join_sequence([gathered[r, ..., : len(index), :] for r, index in enumerate(indices)], indices, dim=-2)


def reduce_scatter_sequence(full: Tensor, indices: Sequence[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """Return this rank's shard (..., T, d) of the sum of all ranks' (..., all tokens, d), by one reduce-scatter."""
    shards = [_padded(split_sequence(full, indices, rank, dim=-2), indices) for rank in range(len(indices))]
    summed = torch.empty_like(shards[0])
    reduce_scatter_flat(summed, torch.cat(shards), group=group)
    return summed[..., : len(indices[dist.get_rank(group)]), :]


def _padded(shard: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """The shard (..., T, d) with zeros up to the length of the longest one."""
    return F.pad(shard, (0, 0, 0, max(map(len, indices)) - shard.shape[-2]))
