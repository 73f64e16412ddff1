"""Implements the collectives of torch.distributed from nothing but send and receive (chapter 01).

    broadcast, reduce             tree.py                ceil(log2 N) rounds of the whole tensor
    all_gather, reduce_scatter    ring.py                N - 1 steps of one chunk
    all_reduce                    ring_all_reduce.py, tree.py, halving_doubling.py: three algorithms with one result
    all_to_all                    pairwise_exchange.py   N - 1 rounds of one chunk

They work in place on the caller's memory, for any group and any number of ranks. Like those of torch.distributed, they
must be called by every rank of the group in the same order, and ranks in arguments (src, dst) are global ranks.

It exists so that a learner can read what torch.distributed keeps in C++. Begin with ring.py.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from helpers.collectives.halving_doubling import all_reduce_halving_doubling
from helpers.collectives.pairwise_exchange import all_to_all
from helpers.collectives.ring import all_gather, all_reduce_ring, reduce_scatter
from helpers.collectives.ring_all_reduce import ring_all_reduce
from helpers.collectives.tree import all_reduce_tree, broadcast, reduce

# algorithm -> the function that runs it
ALL_REDUCE = {"ring": all_reduce_ring, "tree": all_reduce_tree, "halving_doubling": all_reduce_halving_doubling}


def all_reduce(
    tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None, algorithm: str = "ring"
) -> None:
    """Reduce `tensor` over the group, in place, on every rank. algorithm: ring, tree or halving_doubling."""
    if algorithm not in ALL_REDUCE:
        raise ValueError(f"algorithm is {algorithm!r}, but it must be one of {', '.join(ALL_REDUCE)}")
    ALL_REDUCE[algorithm](tensor, op, group)


__all__ = [
    "ALL_REDUCE",
    "all_gather",
    "all_reduce",
    "all_reduce_halving_doubling",
    "all_reduce_ring",
    "all_reduce_tree",
    "all_to_all",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "ring_all_reduce",
]
