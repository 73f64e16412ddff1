"""Recursive halving-doubling: the ring's bytes in the tree's number of rounds (Rabenseifner's all-reduce).

P = the largest power of two up to N. Halving: talk to the rank P/2 away and keep half of the tensor, then P/4 away and
keep a quarter, until each of P ranks holds one finished chunk. Doubling: replay the rounds backwards, handing out
what is finished. 2 log2 P rounds, 2(P-1)/P of the bytes.
The N - P ranks left over hand their whole tensor to a neighbour first and get the result last.
Source: Thakur, Rabenseifner & Gropp 2005, section 4.5.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .peers import Peers, check_op, check_tensor, combine, finish, split


@torch.no_grad()
def all_reduce_halving_doubling(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `tensor` over the group, in place, on every rank. Any size, any number of ranks; same bits everywhere.

    tensor: contiguous, any shape. op: sum, avg, max, min or prod. ValueError for a view with gaps or an unknown op.
    """
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    flat, theirs = tensor.view(-1), torch.empty_like(tensor).view(-1)
    power = 1 << (peers.size.bit_length() - 1)
    extra = peers.size - power  # of the first 2 * extra ranks, the even ones sit out
    sits_out = peers.rank < 2 * extra and peers.rank % 2 == 0
    if sits_out:
        peers.send(flat, peers.rank + 1)
        peers.receive(flat, peers.rank + 1)
        return
    if peers.rank < 2 * extra:
        peers.receive(theirs, peers.rank - 1)
        combine(op, flat, theirs, out=flat)
    _halve_and_double(flat, theirs, op, peers, power, extra)
    if peers.rank < 2 * extra:
        peers.send(flat, peers.rank - 1)


def _halve_and_double(flat: Tensor, theirs: Tensor, op: str, peers: Peers, power: int, extra: int) -> None:
    place = peers.rank // 2 if peers.rank < 2 * extra else peers.rank - extra  # 0 .. power - 1
    rounds = _rounds(flat, place, power)
    for other, keep, give in rounds:
        received = theirs[: keep.numel()]
        peers.exchange(send=give, to=_rank_at(other, extra), receive=received, source=_rank_at(other, extra))
        combine(op, keep, received, out=keep)
    finish(op, rounds[-1][1] if rounds else flat, peers.size)
    for other, keep, give in reversed(rounds):
        peers.exchange(send=keep, to=_rank_at(other, extra), receive=give, source=_rank_at(other, extra))


def _rounds(flat: Tensor, place: int, power: int) -> list[tuple[int, Tensor, Tensor]]:
    """(partner, the half to keep, the half to give away) of each halving round; halves are views of `flat`."""
    ends = [0]
    for chunk in split(flat, power):
        ends.append(ends[-1] + chunk.numel())
    low, high, rounds = 0, power, []
    while high - low > 1:
        middle, other = (low + high) // 2, place ^ ((high - low) // 2)
        lower, upper = flat[ends[low] : ends[middle]], flat[ends[middle] : ends[high]]
        keep, give = (lower, upper) if place < middle else (upper, lower)
        rounds.append((other, keep, give))
        low, high = (low, middle) if place < middle else (middle, high)
    return rounds


def _rank_at(place: int, extra: int) -> int:
    """The group rank that stands at `place` among the ranks that take part."""
    return 2 * place + 1 if place < extra else place + extra
