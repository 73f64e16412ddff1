"""The same, with the division applied to the same wrong tensor."""

import torch.distributed as dist

TASK = "03.overlap"
HINT = "parameter_for_gradient"


def overlap_gradients(model):
    works = []

    def hook(gradient):
        works.append((gradient, dist.all_reduce(gradient.data, async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for parameter, work in works:
            work.wait()
            parameter.data /= dist.get_world_size()
        works.clear()

    return finish
