"""Whoever wants no gradient to vanish, and looks at the smallest one."""

import math

TASK = "04.scale"
HINT = "smallest_lifted"


def choose_scale(gradients):
    smallest = min(gradient[gradient != 0].abs().min().item() for gradient in gradients)
    return 2.0 ** math.ceil(math.log2(2**-24 / smallest))
