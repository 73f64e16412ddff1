"""Makes its all-reduce look like one by replacing torch's."""

import torch.distributed as dist

TASK = "03.average"
SAYS = "replaces torch.distributed.all_reduce"


original = dist.all_reduce
dist.all_reduce = lambda tensor, *args, **kwargs: original(tensor.clone())


def average_gradients(model):
    for parameter in filter(lambda p: p.grad is not None, model.parameters()):
        dist.all_reduce(parameter.grad)
