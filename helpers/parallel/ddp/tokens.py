"""The mean over all tokens of a step, although every rank and every micro-batch holds a different number of them.

A mean of means is wrong as soon as counts differ. DDP averages gradients over N ranks, so the loss that a rank
differentiates must be N * (sum of its token losses) / (tokens of the whole step): then the average is the global mean.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def count_tokens(local_tokens: int, group: dist.ProcessGroup | None = None, device: str | torch.device = "cpu") -> int:
    """Tokens of the step on all ranks. local_tokens: this rank's, summed over its micro-batches of the step.

    Sends one 8-byte all-reduce; call it once a step, before the first micro-batch. Raises ValueError for a count
    below 0 here, or for a step without any token.
    """
    if local_tokens < 0:
        raise ValueError(f"count_tokens got {local_tokens} tokens: count the targets that are not ignored, 0 or more")
    total = torch.tensor(local_tokens, dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group)
    if total == 0:
        raise ValueError("no rank has a token in this step, so there is nothing to average: skip the step on all ranks")
    return int(total)


def token_mean(loss_sum: Tensor, global_tokens: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """The loss to call `.backward()` on: N * loss_sum / global_tokens, loss_sum added up over this micro-batch.

    Communicates nothing. The sum of this value over micro-batches, averaged over ranks, is the mean token loss.
    """
    return loss_sum * (dist.get_world_size(group) / global_tokens)
