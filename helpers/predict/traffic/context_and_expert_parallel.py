"""Predicts the bytes that context parallelism (ring attention, Ulysses) and expert parallelism (MoE) send per layer.

Context parallelism. b sequences of s tokens, N ranks with s/N tokens each; q and kv: elements of a token's queries and
of its keys (q = h; kv is smaller with grouped queries). A rank sends in one layer's forward:
    ring      2 kv b s/N, N - 1 times: its keys and values travel round the ring while it computes
              (Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3)
    Ulysses   four all-to-alls of what a rank holds, queries, keys, values and the output: (2 q + 2 kv) b s/N (N - 1)/N
              (Jacobs et al. 2023, DeepSpeed Ulysses; they count 4 N h / P for what we call 4 s h / N)
Backward: the ring sends keys and values once more, and their gradients: twice forward's. Ulysses sends the gradients
of the four tensors back: as much as forward.
A third method gathers the keys and values of all ranks at once, before it computes (The Llama 3 Herd of Models, section
3.3.2). It sends as many bytes as the ring in each direction. What is exposed differs (predict/time/layer.py).

Experts. A router sends each token to its top k of E feed-forwards (experts), which lie on N ranks (ep). One all-to-all
carries the tokens there (dispatch) and a second one carries the results back (combine); backward repeats both in the
other direction. Sources: Lepikhin et al. 2020 (GShard); Fedus et al. 2021 (Switch Transformers), section 2.2; Jiang et
al. 2024 (Mixtral of Experts), whose 47 and 13 billion parameters a test checks.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, isfinite

from helpers.specs import ModelSpec
from helpers.specs.checks import check_counts, refuse_unmodelled_fields


def ring_attention_bytes(
    model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2, backward: bool = False
) -> float:
    """Bytes that one rank sends in one layer with ring attention, in forward, or in backward with `backward=True`.

    Raises ValueError for a cp that does not divide the sequence.
    """
    block = 2 * _width(model, model.kv_heads) * batch * _tokens(model, cp) * dtype_bytes
    return (cp - 1) * block * (2 if backward else 1)


def ulysses_bytes(model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2) -> float:
    """Bytes that one rank sends in one layer's forward with Ulysses; backward sends as much again.

    Where cp exceeds the number of key and value heads, these are copied until each rank has one. Raises ValueError for
    a cp that does not divide the sequence or the heads: Ulysses cannot use more ranks than the model has query heads.
    """
    if model.num_heads % cp:
        raise ValueError(f"Ulysses: cp={cp} does not divide num_heads={model.num_heads}; choose a divisor, or the ring")
    elements = 2 * _width(model, model.num_heads) + 2 * _width(model, max(model.kv_heads, cp))
    return elements * batch * _tokens(model, cp) * dtype_bytes * (cp - 1) / cp


def tokens_to_hide(model: ModelSpec, *, flops: float, bandwidth: float, dtype_bytes: int = 2) -> float:
    """Tokens per rank from which on the ring's next block arrives while the rank computes with the present one.

    Attention of c tokens to c tokens takes 4 c^2 q operations, and a block has 2 c kv dtype_bytes bytes, which gives
    c = flops / bandwidth with 16 bits and kv = q (Liu et al. 2023, section 3), in forward without a causal mask. flops:
    operations per second; bandwidth: bytes per second.
    """
    refuse_unmodelled_fields("context parallel", model, names=("window",))
    return flops * dtype_bytes * model.kv_heads / (2 * bandwidth * model.num_heads)


def _width(model: ModelSpec, heads: int) -> int:
    """Elements of a token in so many heads."""
    return heads * model.head_dim


def _tokens(model: ModelSpec, cp: int) -> int:
    """Tokens of a sequence on one rank. ValueError for a cp that does not divide the sequence, or for a window.

    Experts are allowed, because they change nothing about attention.
    """
    refuse_unmodelled_fields("context parallel", model, names=("window",))
    if isinstance(cp, bool) or not isinstance(cp, int) or cp < 1 or model.seq % cp:
        raise ValueError(f"context parallel: cp={cp!r} does not divide seq={model.seq}; choose a divisor of it")
    return model.seq // cp


def all_to_all_bytes(*, tokens: int, hidden: int, top_k: int, ep: int, dtype_bytes: int = 2) -> float:
    """Bytes that one rank with `tokens` tokens sends in one all-to-all, if the router spreads them evenly.

    k copies of each token; (ep - 1) / ep of them go to other ranks. Indices and router weights are left out.
    """
    check_counts("all_to_all_bytes", tokens=tokens, hidden=hidden, top_k=top_k, ep=ep)
    return tokens * top_k * hidden * dtype_bytes * (ep - 1) / ep


def layer_bytes(*, tokens: int, hidden: int, top_k: int, ep: int, dtype_bytes: int = 2) -> float:
    """Bytes that one rank sends in a layer's four all-to-alls: dispatch and combine, in forward and in backward."""
    return 4 * all_to_all_bytes(tokens=tokens, hidden=hidden, top_k=top_k, ep=ep, dtype_bytes=dtype_bytes)


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
