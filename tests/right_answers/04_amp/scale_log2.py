"""A formula: the exponent of the largest size."""

import math

import torch

TASK = "04.scale"


def choose_scale(gradients):
    largest = max(g.abs().max().item() for g in gradients)
    return 2 ** math.floor(math.log2(torch.finfo(torch.float16).max / largest))
