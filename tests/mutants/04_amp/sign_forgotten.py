"""Whoever takes max() and forgets that gradients are negative, too."""

import math

TASK = "04.scale"
HINT = "sign_forgotten"


def choose_scale(gradients):
    largest = max(gradient.max().item() for gradient in gradients)
    return 2.0 ** math.floor(math.log2(65504 / largest))
