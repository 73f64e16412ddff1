"""Whoever thinks that a loss scale only ever enlarges."""

import torch

TASK = "04.scale"
HINT = "never_below_one"


def choose_scale(gradients):
    scale = 1.0
    while all(torch.isfinite((gradient * scale * 2).half()).all() for gradient in gradients):
        scale *= 2
    return scale
