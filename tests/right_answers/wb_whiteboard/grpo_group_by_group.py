"""One answer after the other, without its padding, as a loss from the start."""

import torch

TASK = "wb.grpo"


def grpo_loss(logp, old_logp, rewards, mask, group, clip):
    losses = []
    for i in range(len(rewards)):
        mine = rewards[i // group * group :][:group]
        advantage = (rewards[i] - mine.mean()) / (mine.std() + 1e-4)
        seen = mask[i].bool()
        ratio = (logp[i][seen] - old_logp[i][seen]).exp()
        losses.append(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean())
    return sum(losses) / len(losses)
