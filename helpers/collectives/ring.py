"""Provides reduce-scatter, all-gather and all-reduce on a ring, where all links carry one chunk at the same time.

N ranks, n bytes. Rank r sends to r + 1 and receives from r - 1 (mod N).
    reduce-scatter: N - 1 steps, each rank sends (N-1)/N n bytes
    all-gather:     N - 1 steps, each rank sends (N-1)/N n bytes
    all-reduce:     one after the other, 2(N-1)/N n bytes, and no algorithm can send less (ring_all_reduce.py)
A chunk is the part of the tensor that is reduced on one rank; there are N of them. Peers is this process's group, with
its rank and size in it; peers.exchange sends to one rank and receives from another at once.
Source: Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005, sections 4.1 and 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.collectives.point_to_point import (
    COMBINE,
    Peers,
    check_op,
    check_pair,
    check_size,
    check_tensor,
    combine,
    finish,
    split,
)
from helpers.collectives.ring_all_reduce import ring_all_reduce


@torch.no_grad()
def all_reduce_ring(tensor: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `tensor` over the group, in place, on every rank. Each rank sends 2(N-1)/N of its bytes.

    tensor: any shape and size, contiguous. op: sum, avg, max, min or prod. Every rank ends with the same bits, because
    each chunk is finished on one rank and then copied. Raises ValueError for a non-contiguous tensor or an unknown op.
    """
    check_tensor("tensor", tensor)
    check_op(op, tensor)
    peers = Peers.of(group)
    ring_all_reduce(tensor, COMBINE[op], group)
    finish(op, tensor, peers.size)  # divides by N if op is "avg"


@torch.no_grad()
def reduce_scatter(output: Tensor, input: Tensor, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
    """Reduce `input` over the group and leave chunk r of the result in rank r's `output`.

    input: n elements, which are not changed. output: n / N elements; when N does not divide n, the first n % N ranks
    have one more. Each rank sends (N-1)/N of the input's bytes. Raises ValueError when sizes or dtypes do not fit.
    """
    check_pair(output, input)
    check_op(op, input)
    peers = Peers.of(group)
    chunks = split(input.view(-1), peers.size)
    wanted_by = f"chunk {peers.rank} of {input.numel()} elements over {peers.size} ranks"
    check_size("output", output, chunks[peers.rank].numel(), wanted_by)
    scratch = torch.empty_like(chunks[0])  # one buffer serves all partial sums, since each is sent before the next
    sums = [scratch[: chunk.numel()] for chunk in chunks]
    sums[peers.rank] = output.view(-1)
    _reduce_scatter(chunks, sums, op, peers)


@torch.no_grad()
def all_gather(output: Tensor, input: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Put every rank's `input` into every rank's `output`, in rank order.

    output: n elements. input: n / N elements; when N does not divide n, the first n % N ranks have one more. Each rank
    sends (N-1)/N of the output's bytes. Raises ValueError when sizes or dtypes do not fit.
    """
    check_pair(output, input)
    peers = Peers.of(group)
    chunks = split(output.view(-1), peers.size)
    wanted_by = f"chunk {peers.rank} of {output.numel()} elements over {peers.size} ranks"
    check_size("input", input, chunks[peers.rank].numel(), wanted_by)
    chunks[peers.rank].copy_(input.view(-1))
    _all_gather(chunks, peers)


def _reduce_scatter(chunks: Sequence[Tensor], sums: Sequence[Tensor], op: str, peers: Peers) -> None:
    """Chunk c starts at rank c + 1, adds one rank's part at each hop and arrives complete at rank c.

    sums[c]: where this rank writes its partial sum of chunk c, since `chunks`, the input, stay as they are.
    """
    rank, size = peers.rank, peers.size
    buffer = torch.empty_like(chunks[0])  # chunk 0 is never shorter than another
    travelling = chunks[rank - 1]  # the partial sum that this rank sends next
    for step in range(size - 1):
        c = (rank - step - 2) % size
        arrived = buffer[: chunks[c].numel()]
        peers.exchange(send=travelling, to=(rank + 1) % size, receive=arrived, source=(rank - 1) % size)
        combine(op, chunks[c], arrived, out=sums[c])
        travelling = sums[c]
    if size == 1:
        sums[rank].copy_(chunks[rank])
    finish(op, sums[rank], size)  # divides by N if op is "avg"


def _all_gather(chunks: Sequence[Tensor], peers: Peers) -> None:
    """Each rank passes on the chunk that it received last. After N - 1 steps every rank has every chunk."""
    rank, size = peers.rank, peers.size
    for step in range(size - 1):
        leaving, arriving = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        peers.exchange(send=leaving, to=(rank + 1) % size, receive=arriving, source=(rank - 1) % size)
