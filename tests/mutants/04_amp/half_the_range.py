"""Whoever stops when the next but one would overflow."""

import torch

TASK = "04.scale"
HINT = "half_the_range"


def choose_scale(gradients):
    scale = 2.0**-40
    while not any(torch.isinf((gradient * scale * 4).half()).any() for gradient in gradients):
        scale *= 2
    return scale
