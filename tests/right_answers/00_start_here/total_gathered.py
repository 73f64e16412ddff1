import torch.distributed as dist

TASK = "00.total"


def total_of(examples):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(examples))
    return sum(counts)
