"""Makes small real operations take the time that a model predicts, for ranks that share few CPU cores.

On two cores four ranks cannot compute at the same time, so overlap and pipeline bubbles do not show. Paced ranks sleep
instead: processes, messages and values are real, and only the durations are modelled. Label every result "emulated",
and never quote it as speed. `emulate.py`, the chapters and the benchmarks use it. A `Span` is a named piece of time on
one rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.records import Span

T = TypeVar("T")
SPIN = 0.0005  # seconds: sleep() may wake up late, so the last half millisecond is spent looking at the clock
ALWAYS_CATCH_UP = math.inf  # for `Pace.max_lateness`: every operation counts from the end of the one before it


def paced(operation: Callable[[], T], seconds: float) -> T:
    """Run `operation` and return its result `seconds` after the call. Raises ValueError if `seconds` is negative."""
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


class Pace:
    """Runs one operation after another in slow motion, and records a span for each that gets a name.

    An operation takes its modelled seconds times `slowdown`. It counts from the end of the operation before it, so that
    milliseconds which a busy machine loses do not add up. If it starts later than `max_lateness` times its own
    duration, it was waiting for a message, and counts from its real start. With max_lateness 0 every operation counts
    from its real start; with ALWAYS_CATCH_UP none does, because compute that never waits can only be late by accident.
    """

    def __init__(self, max_lateness: float = 0.0) -> None:
        self.max_lateness = max_lateness
        self.restart(slowdown=0.0)

    def restart(self, slowdown: float) -> None:
        """Forget what was recorded, and count from now.

        With a slowdown of 0 operations take no modelled time, as to warm up.
        """
        self.slowdown, self.end = slowdown, time.perf_counter()
        self.spans: list[Span] = []

    def run(self, operation: Callable[[], T], seconds: float, name: str = "", kind: str = "") -> T:
        """Run `operation` for its modelled `seconds`. With a name and a kind of Span, it is added to `spans`."""
        duration, now = seconds * self.slowdown, time.perf_counter()
        start = now if now - self.end > self.max_lateness * duration else self.end
        result = operation()
        self.end = start + duration
        wait_until(self.end)
        if name:
            where = {"rank": dist.get_rank(), "lane": "compute"}
            self.spans.append(Span(**where, name=name, kind=kind, start=start, end=self.end))
        return result


class PacedFunction(torch.autograd.Function):
    """An operation on tensors whose forward and backward are each run by a callable that paces them.

    `PacedFunction.apply(run_forward, run_backward, operation, gradients, *tensors)`. run_forward(f) and run_backward(f)
    return f(), after the modelled time. operation(*tensors): the forward. gradients(grad, *tensors) returns one
    gradient per tensor, for the gradient of the output.
    """

    @staticmethod
    def forward(ctx, run_forward, run_backward, operation, gradients, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.run, ctx.gradients = run_backward, gradients
        return run_forward(lambda: operation(*tensors))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        return None, None, None, None, *ctx.run(lambda: ctx.gradients(grad, *ctx.saved_tensors))


class PacedLinear(nn.Linear):
    """A Linear whose forward and backward take the given seconds. Forward: (B, in) to (B, out).

    Its gradients are ready when the modelled time of its backward is over, as they would be for a large layer.
    """

    def __init__(self, in_features: int, out_features: int, *, forward_seconds: float, backward_seconds: float):
        super().__init__(in_features, out_features)
        self.forward_seconds, self.backward_seconds = forward_seconds, backward_seconds

    def forward(self, x: Tensor) -> Tensor:
        runs = [partial(paced, seconds=seconds) for seconds in (self.forward_seconds, self.backward_seconds)]
        return PacedFunction.apply(*runs, F.linear, _linear_gradients, x, self.weight, self.bias)


def _linear_gradients(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias: (B, in), (out, in) and (out,)."""
    return grad @ weight, grad.T @ x, grad.sum(0)


class PacedMean(nn.Module):
    """A layer with one fp32 parameter of `num_bytes`: x, a scalar, times the mean of the parameter.

    Its forward and its backward take the given modelled seconds on the clock of `pace`.
    """

    def __init__(self, num_bytes: float, forward_seconds: float, backward_seconds: float, pace: Pace) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(max(1, round(num_bytes / 4))))
        self.runs = [partial(pace.run, seconds=seconds) for seconds in (forward_seconds, backward_seconds)]

    def forward(self, x: Tensor) -> Tensor:
        return PacedFunction.apply(*self.runs, lambda x, weight: x * weight.mean(), _mean_gradients, x, self.weight)


def _mean_gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight."""
    return grad * weight.mean(), torch.full_like(weight, (grad * x / weight.numel()).item())
