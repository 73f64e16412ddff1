"""The own sum by a mask and not by an index; two messages, one for counts and one for sums."""

import torch
import torch.distributed as dist

TASK = "09.loss"


def token_mean(losses, counted, group):
    mine = counted.sum()
    total = mine.clone()
    dist.all_reduce(total, group=group)
    own = torch.where(counted, losses, torch.zeros_like(losses)).sum()
    shown = own.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.SUM, group=group)
    copies = len(dist.get_process_group_ranks(group))
    return copies / total.item() * own, shown.item() / total.item()
