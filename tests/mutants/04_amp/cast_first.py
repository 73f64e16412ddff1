"""Whoever casts at once: fp16 has rounded before the scale comes."""

import torch

TASK = "04.scale"
HINT = "cast_first"


def choose_scale(gradients):
    scale = 2.0**60
    while any(torch.isinf(gradient.half() * scale).any() for gradient in gradients) and scale > 2.0**-40:
        scale /= 2
    return scale
