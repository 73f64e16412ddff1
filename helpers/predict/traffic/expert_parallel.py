"""Predicts the bytes and the latency of expert parallelism (mixture of experts), and counts parameters.

A router sends each token to its top k of E feed-forwards (experts), which lie on N ranks (ep). One all-to-all
carries the tokens there (dispatch) and a second one carries the results back (combine); backward repeats both in the
other direction. Without deduplication a token is sent k times, once for each of its experts. With it, a token is sent
once to each node that has some of its experts, and copied there; a router with a node limit bounds this number.
Sources: Lepikhin et al. 2020 (GShard); Fedus et al. 2021 (Switch Transformers), section 2.2; Jiang et al. 2024 (Mixtral
of Experts), whose 47 and 13 billion parameters a test checks; DeepSeek-AI 2024 (DeepSeek-V3), sections 2.1.2 and 3.2.2;
Zhao et al. 2025 (Insights into DeepSeek-V3, ISCA), section 2.3.2; github.com/deepseek-ai/DeepEP. time/flops.py counts
the operations of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, comb, isfinite
from typing import NamedTuple

from helpers.specs import ModelSpec
from helpers.specs.checks import check_count, check_counts, check_divides, check_positive


def all_to_all_bytes(*, tokens: int, hidden: int, top_k: int, ep: int, dtype_bytes: int = 2) -> float:
    """Bytes that one rank with `tokens` tokens sends in one all-to-all, if the router spreads them evenly.

    k copies of each token; (ep - 1) / ep of them go to other ranks. Indices and router weights are left out.
    """
    check_counts("all_to_all_bytes", tokens=tokens, hidden=hidden, top_k=top_k, ep=ep)
    return tokens * top_k * hidden * dtype_bytes * (ep - 1) / ep


def layer_bytes(*, tokens: int, hidden: int, top_k: int, ep: int, dtype_bytes: int = 2) -> float:
    """Bytes that one rank sends in a layer's four all-to-alls: dispatch and combine, in forward and in backward."""
    return 4 * all_to_all_bytes(tokens=tokens, hidden=hidden, top_k=top_k, ep=ep, dtype_bytes=dtype_bytes)


def token_bytes(*, hidden: int, copies: int, dtype_bytes: int, scale_block: int | None = None) -> float:
    """Bytes of one token in one all-to-all: `copies` rows of `hidden` elements.

    copies: k, or with deduplication the nodes that the token is sent to. scale_block: in 8 bits, the elements with
    a common fp32 scale, which is sent along; None for no scales. DeepSeek-V3 dispatches in 8 bits and combines in 16.
    """
    check_counts("token_bytes", hidden=hidden, copies=copies, dtype_bytes=dtype_bytes)
    scales = 0.0 if scale_block is None else 4 * hidden / scale_block
    return copies * (hidden * dtype_bytes + scales)


def expected_nodes(*, num_experts: int, top_k: int, nodes: int) -> float:
    """Nodes that have some of a token's k experts, on average, if all sets of k experts are equally likely.

    A node is missed if all k experts are among those of the other nodes. Raises ValueError where the nodes cannot share
    the experts.
    """
    check_counts("expected_nodes", num_experts=num_experts, top_k=top_k, nodes=nodes)
    check_divides("expected_nodes", "nodes", nodes, "num_experts", num_experts)
    missed = comb(num_experts - num_experts // nodes, top_k) / comb(num_experts, top_k)
    return nodes * (1 - missed)


def saved_by_node_limit(*, num_experts: int, top_k: int, nodes: int, limit: int) -> float:
    """The share of the deduplicated messages that a node limit saves, from 0 to 1, if a token uses all `limit` nodes.

    A token may happen to use fewer. If the k experts are uniform on the chosen nodes, the number is `expected_nodes` of
    these nodes alone.
    """
    return max(0.0, 1 - limit / expected_nodes(num_experts=num_experts, top_k=top_k, nodes=nodes))


def remote_share(nodes: int) -> float:
    """The share of evenly spread rows that leave a node: (nodes - 1) / nodes.

    DeepEP's bandwidth is "logical": it counts all rows, so what a network card carries is this share of it.
    """
    check_count("remote_share", "nodes", nodes)
    return (nodes - 1) / nodes


def logical_bandwidth(*, tokens: int, row_bytes: float, copies: int, seconds: float) -> float:
    """Bytes per second of an all-to-all as DeepEP counts them: all copies of all tokens of a rank, local ones included.

    row_bytes: of one copy of a token, `token_bytes` with copies=1.
    """
    check_counts("logical_bandwidth", tokens=tokens, copies=copies)
    check_positive("logical_bandwidth", "seconds", seconds)
    return tokens * copies * row_bytes / seconds


class DecodingLatency(NamedTuple):
    """The bound that a network sets to decoding with expert parallelism; seconds, and tokens per second of a request.

    exchange: dispatch and combine of one micro-batch. layer: of two micro-batches in turn. token: of all layers.
    """

    exchange: float
    layer: float
    token: float
    tokens_per_second: float


def decoding_latency(
    *, tokens: int, copies: int, hidden: int, num_layers: int, bandwidth: float, dispatch_bytes: int = 1,
    combine_bytes: int = 2,
) -> DecodingLatency:  # fmt: skip
    """The latency of decoding if only the network counts (Zhao et al. 2025, section 2.3.2).

    tokens: of a GPU's micro-batch. copies: routed and shared experts of a token, 9 in DeepSeek-V3. bandwidth: bytes per
    second. Each layer takes two exchanges, because while one of two micro-batches computes, the other communicates.
    """
    check_counts("decoding_latency", tokens=tokens, copies=copies, hidden=hidden, num_layers=num_layers)
    check_positive("decoding_latency", "bandwidth", bandwidth)
    exchange = (dispatch_bytes + combine_bytes) * tokens * copies * hidden / bandwidth
    token = 2 * exchange * num_layers
    return DecodingLatency(exchange, 2 * exchange, token, 1 / token)


def experts_per_rank(*, num_experts: int, ep: int, redundant: int = 0) -> int:
    """Routed experts on each rank, with `redundant` copies of busy ones; shared experts come on top.

    Raises ValueError where the ranks cannot share them.
    """
    check_counts("experts_per_rank", num_experts=num_experts, ep=ep)
    check_divides("experts_per_rank", "ep", ep, "num_experts + redundant", num_experts + redundant)
    return (num_experts + redundant) // ep


def balance_loss(fractions: Sequence[float], probabilities: Sequence[float], *, coefficient: float = 0.01) -> float:
    """The auxiliary loss for balance: coefficient * E * sum of f_i P_i (Fedus et al. 2021, equation 4).

    fractions: f_i, the share of the router's choices that fall on expert i, which sum to 1. probabilities: P_i, the
    mean of the router's probabilities, which sum to 1. At balance both are 1 / E and the loss is the coefficient, but
    some uneven loads give less. Code that counts choices per token has fractions that sum to k, and k times the loss.
    ValueError for different lengths.
    """
    if len(fractions) != len(probabilities):
        raise ValueError(
            f"balance_loss got {len(fractions)} fractions and {len(probabilities)} probabilities; give one of each "
            "per expert"
        )
    return coefficient * len(fractions) * sum(f * p for f, p in zip(fractions, probabilities, strict=True))


def granularity(model: ModelSpec) -> float:
    """How fine the experts are: 2 h / ffn. At 1 an expert has half the width of a dense feed-forward of 4 h."""
    return 2 * model.hidden / model.ffn


def capacity(*, tokens: int, num_experts: int, top_k: int = 1, factor: float = 1.0) -> int:
    """Tokens that one expert accepts; further tokens are dropped.

    tokens * k / experts * factor, rounded up (Fedus et al. 2021, equation 3, which has k = 1). tokens: of the full
    batch that is routed together. factor: the capacity factor.
    """
    check_counts("capacity", tokens=tokens, num_experts=num_experts, top_k=top_k)
    if not factor > 0 or not isfinite(factor):
        raise ValueError(f"capacity: factor is {factor!r}, but it must be above 0; 1.0 to 2.0 are common")
    # Fractions, because in floats 50 * 1.1 is a little above 55 and would be rounded up to 56.
    return ceil(Fraction(tokens * top_k, num_experts) * Fraction(str(factor)))


def total_params(model: ModelSpec, *, num_experts: int) -> int:
    """Parameters of `model` when each feed-forward becomes `num_experts` of its size and a router without bias."""
    return replace(model, num_experts=num_experts).num_params


def active_params(model: ModelSpec, *, num_experts: int, top_k: int) -> int:
    """Parameters that compute one token: the rest of the model, the router, and k experts per layer."""
    return replace(model, num_experts=num_experts, top_k=top_k).active_params
