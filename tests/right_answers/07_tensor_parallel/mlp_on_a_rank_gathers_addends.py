"""With slices in place of chunk, and a new tensor for the sum."""

import torch.distributed as dist
import torch.nn.functional as F

TASK = "07.mlp"


def mlp_on_a_rank(x, A, B):
    each = A.shape[1] // dist.get_world_size()
    own = slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)
    result = (F.gelu(x @ A[:, own]) @ B[own]).clone()
    dist.all_reduce(result, op=dist.ReduceOp.SUM)
    return result
