"""Whoever remembers fp16's limit as 2**16."""

import math

TASK = "04.scale"
HINT = "limit_too_high"


def choose_scale(gradients):
    largest = max(gradient.abs().max().item() for gradient in gradients)
    return 2.0 ** math.floor(math.log2(2**16 / largest))
