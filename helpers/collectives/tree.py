"""Implements broadcast, reduce and all-reduce on a binomial tree, in log2 N rounds each.

A tree is best for small messages, whose cost is latency. In each round the number of ranks that have the data doubles:
rank 0 sends to 1, then 0 and 1 send to 2 and 3, then four ranks send to four more. Reduce is the same tree backwards.
Source: Thakur, Rabenseifner & Gropp 2005, sections 4.2 and 4.4.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.point_to_point import Peers, check_op, check_tensor, combine, finish


def distances(size: int) -> list[int]:
    """The powers of two below `size`: the distance in ranks over which each of the ceil(log2 size) rounds sends."""
    return [1 << i for i in range((size - 1).bit_length())]


@torch.no_grad()
def broadcast(tensor: Tensor, src: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Copy rank `src`'s tensor into every rank's `tensor`. src: a global rank of the group, as in torch.

    It takes ceil(log2 N) rounds, and the root sends in every one. Raises ValueError for a src outside the group.
    """
    check_tensor("tensor", tensor)
    peers = Peers.of(group)
    _broadcast(tensor, peers.group_rank("src", src), peers)


@torch.no_grad()
def reduce(tensor: Tensor, dst: int = 0, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `tensor` over the group into rank `dst`. On the other ranks, `tensor` ends with partial sums.

    dst: a global rank of the group. It takes ceil(log2 N) rounds; every rank but dst sends its tensor once.
    """
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    _reduce(tensor, peers.group_rank("dst", dst), op, peers)


@torch.no_grad()
def all_reduce_tree(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `tensor` to group rank 0, then broadcast it from there: 2 ceil(log2 N) rounds, in place."""
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    _reduce(tensor, 0, op, peers)
    _broadcast(tensor, 0, peers)


def _broadcast(tensor: Tensor, root: int, peers: Peers) -> None:
    """Send the root's tensor to all. In the round of each distance, positions below it send that far ahead."""
    position = (peers.rank - root) % peers.size  # counted from the root, which is at position 0
    for distance in distances(peers.size):
        if position < distance and position + distance < peers.size:
            peers.send(tensor, (peers.rank + distance) % peers.size)
        elif distance <= position < 2 * distance:
            peers.receive(tensor, (peers.rank - distance) % peers.size)


def _reduce(tensor: Tensor, root: int, op: str, peers: Peers) -> None:
    """Run the rounds of `_broadcast` backwards: where a rank would receive data, it sends its partial sum instead."""
    position = (peers.rank - root) % peers.size
    received = torch.empty_like(tensor)
    for distance in reversed(distances(peers.size)):
        if distance <= position < 2 * distance:
            peers.send(tensor, (peers.rank - distance) % peers.size)
        elif position < distance and position + distance < peers.size:
            peers.receive(received, (peers.rank + distance) % peers.size)
            combine(op, tensor, received, out=tensor)
    if position == 0:
        finish(op, tensor, peers.size)
