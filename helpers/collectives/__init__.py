"""Collectives from scratch: nothing but send and receive (chapter 01).

    broadcast, reduce, barrier          tree.py       ceil(log2 N) rounds
    all_gather, reduce_scatter          ring.py       N - 1 steps of a chunk
    all_reduce                          ring.py, tree.py, halving.py: three algorithms, one result
    all_to_all                          exchange.py   N - 1 rounds of a chunk

They work in place on the caller's memory, on any group and any number of ranks, and are called by every rank of the
group in the same order, like those of torch.distributed. Ranks in arguments (src, dst) are global, as there.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from .exchange import all_to_all
from .halving import all_reduce_halving_doubling
from .ring import all_gather, all_reduce_ring, reduce_scatter
from .tree import all_reduce_tree, barrier, broadcast, reduce

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
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
]
