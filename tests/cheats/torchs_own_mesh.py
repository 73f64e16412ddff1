"""Takes torch's own DeviceMesh for the groups, and its pieces for the sums."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

TASK = "09.sync"
SAYS = "torch.distributed.device_mesh"


def sync_gradients(parameters, placements, groups):
    sizes = [dist.get_world_size(groups[axis]) for axis in ("pp", "dp", "tp")]
    mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=("pp", "dp", "tp"))
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
