"""Whoever divides 16 bytes by the ranks, whatever the stage."""

TASK = "08.cost"
HINT = "everything_cut"


def cost(num_parameters, world_size, stage, num_microbatches):
    n, m = world_size, num_microbatches
    held = num_parameters * 16 / n
    messages = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[stage]
    return held, messages * 2 * num_parameters * (n - 1) / n
