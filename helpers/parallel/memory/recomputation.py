"""Provides recomputation (activation checkpointing) on one screen, as an `autograd.Function` in plain torch.

    output = recompute(block, x)            # instead of block(x)
    output = recompute(block, x, positions) # tensors only, of which at least one requires a gradient

Forward runs the function without a graph and stores only its inputs: for a block of a transformer one tensor
(B, T, h) in place of the 16 or so that backward reads. Backward runs the function again, with a graph, and goes back
through this second run. It costs one more forward pass and nothing is sent between ranks.

What is left out here is in shared/recompute.py: nested arguments, several outputs, autocast, and the random states of
GPUs. Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recompute(torch.autograd.Function):
    """Runs `function(*inputs)`, stores only the inputs, and runs it again when backward arrives."""

    @staticmethod
    def forward(ctx, function: Callable, *inputs: Tensor) -> Tensor:
        ctx.function, ctx.rng_state = function, torch.get_rng_state()  # before the first run draws dropout masks
        ctx.save_for_backward(*inputs)  # the only activations that live until backward
        return function(*inputs)  # autograd records nothing inside this method

    @staticmethod
    def backward(ctx, gradient: Tensor):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]  # a graph of its own
        with torch.random.fork_rng(devices=[]), torch.enable_grad():  # afterwards the generator is where it was
            torch.set_rng_state(ctx.rng_state)  # the second run draws the same dropout masks
            output = ctx.function(*inputs)
        torch.autograd.backward(output, gradient)  # also adds to .grad of the parameters inside the function
        return None, *(x.grad for x in inputs)


def recompute(function: Callable, *inputs: Tensor) -> Tensor:
    """Return `function(*inputs)`, a tensor, and keep only `inputs` until backward."""
    return Recompute.apply(function, *inputs)
