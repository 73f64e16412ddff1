"""Both signs of the advantage by themselves."""

import torch

TASK = "wb.grpo"


def grpo_loss(logp, old_logp, rewards, mask, group, clip):
    mean = rewards.view(-1, group).mean(1).repeat_interleave(group)
    std = rewards.view(-1, group).std(1).repeat_interleave(group)
    advantage = ((rewards - mean) / (std + 1e-4)).unsqueeze(1).expand_as(logp)
    ratio = torch.exp(logp - old_logp)
    bounded = torch.where(advantage > 0, ratio.clamp(max=1 + clip), ratio.clamp(min=1 - clip))
    return -(bounded * advantage * mask / mask.sum(1, keepdim=True)).sum() / len(logp)
