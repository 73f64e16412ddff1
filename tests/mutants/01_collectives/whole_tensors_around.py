"""The ring of a well-known course: whole tensors go around, (N-1) n bytes a rank."""

import torch
import torch.distributed as dist

TASK = "01.all_reduce"
HINT = "whole_tensors"


def all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    leaving = tensor.clone()
    for _ in range(n - 1):
        arriving = torch.empty_like(tensor)
        for work in [dist.isend(leaving, (rank + 1) % n), dist.irecv(arriving, (rank - 1) % n)]:
            work.wait()
        tensor += arriving
        leaving = arriving
