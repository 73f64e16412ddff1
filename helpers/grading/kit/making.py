"""Pieces for a task's `make` and `act`: numbers from the check's generator, and small models in float64."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from helpers.grading.drawing import CaseGenerator


def mlp(widths: list[int]) -> nn.Sequential:
    """Linear layers with tanh between them, float64: widths[0] inputs, widths[-1] outputs."""
    layers: list[nn.Module] = []
    for width, following in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(width, following, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def random_weights(rng: CaseGenerator, model: nn.Module) -> dict[str, Tensor]:
    """A random value for each parameter of `model`, by name, scaled so that tanh is not saturated."""
    return {name: rng.normal(*p.shape) / p.shape[-1] ** 0.5 for name, p in model.named_parameters()}


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    """Each parameter's gradient by name; None where there is none."""
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def detached_copies(tensors: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Detached copies, which what follows does not change; None stays None."""
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in tensors.items()}


class GradientDescent:
    """Plain gradient descent with the methods of torch.optim.SGD that a learner calls.

    The first optimizer of torch in a process imports its compiler: a second of processor time on every rank.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self) -> None:
        """parameter -= lr * gradient, where there is a gradient."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter -= self.lr * parameter.grad
