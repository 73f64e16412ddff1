"""Paced compute: the real operation on small tensors, then a wait until its modelled duration has passed.

On two cores four ranks cannot compute at once, so overlap and bubbles do not show. Paced ranks do: real processes, real
messages, real values, modelled durations. Label everything that uses this "emulated"; never quote it as speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T")
SPIN = 0.0005  # seconds: sleep() may wake up late, so the last half millisecond is spent looking at the clock


def paced(operation: Callable[[], T], seconds: float) -> T:
    """Run `operation` and return its result, `seconds` after the call. Raises ValueError if seconds is negative."""
    if seconds < 0:
        raise ValueError(f"paced(seconds={seconds}): a duration is 0 or more seconds")
    deadline = time.perf_counter() + seconds
    result = operation()
    wait_until(deadline)
    return result


def wait_until(deadline: float) -> None:
    """Return at `deadline`, in seconds of time.perf_counter()."""
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left - SPIN if left > SPIN else 0)


class _PacedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, forward_seconds: float, backward_seconds: float):
        ctx.save_for_backward(x, weight)
        ctx.seconds = backward_seconds
        return paced(lambda: F.linear(x, weight, bias), forward_seconds)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors

        def gradients() -> tuple:
            return grad @ weight, grad.T @ x, grad.sum(0), None, None  # (B, in), (out, in), (out,)

        return paced(gradients, ctx.seconds)


class PacedLinear(nn.Linear):
    """A Linear whose forward and backward take the given seconds. Forward: (B, in) to (B, out).

    Its gradients are ready when the modelled time of its backward is over, as a large layer's would be.
    """

    def __init__(self, in_features: int, out_features: int, *, forward_seconds: float, backward_seconds: float):
        super().__init__(in_features, out_features)
        self.forward_seconds, self.backward_seconds = forward_seconds, backward_seconds

    def forward(self, x: Tensor) -> Tensor:
        return _PacedLinear.apply(x, self.weight, self.bias, self.forward_seconds, self.backward_seconds)
