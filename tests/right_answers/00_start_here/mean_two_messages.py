import torch
import torch.distributed as dist

TASK = "00.mean"


def mean_of_all(losses):
    total, count = losses.sum(), torch.tensor(float(len(losses)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count
