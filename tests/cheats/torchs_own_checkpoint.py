"""Calls torch's checkpoint, which the lab leaves to the learner."""

from torch.utils.checkpoint import checkpoint as recomputed

TASK = "05.checkpoint"
SAYS = "torch.utils.checkpoint"


def checkpoint(function, x, positions):
    return recomputed(function, x, positions, use_reentrant=False)
