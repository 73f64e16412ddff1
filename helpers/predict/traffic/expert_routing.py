"""Draws the choices of a router at random, for calculators that need tokens and have no model.

Each expert has a popularity, and a token's k experts are drawn by it without replacement: score = log popularity +
Gumbel noise, and the k largest scores win (Yellott 1977). `expert_messages.py` counts what such choices send.
`chosen_shares` gives the load of very many tokens without drawing any.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import nlargest
from math import exp, log
from random import Random

from helpers.specs.checks import check_counts, check_divides

Choices = tuple[tuple[int, ...], ...]  # for each token its k experts


@lru_cache(maxsize=64)
def chosen_shares(*, num_experts: int, top_k: int, skew: float = 0.0) -> tuple[float, ...]:
    """The share of very many tokens that choose each expert; the shares sum to k. skew: as in `drawn_choices`.

    An expert of popularity p is among the k best scores with probability 1 - exp(-c p), where c makes the sum k. This
    takes the k-th best score of a token as a constant, and is close for many experts. ValueError for k above E.
    """
    _check_choice(num_experts, top_k)
    popularity = [exp(each) for each in _log_popularity(num_experts, skew)]
    low, high = 0.0, 1e9
    for _ in range(80):  # halves the interval of c
        middle = (low + high) / 2
        low, high = (low, middle) if sum(1 - exp(-middle * p) for p in popularity) > top_k else (middle, high)
    return tuple(1 - exp(-low * p) for p in popularity)


def _check_choice(num_experts: int, top_k: int) -> None:
    if top_k > num_experts:
        raise ValueError(f"a token cannot choose {top_k} of {num_experts} experts; take a smaller k")


def _log_popularity(num_experts: int, skew: float) -> list[float]:
    """The logarithm of each expert's popularity, in an order that was drawn once."""
    places = list(range(1, num_experts + 1))
    Random(1).shuffle(places)
    return [-skew * log(place) for place in places]


@lru_cache(maxsize=64)
def drawn_choices(
    *, tokens: int, num_experts: int, top_k: int, skew: float = 0.0, nodes: int = 1, max_nodes: int | None = None
) -> Choices:  # fmt: skip
    """The k experts of each of `tokens` tokens, always the same for the same arguments.

    skew: the r-th most popular expert has the popularity 1 / r^skew; which one it is was drawn once. max_nodes: on how
    many of the `nodes` nodes a token's experts may be; those with the largest sums of their best scores are
    taken, as `route` does. Raises ValueError where the numbers do not fit together.
    """
    check_counts("drawn_choices", tokens=tokens, num_experts=num_experts, top_k=top_k, nodes=nodes)
    check_divides("drawn_choices", "nodes", nodes, "num_experts", num_experts)
    _check_choice(num_experts, top_k)
    if max_nodes is not None and (max_nodes > nodes or top_k % max_nodes or top_k // max_nodes > num_experts // nodes):
        raise ValueError(
            f"a limit of {max_nodes} nodes does not fit {nodes} nodes and k = {top_k}: it divides k, and is at most "
            "the number of nodes"
        )
    popularity, share = _log_popularity(num_experts, skew), num_experts // nodes
    chosen = []
    for noise in _gumbel_noise(tokens, num_experts):
        scores = [own + drawn for own, drawn in zip(popularity, noise, strict=True)]
        allowed = range(num_experts)
        if max_nodes is not None:
            by_node = [sum(nlargest(top_k // max_nodes, scores[n * share : (n + 1) * share])) for n in range(nodes)]
            best = nlargest(max_nodes, range(nodes), by_node.__getitem__)
            allowed = [expert for node in best for expert in range(node * share, (node + 1) * share)]
        chosen.append(tuple(nlargest(top_k, allowed, scores.__getitem__)))
    return tuple(chosen)


@lru_cache(maxsize=8)
def _gumbel_noise(tokens: int, num_experts: int) -> list[list[float]]:
    """For each token a number per expert, from the Gumbel distribution."""
    random = Random(0).random
    return [[-log(-log(random() or 0.5)) for _ in range(num_experts)] for _ in range(tokens)]
