"""With logsumexp of the own part, and a one-hot row for the target."""

import torch
import torch.distributed as dist

TASK = "07.cross_entropy"


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def vocab_parallel_cross_entropy(logits, targets):
    part = logits.shape[1]
    own = torch.logsumexp(logits, dim=1)
    with torch.no_grad():
        largest = own.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    columns = torch.arange(part) + dist.get_rank() * part
    is_target = columns == targets[:, None]
    total = largest + Leave.apply((own - largest).exp()).log()
    target = Leave.apply(torch.where(is_target, logits, 0.0).sum(dim=1))
    counted = targets != -100
    return ((total - target) * counted).sum() / counted.sum()
