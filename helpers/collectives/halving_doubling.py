"""Implements all-reduce by recursive halving and doubling (Rabenseifner): the bytes of a ring in log2 N rounds.

P is the largest power of two that is at most N. Halving: each of P ranks exchanges half of its tensor with the rank P/2
away and reduces the half that it keeps, then a quarter with the rank P/4 away, until each holds one finished chunk.
Doubling: the same rounds backwards, in which partners exchange their finished chunks. This takes 2 log2 P rounds, and
each rank sends 2(P-1)/P of its bytes. The other N - P ranks send their whole tensor to a neighbour before the first
round and receive the result after the last one. They and the chunks are numbered by "position", from 0 to P - 1.
Source: Thakur, Rabenseifner & Gropp 2005, section 4.5.
"""

from __future__ import annotations

from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.point_to_point import Peers, check_op, check_tensor, combine, finish, split


@torch.no_grad()
def all_reduce_halving_doubling(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `tensor` over the group, in place. Every rank ends with the same bits.

    tensor: contiguous, any shape. op: sum, avg, max, min or prod. Raises ValueError for a non-contiguous tensor or an
    unknown op.
    """
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    flat, received_buffer = tensor.view(-1), torch.empty_like(tensor).view(-1)
    power = 1 << (peers.size.bit_length() - 1)  # P
    extra = peers.size - power  # of the first 2 * extra ranks, the even ones only send their tensor and get the result
    is_extra = peers.rank < 2 * extra and peers.rank % 2 == 0
    if is_extra:
        peers.send(flat, peers.rank + 1)
        peers.receive(flat, peers.rank + 1)
        return
    if peers.rank < 2 * extra:
        peers.receive(received_buffer, peers.rank - 1)
        combine(op, flat, received_buffer, out=flat)
    _halve_and_double(flat, received_buffer, op, peers, power, extra)
    if peers.rank < 2 * extra:
        peers.send(flat, peers.rank - 1)


def _halve_and_double(flat: Tensor, received_buffer: Tensor, op: str, peers: Peers, power: int, extra: int) -> None:
    """Run all rounds among the P = `power` ranks. extra: N - P, the ranks that take no part."""
    position = peers.rank // 2 if peers.rank < 2 * extra else peers.rank - extra  # 0 .. power - 1
    rounds = _rounds(flat, position, power)
    for partner, keep, give in rounds:
        received = received_buffer[: keep.numel()]
        peers.exchange(send=give, to=_rank_at(partner, extra), receive=received, source=_rank_at(partner, extra))
        combine(op, keep, received, out=keep)
    own_chunk = rounds[-1][1] if rounds else flat  # what this rank kept in the last round
    finish(op, own_chunk, peers.size)  # divides by N if op is "avg"
    for partner, keep, give in reversed(rounds):  # doubling: send the finished part, receive the partner's
        peers.exchange(send=keep, to=_rank_at(partner, extra), receive=give, source=_rank_at(partner, extra))


def _rounds(flat: Tensor, position: int, power: int) -> list[tuple[int, Tensor, Tensor]]:
    """For each halving round: the partner's position, the half to keep and the half to send, as views of `flat`."""
    edges = [0, *accumulate(chunk.numel() for chunk in split(flat, power))]  # of the P chunks in `flat`
    low, high, rounds = 0, power, []  # the chunks low to high - 1 are left
    while high - low > 1:
        middle = (low + high) // 2
        partner = position ^ ((high - low) // 2)  # the position that differs in one bit: P/2 away, then P/4, ...
        lower, upper = flat[edges[low] : edges[middle]], flat[edges[middle] : edges[high]]
        keep, give = (lower, upper) if position < middle else (upper, lower)
        rounds.append((partner, keep, give))
        low, high = (low, middle) if position < middle else (middle, high)
    return rounds


def _rank_at(position: int, extra: int) -> int:
    """Return the group rank at this position. Of the first 2 * extra ranks, only the odd ones have a position."""
    return 2 * position + 1 if position < extra else position + extra
