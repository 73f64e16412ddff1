"""Three messages of one number per token, and the right logit shifted by the maximum before the sum."""

import torch
import torch.distributed as dist

TASK = "07.token_loss"


def loss_of_tokens(logits, right_logit):
    top = torch.amax(logits, 1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    total = torch.exp(logits - top.unsqueeze(1)).sum(1)
    dist.all_reduce(total)
    target = right_logit.clone()
    dist.all_reduce(target)
    return torch.log(total) - (target - top)
