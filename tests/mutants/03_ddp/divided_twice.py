"""Whoever finds ReduceOp.AVG and keeps the division of the first attempt."""

import torch.distributed as dist

TASK = "03.average"
HINT = "divided_twice"


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        parameter.grad /= dist.get_world_size()
