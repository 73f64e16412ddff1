"""Whoever loops over all ranks, itself among them."""

import torch
import torch.distributed as dist

TASK = "01.all_to_all"
HINT = "sends_to_itself"


def all_to_all(tensors):
    result = [torch.empty_like(tensor) for tensor in tensors]
    works = [dist.isend(tensor, peer) for peer, tensor in enumerate(tensors)]
    works += [dist.irecv(tensor, peer) for peer, tensor in enumerate(result)]
    for work in works:
        work.wait()
    return result
