"""As with DDP: N * sum / tokens, then the mean over the ranks."""

import torch.distributed as dist

TASK = "03.accumulate"


def train_step(model, optimizer, micro_batches):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, sum(len(y) for _, y in micro_batches))
    for p in model.parameters():
        p.grad = None
    scale = dist.get_world_size() / sum(counts)
    sum(scale * (model(x) - y).pow(2).sum() for x, y in micro_batches).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for work in [dist.all_reduce(gradient, op=dist.ReduceOp.AVG, async_op=True) for gradient in gradients]:
        work.wait()
    optimizer.step()
