"""Counts tensor values by their power of two, also for the linear layers' tensors in a training step.

`magnitudes` counts the values of tensors, and `record_magnitudes` those of a step of a model. A `Magnitudes` has the
lowest power, the counts from there on, and how many values are zero or not finite. The counts are exact, subnormal
numbers included, because frexp reads the exponent off the bits. Chapter 04 and tools/record_magnitudes.py use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from helpers.records import Magnitudes

KINDS = ("weights", "activations", "gradients of activations", "gradients of weights")


@torch.no_grad()
def magnitudes(tensors: Tensor | Iterable[Tensor], name: str = "values") -> Magnitudes:
    """Count the values of floating-point tensors, of any shape and dtype (fp8 too), by power of two.

    Raises ValueError for a tensor of integers.
    """
    powers: Counter[int] = Counter()  # power of two -> how many values
    zeros = not_finite = 0
    for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
        values = _widened(tensor).flatten()
        finite = values[values.isfinite()]
        nonzero = finite[finite != 0]
        zeros, not_finite = zeros + len(finite) - len(nonzero), not_finite + len(values) - len(finite)
        exponents = torch.frexp(nonzero).exponent - 1  # frexp's mantissa is in [0.5, 1)
        found, counts = exponents.unique(return_counts=True)
        powers.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))  # a Counter adds them up
    lowest, highest = (min(powers), max(powers)) if powers else (0, -1)  # an empty range where all values are zero
    counts = tuple(powers[power] for power in range(lowest, highest + 1))
    return Magnitudes(name=name, lowest=lowest, counts=counts, zeros=zeros, not_finite=not_finite)


def _widened(tensor: Tensor) -> Tensor:
    """The tensor in float32 or float64, which hold 16-bit and 8-bit numbers exactly and for which frexp is defined."""
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"magnitudes got a tensor of {tensor.dtype}; give floating-point tensors")
    return tensor.detach() if tensor.dtype in (torch.float32, torch.float64) else tensor.detach().float()


class MagnitudeRecorder:
    """Copies the outputs of the linear layers of a model, and the gradients of these outputs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._activations: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def copy_output(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Copy an output, and later its gradient. This is the forward hook."""
        self._activations.append(output.detach().clone())
        if output.requires_grad:
            output.register_hook(lambda gradient: self._gradients.append(gradient.detach().clone()))

    @property
    def magnitudes(self) -> dict[str, Magnitudes]:
        """Magnitudes by kind, in the order of KINDS. Read it after backward and before `zero_grad`."""
        parameters = list(self._model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        tensors_by_kind = (parameters, self._activations, self._gradients, gradients)
        return {kind: magnitudes(tensors, kind) for kind, tensors in zip(KINDS, tensors_by_kind, strict=True)}


@contextmanager
def record_magnitudes(model: nn.Module) -> Iterator[MagnitudeRecorder]:
    """Record forward and backward of `model` at every nn.Linear. It copies each tensor, so it is for small models."""
    recorder = MagnitudeRecorder(model)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_hook(recorder.copy_output) for layer in layers]
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()
