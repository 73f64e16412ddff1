"""Sums and counts are gathered as a list, and added up on every rank."""

import torch
import torch.distributed as dist

TASK = "09.loss"


def token_mean(losses, counted, group):
    own = (losses * counted).sum()
    pair = torch.tensor([float(own), float(counted.sum())], dtype=torch.float64)
    pairs = [torch.empty_like(pair) for _ in range(dist.get_world_size(group))]
    dist.all_gather(pairs, pair, group=group)
    total, count = torch.stack(pairs).sum(0)
    return own / (count / len(pairs)), total / count
