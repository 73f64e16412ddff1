"""Whoever rounds the exponent up."""

import math

import torch

TASK = "04.scale"
HINT = "rounded_up"


def choose_scale(gradients):
    largest = max(gradient.abs().max().item() for gradient in gradients)
    return 2.0 ** math.ceil(math.log2(torch.finfo(torch.float16).max / largest))
