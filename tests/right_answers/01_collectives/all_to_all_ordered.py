"""Blocking calls: of two ranks, the lower one sends first. Nobody can wait in a circle."""

import torch.distributed as dist

TASK = "01.all_to_all"


def all_to_all(tensors):
    rank, result = dist.get_rank(), []
    for peer, tensor in enumerate(tensors):
        box = tensor.clone()
        if rank < peer:
            dist.send(tensor, peer)
            dist.recv(box, peer)
        elif peer < rank:
            dist.recv(box, peer)
            dist.send(tensor, peer)
        result.append(box)
    return result
