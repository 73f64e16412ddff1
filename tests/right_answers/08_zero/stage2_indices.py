"""A closure for each parameter, and shards that are there from the beginning."""

import torch
import torch.distributed as dist

TASK = "08.stage2"


def scatter_gradients(parameters):
    n = dist.get_world_size()
    lengths = [-(-parameter.numel() // n) for parameter in parameters]
    shards = [torch.zeros(length, dtype=torch.float64) for length in lengths]

    def hook_for(i):
        def hook(parameter):
            line = torch.zeros(n * lengths[i], dtype=torch.float64)
            line[: parameter.numel()] = parameter.grad.view(-1)
            parameter.grad = None
            own = torch.empty(lengths[i], dtype=torch.float64)
            dist.reduce_scatter(own, list(line.split(lengths[i])))
            shards[i] += own / n

        return hook

    for i, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(hook_for(i))

    def finish():
        done = [shard.clone() for shard in shards]
        for shard in shards:
            shard.zero_()
        return done

    return finish
