"""Predicts the bytes that expert parallelism (mixture of experts) sends per layer, and counts parameters.

A router sends each token to its top k of E feed-forwards (experts), which lie on N ranks (ep). One all-to-all
carries the tokens there (dispatch) and a second one carries the results back (combine); backward repeats both in the
other direction. Sources: Lepikhin et al. 2020 (GShard); Fedus et al. 2021 (Switch Transformers), section 2.2; Jiang et
al. 2024 (Mixtral of Experts), whose 47 and 13 billion parameters a test checks.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, isfinite

from helpers.specs import ModelSpec
from helpers.specs.checks import check_counts


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
