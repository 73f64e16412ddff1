"""Tree algorithms: log2 N rounds instead of N - 1, but whole messages. Best when latency, not size, is the cost.

A binomial tree doubles the ranks that know in each round: 0 tells 1; 0 and 1 tell 2 and 3; four tell four more.
Reduce is the same tree run backwards. Source: Thakur, Rabenseifner & Gropp 2005, sections 4.2 and 4.4;
the barrier is Hensgen, Finkel & Manber 1988 (dissemination).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .peers import Peers, check_op, check_tensor, combine, finish


def distances(size: int) -> list[int]:
    """1, 2, 4, ... below `size`: how far each round of a tree reaches. ceil(log2 size) rounds."""
    return [1 << i for i in range((size - 1).bit_length())]


@torch.no_grad()
def broadcast(tensor: Tensor, src: int = 0, group: dist.ProcessGroup | None = None) -> None:
    """Copy rank `src`'s tensor into every rank's `tensor`. src: a global rank of the group, as in torch.

    ceil(log2 N) rounds of whole messages. The root sends in every round. ValueError for a src outside the group.
    """
    check_tensor("tensor", tensor)
    peers = Peers.of(group)
    _broadcast(tensor, peers.group_rank("src", src), peers)


@torch.no_grad()
def reduce(tensor: Tensor, dst: int = 0, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `tensor` over the group into rank `dst`. On other ranks it is left holding partial results.

    dst: a global rank of the group. ceil(log2 N) rounds; every rank but dst sends its tensor once.
    """
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    _reduce(tensor, peers.group_rank("dst", dst), op, peers)


@torch.no_grad()
def all_reduce_tree(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce to group rank 0, then broadcast from it: 2 ceil(log2 N) rounds of the whole tensor, in place."""
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    _reduce(tensor, 0, op, peers)
    _broadcast(tensor, 0, peers)


def barrier(group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> None:
    """Return when every rank of the group has arrived.

    In round k, tell the rank 2^k ahead and hear from the rank 2^k behind. After ceil(log2 N) rounds you have heard,
    at first or second hand, from all. One byte a message. device: "cuda" when the group speaks NCCL only.
    """
    peers = Peers.of(group)
    told, heard = torch.zeros(2, 1, dtype=torch.uint8, device=device)
    for distance in distances(peers.size):
        ahead, behind = (peers.rank + distance) % peers.size, (peers.rank - distance) % peers.size
        peers.exchange(send=told, to=ahead, receive=heard, source=behind)


def _broadcast(tensor: Tensor, root: int, peers: Peers) -> None:
    place = (peers.rank - root) % peers.size  # the root stands at place 0, whoever it is
    for distance in distances(peers.size):
        if place < distance and place + distance < peers.size:
            peers.send(tensor, (peers.rank + distance) % peers.size)
        elif distance <= place < 2 * distance:
            peers.receive(tensor, (peers.rank - distance) % peers.size)


def _reduce(tensor: Tensor, root: int, op: str, peers: Peers) -> None:
    place = (peers.rank - root) % peers.size
    theirs = torch.empty_like(tensor)
    for distance in reversed(distances(peers.size)):
        if distance <= place < 2 * distance:
            peers.send(tensor, (peers.rank - distance) % peers.size)
        elif place < distance and place + distance < peers.size:
            peers.receive(theirs, (peers.rank + distance) % peers.size)
            combine(op, tensor, theirs, out=tensor)
    if place == 0:
        finish(op, tensor, peers.size)
