"""Whoever counts 4 bytes for every number."""

TASK = "08.cost"
HINT = "all_in_fp32"


def cost(num_parameters, world_size, stage, num_microbatches):
    n, m = world_size, num_microbatches
    weights = 4 / n if stage == 3 else 4
    gradients = 4 / n if stage >= 2 else 4
    optimizer = 8 / n if stage >= 1 else 8
    held = num_parameters * (weights + gradients + optimizer)
    messages = {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[stage]
    return held, messages * 2 * num_parameters * (n - 1) / n
