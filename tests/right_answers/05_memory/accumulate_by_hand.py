"""Log-softmax by hand, and gradients added up by hand."""

import torch

TASK = "05.accumulate"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    parameters, sums, total = [p for p in model.parameters() if p.requires_grad], None, 0
    for x, y in micro_batches:
        counts = y != -100
        logits = model(x)
        log_probs = logits - logits.logsumexp(-1, keepdim=True)
        picked = log_probs.gather(-1, y.clamp(min=0)[..., None])[..., 0]
        gradients = torch.autograd.grad(-(picked * counts).sum(), parameters)
        sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]
        total += counts.sum()
    for parameter, gradient in zip(parameters, sums, strict=True):
        parameter.grad = gradient / total
    optimizer.step()
