"""Whoever fills fp16 to the brim."""

import torch

TASK = "04.scale"
HINT = "not_a_power"


def choose_scale(gradients):
    return torch.finfo(torch.float16).max / max(gradient.abs().max().item() for gradient in gradients)
