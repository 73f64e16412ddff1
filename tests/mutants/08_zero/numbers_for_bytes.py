"""Whoever counts numbers where bytes are asked."""

TASK = "08.cost"
HINT = "numbers_for_bytes"


def cost(num_parameters, world_size, stage, num_microbatches):
    n, m = world_size, num_microbatches
    weights = 2 / n if stage == 3 else 2
    gradients = 2 / n if stage >= 2 else 2
    optimizer = 12 / n if stage >= 1 else 12
    held = num_parameters * (weights + gradients + optimizer)
    messages = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[stage]
    return held, messages * num_parameters * (n - 1) / n
