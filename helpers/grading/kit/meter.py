"""The bytes that a run holds, now and at the most, and the largest tensor that it makes: what the last checks watch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
