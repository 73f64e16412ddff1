"""Adds up sums, and divides the gradients once."""

from torch.nn import functional as F

TASK = "05.accumulate"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    num_tokens = 0
    for x, y in micro_batches:
        logits = model(x)
        loss = F.cross_entropy(logits.transpose(1, 2), y, reduction="sum")
        loss.backward()
        num_tokens += int((y != -100).sum())
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(num_tokens)
    optimizer.step()
