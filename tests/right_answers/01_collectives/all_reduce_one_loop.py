"""One loop of 2(N-1) steps; rank r owns chunk r + 1 in the middle, as in the textbooks."""

import torch.distributed as dist

TASK = "01.all_reduce"


def all_reduce(x):
    me, world = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world)
    for step in range(2 * (world - 1)):
        into = chunks[(me - step - 1) % world]
        box = into.clone()
        ops = [dist.P2POp(dist.isend, chunks[(me - step) % world], (me + 1) % world)]
        ops.append(dist.P2POp(dist.irecv, box, (me - 1) % world))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        into.copy_(into + box if step < world - 1 else box)
