"""Implements all_to_all by pairwise exchange: every rank has a different chunk for every other rank.

There are N - 1 rounds. In round k each rank sends to the rank k ahead and receives from the rank k behind, so every
rank has exactly one partner to send to and one to receive from. Each rank sends (N-1)/N of its bytes.
Source: Thakur, Rabenseifner & Gropp 2005, section 4.3 (pairwise exchange).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.point_to_point import Peers, check_pair, check_size


@torch.no_grad()
def all_to_all(
    output: Tensor,
    input: Tensor,
    output_splits: Sequence[int] | None = None,
    input_splits: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Send chunk j of `input` to rank j and receive chunk j of `output` from rank j.

    input_splits, output_splits: how many elements go to and come from each rank. Without them all chunks are equal, so
    N must divide the size. The number that rank i sends to rank j must be the number that rank j expects from rank i.
    Raises ValueError when sizes do not fit.
    """
    check_pair(output, input)
    peers = Peers.of(group)
    outgoing = _chunks("input", input, input_splits, peers.size)
    incoming = _chunks("output", output, output_splits, peers.size)
    # the chunk that this rank sends to itself: its two sizes must agree as well
    check_size("output's own chunk", incoming[peers.rank], outgoing[peers.rank].numel(), "input's own chunk")
    incoming[peers.rank].copy_(outgoing[peers.rank])
    for distance in range(1, peers.size):
        ahead, behind = (peers.rank + distance) % peers.size, (peers.rank - distance) % peers.size
        peers.exchange(send=outgoing[ahead], to=ahead, receive=incoming[behind], source=behind)


def _chunks(name: str, tensor: Tensor, splits: Sequence[int] | None, size: int) -> Sequence[Tensor]:
    """The flat tensor as one view per rank. `name` is "input" or "output", for the error message."""
    if splits is None:
        each, left = divmod(tensor.numel(), size)
        if left:
            fix = f"pad it, or pass {name}_splits"
            raise ValueError(f"{name} has {tensor.numel()} elements, which {size} ranks do not divide; {fix}")
        splits = [each] * size
    if len(splits) != size or min(splits) < 0:
        raise ValueError(
            f"{name}_splits is {list(splits)}, but it needs one size of 0 or more for each of {size} ranks"
        )
    check_size(name, tensor, sum(splits), f"{name}_splits {list(splits)}")
    return torch.split(tensor.view(-1), list(splits))
