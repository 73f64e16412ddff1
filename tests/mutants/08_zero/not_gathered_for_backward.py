"""Whoever forgets that stage 3 freed its weights after forward."""

TASK = "08.cost"
HINT = "not_gathered_for_backward"


def cost(num_parameters, world_size, stage, num_microbatches):
    n, m = world_size, num_microbatches
    weights = 2 / n if stage == 3 else 2
    gradients = 2 / n if stage >= 2 else 2
    optimizer = 12 / n if stage >= 1 else 12
    held = num_parameters * (weights + gradients + optimizer)
    messages = {0: 2, 1: 2, 2: m + 1, 3: 2 * m}[stage]
    return held, messages * 2 * num_parameters * (n - 1) / n
