"""Small float64 models, plain gradient descent and a meter of memory for tasks that run a model beside the learner's code.

A task's `make_inputs` draws weights with `random_weights`, its `run_submission` builds the model and watches the bytes
with `MemoryMeter`, and its `judge` computes what one process gives.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.grading.cases import CaseGenerator


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


class MemoryMeter(TorchDispatchMode):
    """Sees every operation inside `with Meter(there) as meter:`, and follows each storage until it is freed.

    there: tensors that exist already; they do not count, nor does it when they go. largest: bytes of one storage.
    """

    def __init__(self, there: Iterable[Tensor] = ()):
        super().__init__()
        self._current_bytes, self.peak_bytes, self.largest_bytes = 0, 0, 0
        self._followed: dict[int, weakref.ref] = {}
        for tensor in there:
            self._follow(tensor.untyped_storage(), 0)

    @property
    def current_bytes(self) -> int:
        """Now. What is young and only a cycle of references keeps alive goes first."""
        gc.collect(1)
        return self._current_bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation imports torch's compiler, which takes seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self._follow(storage, storage.nbytes())
        return result

    def _follow(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        key = id(storage)
        if key in self._followed:
            return

        def freed(_: weakref.ref) -> None:
            self._followed.pop(key, None)
            self._current_bytes -= num_bytes

        self._followed[key] = weakref.ref(storage, freed)
        self._current_bytes += num_bytes
        self.peak_bytes, self.largest_bytes = (
            max(self.peak_bytes, self._current_bytes),
            max(self.largest_bytes, num_bytes),
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """For the judge's own small models: on a busy machine threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_if_detached(value: Any) -> str:
    """What `value` is, if backward cannot start from it or go through it; "" for a tensor that follows gradients."""
    if not isinstance(value, Tensor):
        return "None" if value is None else type(value).__name__
    return "" if value.requires_grad else "Tensor(requires_grad=False)"


def as_integer(value: Any) -> Any:
    """12.0 becomes 12, also in a dict: a division that leaves no rest is no mistake."""
    if isinstance(value, dict):
        return {key: as_integer(item) for key, item in value.items()}
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return int(value) if isinstance(value, float) and value.is_integer() else value
