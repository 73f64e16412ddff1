"""Whoever overwrites the scale for each gradient, so that the last one decides."""

import math

TASK = "04.scale"
HINT = "first_gradient_only"


def choose_scale(gradients):
    for gradient in gradients:
        scale = 2.0 ** math.floor(math.log2(65504 / gradient.abs().max().item()))
    return scale
