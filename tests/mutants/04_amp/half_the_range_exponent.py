"""Whoever takes fp16's largest exponent, 15, for its limit."""

import math

TASK = "04.scale"
HINT = "half_the_range"


def choose_scale(gradients):
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    return 2.0 ** math.floor(math.log2(2**15 / largest))
