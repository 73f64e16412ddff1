"""One tensor that is gathered into, and a saved tuple in another line."""

import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage3_forward"


def stage3_forward(ctx, x, shard, shape):
    rows, columns = shape
    line = shard.new_empty(dist.get_world_size() * len(shard))
    dist.all_gather_into_tensor(line, shard)
    ctx.save_for_backward(x, shard)
    return F.linear(x, line[: rows * columns].reshape(rows, columns))
