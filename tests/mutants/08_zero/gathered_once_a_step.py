"""Whoever lets stage 3 keep its weights from micro-batch to micro-batch."""

TASK = "08.cost"
HINT = "gathered_once_a_step"


def cost(num_parameters, world_size, stage, num_microbatches):
    n, m = world_size, num_microbatches
    weights = 2 / n if stage == 3 else 2
    gradients = 2 / n if stage >= 2 else 2
    optimizer = 12 / n if stage >= 1 else 12
    held = num_parameters * (weights + gradients + optimizer)
    messages = {0: 2, 1: 2, 2: m + 1, 3: m + 2}[stage]
    return held, messages * 2 * num_parameters * (n - 1) / n
