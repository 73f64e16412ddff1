"""A layer whose experts are distributed over N ranks, in one short file: route, dispatch, compute, combine.

Each rank has its own tokens and E / N of the experts. A router chooses k experts for each token. Dispatch sends a copy
of the token to each of them. Combine brings the results back, where they are multiplied by the routing weights and
added up.

    forward     all-to-all of counts, all-to-all of tokens (dispatch), all-to-all of outputs (combine)
    backward    the two large all-to-alls again, in the other direction and with gradients

The counts go first, because a rank must know how many rows come from each other rank: gloo ends the process if a size
is wrong. Nothing is padded and nothing is dropped here. A choice of -1 goes nowhere (see capacity.py).
After Lepikhin et al. 2020 (GShard) and Gale et al. 2022 (MegaBlocks: dropless); sigmoid, bias and the limit of nodes
after DeepSeek-V3 (2024), section 2.1.2.
Legend: T = tokens of this rank, h = hidden, E = experts, k = choices of a token, N = ranks, n = rows that a rank gets.
"""

from math import ceil

import torch
import torch.distributed as dist
import torch.nn.functional as F


def route(logits, k, kind="softmax", bias=None, num_nodes=1, max_nodes=None):
    """The k experts of each token (T, k), their weights (T, k), which sum to 1, and the scores of all experts (T, E).

    kind: "softmax" as in Mixtral, or "sigmoid" as in DeepSeek-V3. bias: (E), added to the scores for the choice alone,
    so it moves tokens to other experts and changes no weight. The experts lie on `num_nodes` nodes. The experts of one
    token lie on at most `max_nodes` nodes; None: no limit. With k = 1 the weight is always 1, so the loss gives the
    router no gradient; Switch Transformers therefore take the score itself.
    """
    scores = logits.softmax(-1) if kind == "softmax" else logits.sigmoid()
    preference = scores.detach() if bias is None else scores.detach() + bias
    if max_nodes is not None:
        preference = preference.masked_fill(~on_best_nodes(preference, k, num_nodes, max_nodes), -torch.inf)
    experts = preference.topk(k, dim=-1).indices
    weights = scores.gather(-1, experts)
    return experts, weights / weights.sum(-1, keepdim=True), scores


def on_best_nodes(preference, k, num_nodes, max_nodes):
    """For each token, whether each expert is on one of the token's `max_nodes` best nodes: (T, E).

    For each node, its ceil(k / max_nodes) best preferences are added up. The nodes with the largest sums are the best.
    If `max_nodes` nodes together have fewer than k experts, torch raises a RuntimeError.
    """
    by_node = preference.unflatten(-1, (num_nodes, -1))  # (T, nodes, E / nodes)
    best = by_node.topk(ceil(k / max_nodes), dim=-1).values.sum(-1).topk(max_nodes, dim=-1).indices
    allowed = torch.zeros(by_node.shape[:2], dtype=torch.bool, device=preference.device).scatter(1, best, True)
    return allowed[..., None].expand_as(by_node).flatten(1)


def expert_parallel(x, experts, weights, compute, num_experts, group=None):
    """For each token, add up weight times output over its experts: (T, h) to (T, h).

    experts, weights: (T, k), as `route` returns them. compute(rows, counts): the outputs (n, h) of this rank's experts
    for rows (n, h) in the order of the experts; counts (E / N): the number of rows of each expert, which can be 0.
    """
    choice = experts.flatten()
    order = choice.argsort(stable=True)[(choice < 0).sum() :]  # choices in the order of their experts, without any -1
    token = order // experts.shape[1]
    counts = torch.bincount(choice[order], minlength=num_experts)
    received_counts = exchange_counts(counts, group)  # (N, E / N): rows from each rank, for each expert on this rank
    # On a GPU, the host waits here for the counts, and cannot launch the next kernels before it has them.
    sent, received = counts.view(received_counts.shape).sum(1).tolist(), received_counts.sum(1).tolist()

    arrived = AllToAll.apply(x[token], sent, received, group)  # dispatch: (n, h), in the order of ranks
    by_expert = rows_by_expert(received_counts)
    computed = compute(arrived[by_expert], received_counts.sum(0))
    back_in_order = computed[by_expert.argsort()]  # in the order of ranks again
    returned = AllToAll.apply(back_in_order, received, sent, group)  # combine: a row for each choice that is not -1

    # Output times weight has the type of the weights, usually float32. The sum has that of x. Its order varies on GPUs.
    return torch.zeros_like(x).index_add(0, token, (returned * weights.flatten()[order, None]).to(x.dtype))


def exchange_counts(counts, group):
    """Tell each rank how many rows it will get. counts: this rank's rows for each expert, (E).

    Returns how many rows each rank sends to each expert here, (N, E / N).
    """
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    return received.view(dist.get_world_size(group), -1)


def rows_by_expert(received_counts):
    """The indices (n) that sort rows by expert. Rows arrive sorted by rank, and those of a rank by expert."""
    num_ranks, num_local = received_counts.shape
    expert = torch.arange(num_local, device=received_counts.device).repeat(num_ranks)
    return expert.repeat_interleave(received_counts.flatten()).argsort(stable=True)


class AllToAll(torch.autograd.Function):
    """Sends sent[r] rows to rank r and gets received[r] rows from it. Backward sends the gradients back."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.sizes = sent, received, group
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        sent, received, group = ctx.sizes
        return AllToAll.apply(gradient, received, sent, group), None, None, None


def grouped_matmul(rows, weights, counts):
    """Multiply each expert's rows by its own matrix: (n, h) and (E / N, h, f) to (n, f). An expert may have no rows."""
    is_aligned = all(size * rows.itemsize % 16 == 0 for size in weights.shape[1:])  # 16 bytes: torch asks for it
    if is_aligned and rows.dtype in (torch.float32, torch.bfloat16):
        return F.grouped_mm(rows, weights, offs=counts.cumsum(0).to(torch.int32))
    return torch.cat([part @ matrix for part, matrix in zip(rows.split(counts.tolist()), weights, strict=True)])
