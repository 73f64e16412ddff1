"""Small float64 models, plain gradient descent and a meter of memory, for tasks whose answers train or run a model.

A task's `make_inputs` draws weights with `random_weights`, its `run_submission` builds the model on each rank and
watches the bytes with `MemoryMeter`, and its `judge` computes what one process gives. `describe_if_detached` looks at
what a learner's function returned.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.grading.tensor_cases import CaseGenerator


def mlp(widths: list[int]) -> nn.Sequential:
    """A float64 model of linear layers with tanh between them, with widths[0] inputs and widths[-1] outputs."""
    layers: list[nn.Module] = []
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers[:-1])  # no tanh behind the last layer


def random_weights(rng: CaseGenerator, model: nn.Module) -> dict[str, Tensor]:
    """A random value for each parameter of `model`, by name.

    Each is divided by the root of its last dimension, for a matrix its number of inputs, so that tanh is not saturated.
    The values are float64.
    """
    return {name: rng.normal(*p.shape) / p.shape[-1] ** 0.5 for name, p in model.named_parameters()}


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    """The gradient of each parameter by its name; None where there is no gradient."""
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def detached_copies(tensors: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Copies outside autograd's graph, which no later step changes; None stays None."""
    return {name: None if tensor is None else tensor.detach().clone() for name, tensor in tensors.items()}


def scaled(tensors: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Each tensor times the factor."""
    return {name: tensor * factor for name, tensor in tensors.items()}


class GradientDescent:
    """Plain gradient descent with the methods of torch.optim.SGD that a learner calls.

    It is used on the ranks because the first optimizer of torch.optim in a process imports torch's compiler, which
    takes a second of processor time on every rank. lr: the learning rate. momentum: as torch.optim.SGD has it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.0):
        self.parameters, self.lr, self.momentum = list(parameters), lr, momentum
        self.buffers: dict[int, Tensor] = {}  # index of a parameter -> its buffer, if there is momentum

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self) -> None:
        """Subtract lr * gradient from each parameter that has a gradient; with momentum, subtract lr * buffer.

        The buffer becomes momentum * buffer + gradient before that.
        """
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                update = parameter.grad
                if self.momentum:
                    update = self.buffers[i] = self.momentum * self.buffers.get(i, 0.0) + update
                parameter -= self.lr * update


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of all tensors that operations create inside `with MemoryMeter(existing) as meter:`.

    As a TorchDispatchMode it sees the result of every operation. It counts each storage, the memory behind one or more
    tensors, once, until the storage is freed, or emptied by `resize_(0)` as FSDP does. existing: tensors that exist
    already; their bytes do not count, nor does it count when they are freed. peak_bytes: the largest sum at any time.
    largest_bytes: the bytes of the largest storage.
    """

    def __init__(self, existing: Iterable[Tensor] = ()):
        super().__init__()
        self._current_bytes, self.peak_bytes, self.largest_bytes = 0, 0, 0
        self._followed: dict[int, weakref.ref] = {}  # id of a storage -> what reports that it is freed
        self._counted: dict[int, int] = {}  # id of a followed storage -> its bytes; without those that existed already
        for tensor in existing:
            self._follow(tensor.untyped_storage(), is_new=False)

    @property
    def current_bytes(self) -> int:
        """The bytes that are in use now.

        Tensors that only a cycle of references keeps alive are freed before, since they are no mistake of the learner.
        """
        gc.collect(1)  # the two young generations, which takes less time than a full collection
        for key, reference in list(self._followed.items()):
            if (storage := reference()) is not None:
                self._count(key, storage.nbytes())  # no operation returned it after it was emptied
        return self._current_bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first operation imports torch's compiler, which takes seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage, is_new: bool = True) -> None:
        """Count the storage until it is freed. is_new: False for one that existed already, whose bytes do not count."""
        key = id(storage)
        if key not in self._followed:

            def freed(_: weakref.ref) -> None:
                self._followed.pop(key, None)
                self._current_bytes -= self._counted.pop(key, 0)

            self._followed[key] = weakref.ref(storage, freed)  # calls `freed` when the storage is gone
            if is_new:
                self._counted[key] = 0
        self._count(key, storage.nbytes())

    def _count(self, key: int, num_bytes: int) -> None:
        """Note that a followed storage now has `num_bytes` bytes."""
        if key in self._counted:
            self._current_bytes += num_bytes - self._counted[key]
            self._counted[key] = num_bytes
            self.peak_bytes = max(self.peak_bytes, self._current_bytes)
            self.largest_bytes = max(self.largest_bytes, num_bytes)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, torch uses one thread. For small models this is faster on a busy machine, where threads wait for each
    other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_if_detached(value: Any) -> str:
    """What `value` is, if backward cannot start from it: "None", "float", "Tensor(requires_grad=False)"; "" if it can.

    A judge writes it into the sentence that rejects an answer without a gradient.
    """
    if not isinstance(value, Tensor):
        return "None" if value is None else type(value).__name__
    return "" if value.requires_grad else "Tensor(requires_grad=False)"
