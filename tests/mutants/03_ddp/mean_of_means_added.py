"""The same, without dividing by the number of micro-batches."""

import torch.distributed as dist

TASK = "03.accumulate"
HINT = "mean_of_means"


def train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = ((model(x) - y) ** 2).sum() / len(x)
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
