"""A closure for each parameter, and shards that are there from the beginning."""

import torch.distributed as dist

TASK = "08.stage2"


def scatter_gradients(parameters):
    n = dist.get_world_size()
    lengths = [-(-parameter.numel() // n) for parameter in parameters]
    shards = [p.new_zeros(length, requires_grad=False) for p, length in zip(parameters, lengths, strict=True)]

    def hook_for(i):
        def hook(parameter):
            line = parameter.grad.new_zeros(n * lengths[i])
            line[: parameter.numel()] = parameter.grad.view(-1)
            parameter.grad = None
            own = line.new_empty(lengths[i])
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
