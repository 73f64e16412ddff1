"""Ring attention in one short file: causal attention over a sequence whose tokens are split over N ranks.

Each rank keeps its queries, while keys and values travel around a ring in N - 1 hops. A rank computes with one block
while it passes the block on, and merges the outputs by each row's lse, the log of the sum of exp(score). In backward,
keys and values travel again, and the gradient of each block travels behind it, back to the block's owner.

Outputs are merged in fp32, or in float64 if the inputs are. The gradients of keys and values are added up in the dtype
of the inputs, so in bf16 each hop rounds them. Libraries keep fp32 buffers, which doubles the bytes of these hops.
After Liu et al. 2023, "Ring Attention with Blockwise Transformers"; the merge is FlashAttention's (Dao et al. 2022).
Legend: B = sequences, T = tokens of a rank, H = query heads, G = key and value heads (H or fewer), d = head size.
"""

import torch
import torch.distributed as dist


def ring_attention(query, key, value, indices, group=None, starts=None) -> torch.Tensor:
    """Attention (B, H, T, d) of this rank's queries (B, H, T, d) to all keys. key, value: of this rank, (B, G, T, d).

    indices: for each rank the indices of its tokens, as `token_indices` returns them. starts: where each token's
    document starts, (B, tokens of all ranks); a token sees its own document only. None: a sequence is one document.
    """
    query = query.to(torch.promote_types(query.dtype, torch.float32)) / query.shape[-1] ** 0.5  # merged in fp32
    query, key, value = query.unflatten(1, (key.shape[1], -1)), key[:, :, None], value[:, :, None]  # (B, G, H/G, T, d)
    return RingAttention.apply(query, key, value, indices, group, starts).flatten(1, 2).to(value.dtype)


def token_indices(num_tokens: int, num_ranks: int, zigzag: bool = False) -> list[torch.Tensor]:
    """For each rank the indices of its tokens in the full sequence. The lengths of chunks differ by one at most."""
    chunks = torch.arange(num_tokens).tensor_split(2 * num_ranks if zigzag else num_ranks)
    return [torch.cat((chunks[r], chunks[-1 - r])) if zigzag else chunks[r] for r in range(num_ranks)]


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, indices, group, starts):
        out, lse = torch.zeros_like(query), torch.full_like(query[..., :1], -torch.inf)
        for owner, key_value in rotate(torch.stack((key, value)), indices, group):
            rows, columns, mask = visible_part(indices[dist.get_rank(group)], indices[owner], starts)
            block = attend(query[..., rows, :], *key_value[..., columns, :].to(out.dtype), mask)
            out[..., rows, :], lse[..., rows, :] = merge(out[..., rows, :], lse[..., rows, :], *block)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.indices, ctx.group, ctx.starts = indices, group, starts
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (query, key, value, out, lse), indices, group = ctx.saved_tensors, ctx.indices, ctx.group
        delta, grad_query, from_others = (grad_out * out).sum(-1, keepdim=True), torch.zeros_like(query), 0
        for owner, key_value in rotate(torch.stack((key, value)), indices, group):
            rows, columns, mask = visible_part(indices[dist.get_rank(group)], indices[owner], ctx.starts)
            of_rows = (each[..., rows, :] for each in (grad_out, delta, lse, query))
            block = attend_backward(*of_rows, *key_value[..., columns, :].to(out.dtype), mask)
            grad_query[..., rows, :] += block[0]
            grad_key_value = torch.zeros_like(key_value) + from_others  # from the ranks that had this block before
            grad_key_value[..., columns, :] += block[1]
            if owner == dist.get_rank(group):
                own = grad_key_value
            else:  # the last hop brings this rank's own gradient, summed over all other ranks
                from_others, works = pass_on(grad_key_value, owner, indices, group)
                for work in works:
                    work.wait()
        return grad_query, *(own + from_others), None, None, None


def rotate(block, indices, group):
    """Yield (owner, block) for the block of each rank, this rank's first. The next one arrives while you compute."""
    owner, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    for _ in range(num_ranks - 1):
        received, works = pass_on(block, owner, indices, group)
        yield owner, block
        for work in works:
            work.wait()
        owner, block = (owner - 1) % num_ranks, received
    yield owner, block


def pass_on(block, owner, indices, group):
    """Start to send `owner`'s block (2, B, G, 1, T, d) to the next rank, and to receive what the rank before has."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    received = block.new_empty(*block.shape[:-2], len(indices[(owner - 1) % num_ranks]), block.shape[-1])
    send = dist.P2POp(dist.isend, block, group=group, group_peer=(rank + 1) % num_ranks)
    receive = dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % num_ranks)
    return received, dist.batch_isend_irecv([send, receive])  # both at once, because sends alone would wait for ever


def visible_part(queries, keys, starts):
    """The smallest rectangle with all pairs that the mask leaves: slices of queries and of keys, and its mask."""
    mask = keys <= queries[:, None]  # (queries, keys)
    if starts is not None:
        mask = mask & (keys >= starts[:, None, None, queries, None].to(keys.device))  # (B, 1, 1, queries, keys)
    is_seen = mask.view(-1, len(queries), len(keys)).any(0)
    found = [is_seen.any(dim).nonzero().flatten().tolist() or [0, -1] for dim in (1, 0)]
    rows, columns = (slice(each[0], each[-1] + 1) for each in found)  # none at all: nothing is computed
    return rows, columns, mask[..., rows, columns]


def attend(query, key, value, mask):
    """The output of one block and its lse, which is -inf in a row that sees no key."""
    scores = (query @ key.mT).masked_fill(~mask.to(query.device), -torch.inf)  # (B, G, H / G, queries, keys)
    lse = scores.logsumexp(-1, keepdim=True)
    return exp_difference(scores, lse) @ value, lse


def merge(out, lse, block_out, block_lse):
    both = torch.logaddexp(lse, block_lse)
    return exp_difference(lse, both) * out + exp_difference(block_lse, both) * block_out, both


def attend_backward(grad_out, delta, lse, query, key, value, mask):
    """Gradients of one block's queries, and of its keys and values (2, B, G, 1, keys, d). lse: of the full sequence."""
    weights = exp_difference((query @ key.mT).masked_fill(~mask.to(query.device), -torch.inf), lse)
    grad_scores = weights * (grad_out @ value.mT - delta)
    grad_key_value = torch.stack((grad_scores.mT @ query, weights.mT @ grad_out))
    return grad_scores @ key, grad_key_value.sum(3, keepdim=True)  # over the query heads of a key and value head


def exp_difference(x, lse):
    """exp(x - lse), but 0 instead of nan where both are -inf because the row has seen no key."""
    return (x - lse.masked_fill(lse == -torch.inf, 0)).exp()
