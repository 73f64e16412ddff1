"""Whoever multiplies everything by the micro-batches."""

TASK = "08.cost"
HINT = "sent_every_micro_batch"


def cost(num_parameters, world_size, stage, num_microbatches):
    n, m = world_size, num_microbatches
    weights = 2 / n if stage == 3 else 2
    gradients = 2 / n if stage >= 2 else 2
    optimizer = 12 / n if stage >= 1 else 12
    held = num_parameters * (weights + gradients + optimizer)
    messages = {0: 2 * m, 1: 2 * m, 2: 2 * m, 3: 3 * m}[stage]
    return held, messages * 2 * num_parameters * (n - 1) / n
