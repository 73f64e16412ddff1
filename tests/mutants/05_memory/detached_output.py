"""Whoever reads 'throw the activations away' and switches gradients off: the way back is gone with them."""

import torch

TASK = "05.checkpoint"
HINT = "detached_output"


def checkpoint(function, x, positions):
    with torch.no_grad():
        return function(x, positions)
