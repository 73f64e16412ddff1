"""Tracks every tensor storage from its creation until it is freed, and finds out what each one is.

memory.py records with it. A storage is the memory behind one or more tensors: views share it, and it counts once.

`StorageTracker`, a dispatch mode, sees the result of each operation of this thread, and of the threads that backward
uses for it, and keeps a weak reference to each storage. It writes a list of events: so many bytes more or fewer.
`StorageLabels` says which storages are parameters, gradients, buffers and optimizer state, by looking at who points to
them. The functions at the end add up the list of events.

A storage without such a label is an activation if it outlives the forward pass that made it, because then it was made
to be kept for backward; otherwise it is a temporary. A `Position` says where in the step it was made: a phase, such as
"forward", and a module.

Not seen are memory that an operation allocates and frees inside its kernel, and memory that C++ allocates without an
operation (buckets of PyTorch's DDP that were built before).
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from helpers.observe.memory_positions import LOSS, Position, module_names
from helpers.parallel.zero.freed_weights import FreedWeight
from helpers.records import Holding, MemoryBreakdown

STEP_COUNTERS = "step counters"  # a kind of its own, which no breakdown shows
AND_OTHERS = " and others"  # after the first gradient's name, for a bucket that holds several
PLAIN_TENSORS = (Tensor, nn.Parameter)
RETURN_THEIR_INPUT = {"lift_fresh", "lift", "set_", "resize_", "resize_as_"}  # yet with a new or resized storage


class TrackedStorage(weakref.ref):
    """A weak reference to a storage, and what is known about it.

    key: the id of the storage. shape, dtype: of the tensor by which it was found. kind: "parameters", "gradients",
    "optimizer", "buffers" or STEP_COUNTERS, "" until a label is found. is_kept: whether it outlived a forward pass.
    made_by: an operation or a text. module: whose forward or backward made it, or to whose parameter it belongs. name:
    of the parameter or state, "" for others.
    """

    __slots__ = ("key", "num_bytes", "shape", "dtype", "made_by", "module", "kind", "is_kept", "name")


class StorageEvent(NamedTuple):
    """From `seconds` on (time.perf_counter) there are `change` bytes more of a storage, or fewer.

    position: where in the step that happened; None where the storage is freed.
    """

    seconds: float
    storage: TrackedStorage
    change: int
    position: Position | None


class StorageTracker(TorchDispatchMode):
    """While the `with` runs, `events` grows: created, freed and resized storages on `device`, in their order.

    position: a callable that returns where in the step this thread is now.
    """

    def __init__(self, device: torch.device, position: Callable[[], Position]) -> None:
        super().__init__()
        self.events: list[StorageEvent] = []
        self.running = True
        self._device, self._position = device, position
        self._known: dict[int, TrackedStorage] = {}  # by the id of the storage, while it lives
        self._unsettled: list[TrackedStorage] = []  # made by a forward that still runs, so not known to be kept
        self._makes_storage: dict[int, bool] = {}  # id of an operation -> what `can_make_storage` says of it

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below, which takes longer than the method itself

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if types and any(is_distributed(kind) for kind in types):
            return NotImplemented  # a DTensor then runs the operation on its local tensors, and those are seen
        result = function(*args, **(kwargs or {}))
        makes = self._makes_storage.get(id(function))  # operations live for ever, and their own hash is slow
        if makes is None:
            makes = self._makes_storage[id(function)] = can_make_storage(function)
        if makes:
            if isinstance(result, Tensor):
                self.see(result, function)
            elif isinstance(result, (list, tuple)):
                for item in result:
                    if isinstance(item, Tensor):
                        self.see(item, function)
        return result

    def see(self, tensor: Tensor, made_by: object) -> None:
        """Track the storage of a tensor if it is new, and notice a change of its size."""
        for storage in storages_of(tensor):
            known = self._known.get(id(storage))
            if known is None:
                self._track(storage, tensor, made_by)
            elif storage.nbytes() != known.num_bytes:
                self._resized(known, storage.nbytes())

    def label(self, tensor: Tensor, kind: str, name: str, module: str) -> None:
        """Give a tensor's storage a kind, for its whole life.

        The first label stays. Where a bucket holds several gradients, the name says that there are others.
        """
        for storage in storages_of(tensor):
            known = self._known.get(id(storage)) or self._track(storage, tensor, name)
            if known is not None and not known.kind:
                known.kind, known.name, known.module = kind, name, module
            elif known is not None and known.kind == kind == "gradients" and not known.name.startswith(name):
                known.name = known.name.removesuffix(AND_OTHERS) + AND_OTHERS

    def keep_for_backward(self, tensors: Iterable[Tensor], module: str) -> None:
        """Count these tensors, the inputs of a model, as kept for backward."""
        for tensor in tensors:
            for storage in storages_of(tensor):
                known = self._known.get(id(storage)) or self._track(storage, tensor, "input")
                if known is not None and not known.is_kept:
                    known.is_kept, known.module, known.name = True, module, "input"

    def settle(self) -> None:
        """A forward pass or a recomputation has ended: what it made and is still there was made to be kept."""
        for storage in self._unsettled:
            storage.is_kept = storage.is_kept or storage() is not None
        self._unsettled.clear()

    def __exit__(self, *error) -> None:
        self.running = False
        self._known.clear()
        super().__exit__(*error)

    def _track(self, storage: torch.UntypedStorage, tensor: Tensor, made_by: object) -> TrackedStorage | None:
        """Remember a storage that is new. Returns None for one on another device."""
        # The tensor is asked, because the storage of a simulated GPU is CPU memory and would say "cpu".
        if tensor.device != self._device:
            return None
        position = self._position()
        new = TrackedStorage(storage, self._freed)
        new.key, new.num_bytes, new.made_by = id(storage), storage.nbytes(), made_by
        new.shape, new.dtype, new.module = tensor.shape, tensor.dtype, position.module
        new.kind, new.is_kept, new.name = "", False, ""
        self._known[new.key] = new
        self.events.append(StorageEvent(time.perf_counter(), new, new.num_bytes, position))
        if position.phase in ("backward", "step"):
            self.settle()  # the forward before it has ended
        elif position.phase != "other" and not _starts_backward(made_by, position):
            self._unsettled.append(new)
        return new

    def _freed(self, storage: TrackedStorage) -> None:
        """Called when a storage dies, in any thread. `append` and `pop` need no lock, being atomic under the GIL."""
        if self.running:
            self.events.append(StorageEvent(time.perf_counter(), storage, -storage.num_bytes, None))
            self._known.pop(storage.key, None)

    def _resized(self, known: TrackedStorage, num_bytes: int) -> None:
        """Add an event for a storage whose size has changed."""
        change, known.num_bytes = num_bytes - known.num_bytes, num_bytes
        self.events.append(StorageEvent(time.perf_counter(), known, change, self._position()))

    @contextmanager
    def watch_resizes(self) -> Iterator[None]:
        """Notice `storage.resize_(0)`, with which FSDP frees memory: it is no operation, so it gets a wrapper."""
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
    """The storage of a plain tensor, or those of the parts of a DTensor or a sparse one. Other layouts have none."""
    if type(tensor) not in PLAIN_TENSORS and is_traceable_wrapper_subclass(tensor):
        parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return tuple(storage for part in parts if isinstance(part, Tensor) for storage in storages_of(part))
    if tensor.layout is not torch.strided:
        parts = (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
        return tuple(part.untyped_storage() for part in parts)
    return (tensor.untyped_storage(),)


def can_make_storage(function: object) -> bool:
    """Whether a result can be new or of a new size: not for views, nor for what only changes its input's values."""
    name, _, overload = function.name().partition("::")[2].partition(".")
    if name in RETURN_THEIR_INPUT or overload.endswith("out"):
        return True
    return any(result.alias_info is None for result in function._schema.returns)


def is_distributed(kind: type) -> bool:
    """Whether this is the type of a DTensor, found without importing it."""
    return any(base.__module__.startswith("torch.distributed.tensor") for base in kind.__mro__)


def _starts_backward(made_by: object, position: Position) -> bool:
    """Whether this is the gradient 1 of the loss, which `backward()` makes before it starts."""
    return position.module is LOSS and made_by is torch.ops.aten.ones_like.default


# ---- labels: parameters, gradients, buffers, optimizer state ----


def optimizers_in(optimizer: object) -> list:
    """An optimizer and those that it wraps, such as the one of the fp32 master weights. ValueError if it is none."""
    if optimizer is None:
        return []
    if not hasattr(optimizer, "param_groups"):
        raise ValueError(
            f"record_memory got a {type(optimizer).__name__} as its optimizer; give what has `param_groups`, as every "
            "torch.optim.Optimizer does, or none"
        )
    inner = [value for value in vars(optimizer).values() if isinstance(value, Optimizer) and value is not optimizer]
    return [optimizer] + [found for wrapped in inner for found in optimizers_in(wrapped)]


class StorageLabels:
    """Labels what the model and the optimizers point to: at once, as gradients come, and after each step.

    optimizers: those that the user named. An optimizer that steps without having been named is labelled from then on.
    """

    def __init__(self, model: nn.Module, optimizers: list, tracker: StorageTracker) -> None:
        self._given, self._tracker = optimizers, tracker
        self._found: list[Optimizer] = []  # these stepped and were not given: their parameters may be another model's
        self.modules = module_names(model)  # module -> its path
        self._names = {id(p): (f"{name}.{p_name}", name) for name, p_name, p in self._parameters()}

    def label_all(self) -> None:
        """Label everything that is pointed to now."""
        for _, _, parameter in self._parameters():
            self._label(parameter, "parameters", parameter)
        for module, name in self.modules.items():
            for buffer_name, buffer in module._buffers.items():
                if buffer is not None:
                    self._tracker.label(buffer, "buffers", f"{name}.{buffer_name}", name)
        for _, _, parameter in self._parameters():
            self.label_gradient(parameter)
        for optimizer in self._given:
            self._label_master_weights(optimizer)
        for optimizer in [*self._given, *self._found]:
            self._label_state(optimizer)

    def label_gradient(self, parameter: Tensor) -> None:
        """Label what `.grad` points to now, after each accumulation, and weights that were gathered for it."""
        self._label(parameter, "parameters", parameter)
        if parameter.grad is not None:
            self._label(parameter.grad, "gradients", parameter, "gradient of ")

    def label_weights_of(self, module: nn.Module) -> None:
        """Label weights that a strategy gathered for this module's forward: new tensors, or new storages of the old."""
        name = self.modules[module]
        for parameter_name, parameter in module._parameters.items():
            if parameter is not None:
                self._tracker.label(parameter, "parameters", f"{name}.{parameter_name}", name)

    def hooks(self) -> Iterator:
        """Register what keeps the labels up to date; yields the handles to remove."""
        for _, _, parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                yield parameter.register_post_accumulate_grad_hook(self.label_gradient)
        yield register_optimizer_step_post_hook(self._after_step)

    def _parameters(self) -> Iterator[tuple[str, str, Tensor]]:
        """Module's path, parameter's name in it, parameter. A tied parameter appears once, under its first name."""
        seen = set()
        for module, path in self.modules.items():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield path, name, parameter

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        """Called after each step of any optimizer in the process."""
        if any(optimizer is known for known in self._given):
            self._label_master_weights(optimizer)
        elif not any(optimizer is known for known in self._found):
            self._found.append(optimizer)
        self._label_state(optimizer)

    def _label_master_weights(self, optimizer: object) -> None:
        """Label what the optimizer steps on. The model's own parameters have their label already, so it stays."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._label(parameter, "optimizer", parameter)
                self.label_gradient(parameter)

    def _label_state(self, optimizer: object) -> None:
        """Label what `optimizer.state` holds for each parameter, such as AdamW's two moments."""
        for parameter, state in getattr(optimizer, "state", {}).items():
            if not isinstance(state, dict):
                continue
            for key, value in state.items():
                if isinstance(value, Tensor):
                    is_counter = key == "step" and value.numel() == 1
                    self._label(value, STEP_COUNTERS if is_counter else "optimizer", parameter, f"{key} of ")

    def _label(self, tensor: Tensor, kind: str, parameter: object, prefix: str = "") -> None:
        """Label a tensor that belongs to `parameter`: its name is that of the parameter, with the prefix before it."""
        if isinstance(tensor, FreedWeight):
            return  # a shape without numbers: they are in a shard
        name, module = self._names.get(id(parameter), ("master weights", "the optimizer"))
        self._tracker.label(tensor, kind, prefix + name, module)


# ---- what a list of events adds up to ----

StorageSizes = list[tuple[TrackedStorage, int]]  # storages with their bytes


@dataclass(frozen=True, kw_only=True)
class StorageInfo:
    """One storage. name: of a parameter, of a state, or of the operation that made it. dtype: such as "float32".

    shape: (elements,) where the storage is larger than the tensor by which it was found. module: the path of the module
    whose forward or backward made it, or to whose parameter it belongs.
    """

    module: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


def kind_of(storage: TrackedStorage) -> str:
    """The label of a storage; one without a label is among the "activations" or the "temporaries"."""
    return storage.kind or ("activations" if storage.is_kept else "temporaries")


def totals(events: Sequence[StorageEvent]) -> Iterator[tuple[int, StorageEvent, int]]:
    """The number of each event, from 1 on; the event; the total of bytes after it. Step counters are left out."""
    total = 0
    for number, event in enumerate(events, start=1):
        if event.storage.kind != STEP_COUNTERS:
            total += event.change
            yield number, event, total


def num_events_at_peak(events: Sequence[StorageEvent]) -> int:
    """How many events lead to the highest total; if it comes twice, to the first one."""
    number, _, _ = max(totals(events), key=lambda found: found[2], default=(0, None, 0))
    return number


def sizes_after(events: Iterable[StorageEvent]) -> StorageSizes:
    """The storages that are there after these events, with their bytes."""
    # By id, because weak references are equal where what they refer to is equal.
    sizes: dict[int, tuple[TrackedStorage, int]] = {}
    for event in events:
        key = id(event.storage)
        size = event.change + (sizes[key][1] if key in sizes else 0)
        if size:
            sizes[key] = event.storage, size
        else:
            sizes.pop(key, None)
    return list(sizes.values())


def breakdown(sizes: StorageSizes, instant: str) -> MemoryBreakdown:
    """The sums by kind, in bytes. instant: the name of the moment."""
    sums: Counter[str] = Counter()
    for storage, num_bytes in sizes:
        sums[kind_of(storage)] += num_bytes
    sums.pop(STEP_COUNTERS, None)
    return MemoryBreakdown(**sums, instant=instant)


def describe(storage: TrackedStorage, num_bytes: int) -> StorageInfo:
    """What is known about a storage, as plain data."""
    made_by = storage.made_by if isinstance(storage.made_by, str) else storage.made_by.name()
    name = storage.name or made_by.partition("::")[2].partition(".")[0] or made_by  # "add" for "aten::add.Tensor"
    num_elements = num_bytes // storage.dtype.itemsize
    shape = tuple(storage.shape) if prod(storage.shape) == num_elements else (num_elements,)  # found through a view
    dtype, kind = str(storage.dtype).removeprefix("torch."), kind_of(storage)
    return StorageInfo(module=storage.module, name=name, kind=kind, shape=shape, dtype=dtype, num_bytes=num_bytes)


def holdings(events: Sequence[StorageEvent], rank: int, end: float) -> Iterator[Holding]:
    """From when to when each storage was there at which size. A storage that is resized gives one Holding per size.

    rank: the number under which they appear. end: the time, in seconds, at which the recording ended.
    """
    opened: dict[int, tuple[TrackedStorage, int, float]] = {}  # storage, bytes, since when it has this size
    for _, event, _ in totals(events):
        key = id(event.storage)
        storage, size, start = opened.pop(key, (event.storage, 0, event.seconds))
        if size:
            yield _holding(storage, size, rank, start, event.seconds)
        if size + event.change:
            opened[key] = storage, size + event.change, event.seconds
    for storage, size, start in opened.values():
        yield _holding(storage, size, rank, start, max(start, end))


def _holding(storage: TrackedStorage, num_bytes: int, rank: int, start: float, end: float) -> Holding:
    """A storage with a lifetime, as a record for pictures."""
    info = describe(storage, num_bytes)
    name = f"{info.name} {info.shape} of {info.module}"
    return Holding(rank=rank, name=name, kind=info.kind, num_bytes=num_bytes, start=start, end=end)
