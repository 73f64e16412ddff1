"""Follow every storage from its birth to its death, by weak reference: which operation made it, where, how large it is.

A dispatch mode sees the result of each operation of this thread, and of the threads that backward uses for it. Views
share a storage, which counts once. What an operation allocates and frees inside its kernel is not seen, nor what C++
makes without an operation (buckets of torch's DDP that were built before).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from helpers.observe.memory_places import LOSS, Place

STEP_COUNTERS = "step counters"  # a kind of their own, which no breakdown shows
OTHERS = " and others"
_PLAIN = (Tensor, nn.Parameter)
_MAKERS = {"lift_fresh", "lift", "set_", "resize_", "resize_as_"}  # return what they got, yet something is new


class Storage(weakref.ref):
    """A weak reference to a storage that says what it is. kind: "" until somebody says it; kept: see `settle`.

    made_by: an operation or a text. module: whose forward or backward made it, or to whose parameter it belongs.
    """

    __slots__ = ("key", "num_bytes", "shape", "dtype", "made_by", "module", "kind", "kept", "name")


class Event(NamedTuple):
    """From `seconds` on (time.perf_counter) `change` bytes more. place: None where something is freed."""

    seconds: float
    storage: Storage
    change: int
    place: Place | None


class Storages(TorchDispatchMode):
    """Inside the `with`, `events` grows: births, deaths and resizes of the storages on `device`, in their order.

    place: a callable that says where this thread is now.
    """

    def __init__(self, device: torch.device, place: Callable[[], Place]) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.running = True
        self._device, self._place = device, place
        self._known: dict[int, Storage] = {}  # by the id of the storage, while it lives
        self._unsettled: list[Storage] = []
        self._makes: dict[int, bool] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below, which takes longer than the method itself

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if types and any(is_distributed(kind) for kind in types):
            return NotImplemented  # it works on local tensors next, and those are seen
        result = function(*args, **(kwargs or {}))
        makes = self._makes.get(id(function))  # operations live for ever, and their own hash is slow
        if makes is None:
            makes = self._makes[id(function)] = makes_storage(function)
        if makes:
            if isinstance(result, Tensor):
                self.see(result, function)
            elif isinstance(result, (list, tuple)):
                for item in result:
                    if isinstance(item, Tensor):
                        self.see(item, function)
        return result

    def see(self, tensor: Tensor, made_by: object) -> None:
        """Follow what is new in a tensor, and notice what changed its size."""
        for storage in storages_of(tensor):
            known = self._known.get(id(storage))
            if known is None:
                self._born(storage, tensor, made_by)
            elif storage.nbytes() != known.num_bytes:
                self._resized(known, storage.nbytes())

    def label(self, tensor: Tensor, kind: str, name: str, module: str) -> None:
        """Say what a tensor is, for the whole life of its storage. The first word counts; a bucket has several."""
        for storage in storages_of(tensor):
            known = self._known.get(id(storage)) or self._born(storage, tensor, name)
            if known is not None and not known.kind:
                known.kind, known.name, known.module = kind, name, module
            elif known is not None and known.kind == kind == "gradients" and not known.name.startswith(name):
                known.name = known.name.removesuffix(OTHERS) + OTHERS

    def keep(self, tensors: Iterable[Tensor], module: str) -> None:
        """Say that these are held for backward: the inputs of a model."""
        for tensor in tensors:
            for storage in storages_of(tensor):
                known = self._known.get(id(storage)) or self._born(storage, tensor, "input")
                if known is not None and not known.kept:
                    known.kept, known.module, known.name = True, module, "input"

    def settle(self) -> None:
        """A forward pass or a recomputation has ended: what it made and is still there, was made to be kept."""
        for storage in self._unsettled:
            storage.kept = storage.kept or storage() is not None
        self._unsettled.clear()

    def __exit__(self, *error) -> None:
        self.running = False
        self._known.clear()
        super().__exit__(*error)

    def _born(self, storage: torch.UntypedStorage, tensor: Tensor, made_by: object) -> Storage | None:
        if tensor.device != self._device:  # a storage of a practice card is memory of the CPU
            return None
        born = Storage(storage, self._died)
        born.key, born.num_bytes, born.made_by = id(storage), storage.nbytes(), made_by
        born.shape, born.dtype = tensor.shape, tensor.dtype
        born.kind, born.kept, born.name, place = "", False, "", self._place()
        born.module = place.module
        self._known[born.key] = born
        self.events.append(Event(time.perf_counter(), born, born.num_bytes, place))
        if place.phase in ("backward", "step"):
            if self._unsettled:
                self.settle()
        elif place.phase != "other" and not _starts_backward(made_by, place):
            self._unsettled.append(born)
        return born

    def _died(self, storage: Storage) -> None:
        """Called in any thread at any moment, so it only appends and forgets: both are one step of the interpreter."""
        if self.running:
            self.events.append(Event(time.perf_counter(), storage, -storage.num_bytes, None))
            self._known.pop(storage.key, None)

    def _resized(self, known: Storage, num_bytes: int) -> None:
        change, known.num_bytes = num_bytes - known.num_bytes, num_bytes
        self.events.append(Event(time.perf_counter(), known, change, self._place()))

    @contextmanager
    def watch_resizes(self) -> Iterator[None]:
        """`storage.resize_(0)`, with which FSDP frees, is no operation: only a wrapper around it notices."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            result = original(storage, size)
            if (known := self._known.get(id(storage))) is not None and known.num_bytes != storage.nbytes():
                self._resized(known, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original


def storages_of(tensor: Tensor) -> tuple[torch.UntypedStorage, ...]:
    """One of a plain tensor; those of the parts of a DTensor or a sparse one; none where a layout has no storage."""
    if type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor):
        parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return tuple(storage for part in parts if isinstance(part, Tensor) for storage in storages_of(part))
    if tensor.layout is not torch.strided:
        parts = (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
        return tuple(part.untyped_storage() for part in parts)
    return (tensor.untyped_storage(),)


def makes_storage(function: object) -> bool:
    """Whether a result can be new, or of a new size: no view, and nothing that only changes its input's values."""
    name, _, overload = function.name().partition("::")[2].partition(".")
    if name in _MAKERS or overload.endswith("out"):
        return True
    return any(result.alias_info is None for result in function._schema.returns)


def is_distributed(kind: type) -> bool:
    """Whether this is the type of a DTensor, found without importing it."""
    return any(base.__module__.startswith("torch.distributed.tensor") for base in kind.__mro__)


def _starts_backward(made_by: object, place: Place) -> bool:
    """The gradient 1 of the loss, which `backward()` makes before it starts."""
    return place.module is LOSS and made_by is torch.ops.aten.ones_like.default
