"""Whoever returns from within the loop."""

import torch

TASK = "04.scale"
HINT = "first_gradient_only"


def choose_scale(gradients):
    for gradient in gradients:
        scale = 2.0**60
        while torch.isinf((gradient * scale).half()).any():
            scale /= 2
        return scale
