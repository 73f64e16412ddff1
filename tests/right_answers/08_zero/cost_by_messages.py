"""Adds up messages one by one."""

TASK = "08.cost"


def cost(num_parameters, world_size, stage, num_microbatches):
    def ring(num_bytes):
        return num_bytes - num_bytes // world_size

    n, size = world_size, 2 * num_parameters
    held = [2 * num_parameters, 2 * num_parameters, 12 * num_parameters]
    for cut in range(stage):
        held[2 - cut] //= n
    sent = 0
    for _ in range(num_microbatches):
        if stage == 3:
            sent += ring(size) + ring(size)
        if stage >= 2:
            sent += ring(size)
    if stage < 2:
        sent += ring(size)
    if stage < 3:
        sent += ring(size)
    return [sum(held), sent]
