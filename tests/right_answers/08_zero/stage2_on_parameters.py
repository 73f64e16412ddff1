"""The shard lives on the parameter, and gloo takes the average of one padded tensor."""

import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage2"


def scatter_gradients(parameters):
    parameters = tuple(parameters)
    n = dist.get_world_size()

    def hook(parameter):
        line = F.pad(parameter.grad.reshape(-1), (0, -parameter.numel() % n))
        parameter.grad = None
        own = line.new_empty(line.numel() // n)
        dist.reduce_scatter_tensor(own, line, op=dist.ReduceOp.AVG)
        if getattr(parameter, "shard", None) is None:
            parameter.shard = own
        else:
            parameter.shard.add_(own)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        done = tuple(parameter.shard for parameter in parameters)
        for parameter in parameters:
            parameter.shard = None
        return done

    return finish
