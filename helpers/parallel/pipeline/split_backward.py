"""Backward in two parts, as zero bubble needs it: first the gradients of inputs (I), later those of weights (W).

    with deferred_weights() as later:
        y = layer(x)                      # linear and conv2d are taken over, nothing else
        y.backward(gradient)              # I: gradients of x; those of large weights are put off
    later.run()                           # W: the weights' gradients, added to .grad

Between I and W each layer keeps its input and the gradient of its output: that is what zero bubble pays in memory.
Biases, norms and embeddings get their gradients in I: they cost little. Qi et al. 2023, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Later:
    """Gradients of weights that are still to be computed: (weight, how) in the order in which backward met them."""

    def __init__(self) -> None:
        self.work: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def run(self) -> None:
        """Compute them all and add them to `.grad`; what was kept for them is free afterwards."""
        with torch.no_grad():
            for weight, gradient_of in self.work:
                gradient = gradient_of()
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        self.work.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes that wait with them: inputs and gradients of outputs; a tensor counts once."""
        kept = {id(t.untyped_storage()): t.untyped_storage().nbytes() for _, how in self.work for t in how.__defaults__}
        return sum(kept.values())


@contextmanager
def deferred_weights(later: Later | None = None) -> Iterator[Later]:
    """In here F.linear and F.conv2d put the gradients of their weights off, also in a backward that runs in here."""
    later = later or Later()
    with _Deferring(later):
        yield later


class _Deferring(TorchFunctionMode):
    def __init__(self, later: Later):
        super().__init__()
        self.later = later

    def __torch_function__(self, function, types, args=(), kwargs=None):
        taken_over = _TAKEN_OVER.get(function)
        if taken_over is None or not torch.is_grad_enabled():
            return function(*args, **(kwargs or {}))
        return taken_over(self.later, *args, **(kwargs or {}))


def _linear(later: Later, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = _Linear.apply(later, x, weight)
    return product if bias is None else product + bias


def _conv2d(later: Later, x: Tensor, weight: Tensor, bias: Tensor | None = None, *args, **kwargs) -> Tensor:
    output = _Conv2d.apply(later, args, kwargs, x, weight)
    return output if bias is None else output + bias[:, None, None]


class _Linear(torch.autograd.Function):
    """x (…, in) and weight (out, in) to (…, out)."""

    @staticmethod
    def forward(ctx, later: Later, x: Tensor, weight: Tensor):
        ctx.later, ctx.weight, ctx.dtype = later, weight, x.dtype  # the parameter itself: its .grad is set later
        y = F.linear(x, weight)
        ctx.save_for_backward(x.to(y.dtype))  # in 16 bits under autocast, as the product was computed
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,) = ctx.saved_tensors

        def weight_gradient(x=x, gradient=gradient) -> Tensor:
            return (gradient.flatten(0, -2).T @ x.flatten(0, -2)).to(ctx.weight.dtype)  # (out, rows) times (rows, in)

        if ctx.needs_input_grad[2]:
            ctx.later.work.append((ctx.weight, weight_gradient))
        if not ctx.needs_input_grad[1]:
            return None, None, None
        return None, (gradient @ ctx.weight.to(gradient.dtype)).to(ctx.dtype), None


class _Conv2d(torch.autograd.Function):
    """x (B, C_in, H, W) and weight (C_out, C_in, k, k) to (B, C_out, H', W')."""

    @staticmethod
    def forward(ctx, later: Later, args: tuple, kwargs: dict, x: Tensor, weight: Tensor):
        ctx.later, ctx.weight, ctx.dtype, ctx.options = later, weight, x.dtype, _options(*args, **kwargs)
        y = F.conv2d(x, weight, None, *args, **kwargs)
        ctx.save_for_backward(x.to(y.dtype))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,), shape, options = ctx.saved_tensors, ctx.weight.shape, ctx.options

        def weight_gradient(x=x, gradient=gradient) -> Tensor:
            return torch.nn.grad.conv2d_weight(x, shape, gradient, **options).to(ctx.weight.dtype)

        if ctx.needs_input_grad[4]:
            ctx.later.work.append((ctx.weight, weight_gradient))
        if not ctx.needs_input_grad[3]:
            return None, None, None, None, None
        weight = ctx.weight.to(gradient.dtype)
        return None, None, None, torch.nn.grad.conv2d_input(x.shape, weight, gradient, **options).to(ctx.dtype), None


def _options(stride=1, padding=0, dilation=1, groups=1) -> dict:
    return dict(stride=stride, padding=padding, dilation=dilation, groups=groups)


_TAKEN_OVER = {F.linear: _linear, F.conv2d: _conv2d}
