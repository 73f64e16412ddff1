"""Refutes claims about context parallelism, by running this course's ring attention and Ulysses on four ranks.

Each function is named like its claim and returns numbers by name. `helpers/interview/myths.yaml` has the claims in
full, names these functions by their dotted path, and says which numbers refute a claim. myths.py has the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.chapters.long_context import computed_pairs
from helpers.observe.comms import record_comms
from helpers.parallel.context_parallel import ring_attention, token_indices, ulysses_attention
from helpers.ranks import Ranks

Numbers = dict[str, float]
NUM_TOKENS = 1024


def equal_tokens_are_equal_work(ranks: Ranks) -> Numbers:
    """Claim: in ring attention every rank has as many tokens as the others, so all have the same work.

    Pairs of a query and a key that the busiest of four ranks computes under a causal mask, divided by the mean of the
    ranks: for one chunk of the sequence per rank ("contiguous"), and for an early and a late one ("zigzag").
    """

    def busiest_over_mean(zigzag: bool) -> float:
        pairs = ranks.run(computed_pairs, NUM_TOKENS, zigzag)
        return max(pairs) * len(pairs) / sum(pairs)

    return {"contiguous": busiest_over_mean(False), "zigzag": busiest_over_mean(True)}


def ulysses_sends_n_times_less(ranks: Ranks) -> Numbers:
    """Claim: Ulysses sends N times less than ring attention. Bytes of the ring's forward over those of Ulysses.

    On four ranks with eight query heads: with eight key and value heads ("full_heads"), and with one ("one_head"),
    which Ulysses copies to every rank.
    """

    def sent(attention: Callable[..., torch.Tensor], num_kv_heads: int) -> int:
        indices = token_indices(64, dist.get_world_size(), zigzag=True)
        query, key, value = (torch.ones(1, heads, 16, 4) for heads in (8, num_kv_heads, num_kv_heads))
        with record_comms() as recorder:
            attention(query, key, value, indices)
        return recorder.log.sent_bytes()

    def ring_over_ulysses(num_kv_heads: int) -> float:
        return ranks.run(sent, ring_attention, num_kv_heads)[0] / ranks.run(sent, ulysses_attention, num_kv_heads)[0]

    return {"full_heads": ring_over_ulysses(8), "one_head": ring_over_ulysses(1)}
