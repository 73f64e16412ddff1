"""Sort values by their power of two, and do so for everything that a training step computes.

frexp reads the power off the bits, so the counts are exact, subnormal numbers included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from helpers.records import Magnitudes

KINDS = ("weights", "activations", "gradients of activations", "gradients of weights")


@torch.no_grad()
def magnitudes(tensors: Tensor | Iterable[Tensor], name: str = "values") -> Magnitudes:
    """Count the values of floating-point tensors, of any shape and dtype (fp8 too), by power of two.

    ValueError for a tensor of integers.
    """
    powers: dict[int, int] = {}
    zeros = not_finite = 0
    for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
        values = _widened(tensor).flatten()
        finite = values[values.isfinite()]
        mine = finite[finite != 0]
        zeros, not_finite = zeros + len(finite) - len(mine), not_finite + len(values) - len(finite)
        found, counts = (torch.frexp(mine).exponent - 1).unique(return_counts=True)  # frexp's mantissa is in [0.5, 1)
        for power, count in zip(found.tolist(), counts.tolist(), strict=True):
            powers[power] = powers.get(power, 0) + count
    lowest, highest = (min(powers), max(powers)) if powers else (0, -1)
    counts = tuple(powers.get(power, 0) for power in range(lowest, highest + 1))
    return Magnitudes(name=name, lowest=lowest, counts=counts, zeros=zeros, not_finite=not_finite)


def _widened(tensor: Tensor) -> Tensor:
    """In float32 or float64, where 16-bit and 8-bit numbers are exact and frexp knows subnormals."""
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"magnitudes got a tensor of {tensor.dtype}; give floating-point tensors")
    return tensor.detach() if tensor.dtype in (torch.float32, torch.float64) else tensor.detach().float()


class MagnitudeRecorder:
    """Keeps copies of what the linear layers of a model put out, and of the gradients that come back to them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._activations: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def keep(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        """The forward hook."""
        self._activations.append(output.detach().clone())
        if output.requires_grad:
            output.register_hook(lambda gradient: self._gradients.append(gradient.detach().clone()))

    @property
    def magnitudes(self) -> dict[str, Magnitudes]:
        """By kind, in the order of KINDS; read it after backward, before `zero_grad`."""
        parameters = list(self._model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        found = (parameters, self._activations, self._gradients, gradients)
        return {kind: magnitudes(tensors, kind) for kind, tensors in zip(KINDS, found, strict=True)}


@contextmanager
def record_magnitudes(model: nn.Module) -> Iterator[MagnitudeRecorder]:
    """Inside, forward and backward of `model` are observed at every nn.Linear. Takes a copy of each: small models."""
    recorder = MagnitudeRecorder(model)
    hooks = [module.register_forward_hook(recorder.keep) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()
