"""Implements all-reduce on a ring in plain PyTorch: the core of chapter 01.

The tensor is split into N chunks. Rank r sends to rank r + 1 only and receives from rank r - 1 only (mod N). Chunk c
starts on rank c + 1. In the first N - 1 steps (reduce-scatter) each rank adds its own part to the chunk that arrives,
so chunk c is complete on rank c. In the next N - 1 steps (all-gather) the complete chunks travel on and are copied.

Each rank sends 2(N-1) chunks, which are 2(N-1)/N of the tensor's bytes, and needs one chunk of extra memory.
`batch_isend_irecv` posts the send and the receive as one call. NCCL needs that, because it works through the calls of a
group in order: if every rank posted its send alone, every rank would wait for a receive that comes later.
Source: Patarasuk & Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(
    tensor: Tensor, op: Callable[..., Tensor] = torch.add, group: dist.ProcessGroup | None = None
) -> None:
    """Reduce `tensor` (contiguous, any shape) over the group, in place. op: torch.add, torch.maximum, …"""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = torch.tensor_split(tensor.view(-1), n)  # views: what is written into a chunk is written into `tensor`
    for step in range(2 * (n - 1)):
        leaving, arriving = chunks[(rank - 1 - step) % n], chunks[(rank - 2 - step) % n]
        buffer = torch.empty_like(arriving)
        send = dist.P2POp(dist.isend, leaving, group=group, group_peer=(rank + 1) % n)
        receive = dist.P2POp(dist.irecv, buffer, group=group, group_peer=(rank - 1) % n)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        if step < n - 1:
            op(arriving, buffer, out=arriving)  # reduce-scatter: add this rank's part to the partial sum
        else:
            arriving.copy_(buffer)  # all-gather: the chunk is complete, so it is only copied
