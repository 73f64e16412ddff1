import torch
import torch.distributed as dist

TASK = "00.total"


def total_of(examples):
    count = torch.tensor(len(examples))
    dist.all_reduce(count)
    return count.item()
