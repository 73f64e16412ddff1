"""Provides attention over a split sequence by all-to-alls, as DeepSpeed Ulysses does: each rank gets some heads.

    before attention   all-to-alls of queries, keys and values   own tokens of all heads to all tokens of own heads
    after attention    all-to-all of the output                  all tokens of own heads to own tokens of all heads

Between the two, each rank computes plain attention, so any kernel works and the work is equal without a zigzag.
Backward sends the four gradients the opposite way. A rank sends (N-1)/N of what it holds, so the bytes per rank fall
with N, while those of the ring hardly depend on N.

The number of heads is the limit. N must divide the query heads. Where there are fewer key and value heads than ranks,
each is sent to several ranks, as in DeepSpeed's UlyssesSPAttentionHF, so that every rank gets one; the number of ranks
must be a multiple of the heads then. Megatron's attention (TransformerEngine, cp_comm_type "a2a") refuses this case.
After Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.context_parallel.ring import visible_part
from helpers.parallel.context_parallel.sequence import join_sequence, split_sequence
from helpers.workloads.gpt import fused_attention


def ulysses_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indices: Sequence[Tensor],
    group: dist.ProcessGroup | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """The attention of this rank's queries (B, H, T, d) to all ranks' keys and values (B, G, T, d): (B, H, T, d).

    The arguments are those of `ring_attention`. Raises ValueError where the ranks cannot share the heads.
    """
    copies = _copies_of_key_heads(query.shape[1], key.shape[1], dist.get_world_size(group))
    key, value = (x.repeat_interleave(copies, dim=1) for x in (key, value))
    query, key, value = (Reshard.apply(x, indices, group, True) for x in (query, key, value))  # (B, heads / N, all, d)
    if starts is None:
        out = fused_attention(query, key, value, is_causal=True)
    else:
        every = torch.arange(query.shape[2])
        mask = visible_part(every, every, starts)[2][:, 0].to(query.device)  # (B, 1, all, all)
        out = fused_attention(query, key, value, attn_mask=query.new_zeros(mask.shape).masked_fill(~mask, -torch.inf))
    return Reshard.apply(out, indices, group, False)


class Reshard(torch.autograd.Function):
    """Changes sequence shards to head shards, or head shards to sequence shards; backward does the opposite."""

    @staticmethod
    def forward(ctx, x: Tensor, indices, group, to_heads: bool) -> Tensor:
        ctx.indices, ctx.group, ctx.to_heads = indices, group, to_heads
        return sequence_to_heads(x, indices, group) if to_heads else heads_to_sequence(x, indices, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        opposite = heads_to_sequence if ctx.to_heads else sequence_to_heads
        return opposite(gradient, ctx.indices, ctx.group), None, None, None


def sequence_to_heads(x: Tensor, indices: Sequence[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """This rank's tokens of all heads, (B, heads, T, d), to all tokens of its heads, (B, heads / N, all tokens, d)."""
    pieces = x.chunk(len(indices), dim=1)
    shapes = [(*pieces[0].shape[:2], len(index), x.shape[-1]) for index in indices]
    return join_sequence(exchange(pieces, shapes, group), indices, dim=2)


def heads_to_sequence(x: Tensor, indices: Sequence[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """All tokens of this rank's heads, (B, heads / N, all tokens, d), to its tokens of all heads, (B, heads, T, d)."""
    pieces = [split_sequence(x, indices, rank, dim=2) for rank in range(len(indices))]
    return torch.cat(exchange(pieces, [pieces[dist.get_rank(group)].shape] * len(pieces), group), dim=1)


def exchange(pieces: Sequence[Tensor], shapes: Sequence[tuple], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Send pieces[r] to rank r in one all-to-all. Returns what came from each rank, with these shapes."""
    sizes = [prod(shape) for shape in shapes]
    received = pieces[0].new_empty(sum(sizes))
    sent = torch.cat([piece.flatten() for piece in pieces])
    dist.all_to_all_single(received, sent, sizes, [piece.numel() for piece in pieces], group=group)
    return [part.view(shape) for part, shape in zip(received.split(sizes), shapes, strict=True)]


def _copies_of_key_heads(num_heads: int, num_kv_heads: int, num_ranks: int) -> int:
    """How many ranks need each key and value head. Raises ValueError where ranks and heads do not divide each other."""
    if num_heads % num_ranks:
        raise ValueError(
            f"Ulysses gives each rank whole heads, but {num_ranks} ranks cannot share {num_heads} query heads: choose "
            f"a number of ranks that divides {num_heads}, or ring attention, which has no such limit"
        )
    if num_kv_heads % num_ranks and num_ranks % num_kv_heads:
        raise ValueError(
            f"Ulysses cannot give {num_ranks} ranks equally many of {num_kv_heads} key and value heads: choose a "
            f"number of ranks that divides {num_kv_heads} or is a multiple of it, or ring attention"
        )
    return max(num_ranks // num_kv_heads, 1)
