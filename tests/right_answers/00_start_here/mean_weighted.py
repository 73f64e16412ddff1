import torch
import torch.distributed as dist

TASK = "00.mean"


def mean_of_all(losses):
    count = torch.tensor(len(losses), dtype=losses.dtype)
    dist.all_reduce(count)
    share = losses.mean() * len(losses) / count
    dist.all_reduce(share)
    return share.item()
