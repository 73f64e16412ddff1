"""Whoever thinks of one micro-batch only."""

TASK = "08.cost"
HINT = "micro_batches_forgotten"


def cost(num_parameters, world_size, stage, num_microbatches):
    n = world_size
    weights = 2 / n if stage == 3 else 2
    gradients = 2 / n if stage >= 2 else 2
    optimizer = 12 / n if stage >= 1 else 12
    held = num_parameters * (weights + gradients + optimizer)
    messages = {0: 2, 1: 2, 2: 2, 3: 3}[stage]
    return held, messages * 2 * num_parameters * (n - 1) / n
