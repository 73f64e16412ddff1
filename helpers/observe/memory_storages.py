"""Follow every storage from its birth to its death, by weak reference: which operation made it, where, how large it is.

A dispatch mode sees the result of each operation of this thread, and of the threads that backward uses for it. Views
share a storage, which counts once. What an operation allocates and frees inside its kernel is not seen, nor what C++
makes without an operation (buckets of torch's DDP that were built before).

Say which storages are parameters, gradients, buffers and optimizer state, by looking at who points to them.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from helpers.observe.memory_positions import LOSS, Position, module_names
from helpers.parallel.shared.freed import FreedWeight

STEP_COUNTERS = "step counters"  # a kind of their own, which no breakdown shows
OTHERS = " and others"
_PLAIN = (Tensor, nn.Parameter)
_MAKERS = {"lift_fresh", "lift", "set_", "resize_", "resize_as_"}  # return what they got, yet something is new


class TrackedStorage(weakref.ref):
    """A weak reference to a storage that says what it is. kind: "" until somebody says it; kept: see `settle`.

    made_by: an operation or a text. module: whose forward or backward made it, or to whose parameter it belongs.
    """

    __slots__ = ("key", "num_bytes", "shape", "dtype", "made_by", "module", "kind", "kept", "name")


class StorageEvent(NamedTuple):
    """From `seconds` on (time.perf_counter) `change` bytes more. place: None where something is freed."""

    seconds: float
    storage: TrackedStorage
    change: int
    place: Position | None


class StorageTracker(TorchDispatchMode):
    """Inside the `with`, `events` grows: births, deaths and resizes of the storages on `device`, in their order.

    place: a callable that says where this thread is now.
    """

    def __init__(self, device: torch.device, place: Callable[[], Position]) -> None:
        super().__init__()
        self.events: list[StorageEvent] = []
        self.running = True
        self._device, self._place = device, place
        self._known: dict[int, TrackedStorage] = {}  # by the id of the storage, while it lives
        self._unsettled: list[TrackedStorage] = []
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

    def _born(self, storage: torch.UntypedStorage, tensor: Tensor, made_by: object) -> TrackedStorage | None:
        if tensor.device != self._device:  # a storage of a practice card is memory of the CPU
            return None
        born = TrackedStorage(storage, self._died)
        born.key, born.num_bytes, born.made_by = id(storage), storage.nbytes(), made_by
        born.shape, born.dtype = tensor.shape, tensor.dtype
        born.kind, born.kept, born.name, place = "", False, "", self._place()
        born.module = place.module
        self._known[born.key] = born
        self.events.append(StorageEvent(time.perf_counter(), born, born.num_bytes, place))
        if place.phase in ("backward", "step"):
            if self._unsettled:
                self.settle()
        elif place.phase != "other" and not _starts_backward(made_by, place):
            self._unsettled.append(born)
        return born

    def _died(self, storage: TrackedStorage) -> None:
        """Called in any thread at any moment, so it only appends and forgets: both are one step of the interpreter."""
        if self.running:
            self.events.append(StorageEvent(time.perf_counter(), storage, -storage.num_bytes, None))
            self._known.pop(storage.key, None)

    def _resized(self, known: TrackedStorage, num_bytes: int) -> None:
        change, known.num_bytes = num_bytes - known.num_bytes, num_bytes
        self.events.append(StorageEvent(time.perf_counter(), known, change, self._place()))

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


def _starts_backward(made_by: object, place: Position) -> bool:
    """The gradient 1 of the loss, which `backward()` makes before it starts."""
    return place.module is LOSS and made_by is torch.ops.aten.ones_like.default


def optimizers_in(optimizer: object) -> list:
    """An optimizer and those that it wraps, such as the one on the fp32 masters. ValueError if it is none."""
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
    """Labels what the model and the optimizers point to: at once, as gradients come, and after each step."""

    def __init__(self, model: nn.Module, optimizers: list, storages: StorageTracker) -> None:
        self._given, self._storages = optimizers, storages
        self._found: list[Optimizer] = []  # these stepped and were not given: their parameters may be another model's
        self.modules = module_names(model)
        self._names = {id(p): (f"{name}.{p_name}", name) for name, p_name, p in self._parameters()}

    def label_all(self) -> None:
        """Everything that is pointed to now."""
        for _, _, parameter in self._parameters():
            self._label(parameter, "parameters", parameter)
        for module, name in self.modules.items():
            for own, buffer in module._buffers.items():
                if buffer is not None:
                    self._storages.label(buffer, "buffers", f"{name}.{own}", name)
        for _, _, parameter in self._parameters():
            self.label_gradient(parameter)
        for optimizer in self._given:
            self._label_masters(optimizer)
        for optimizer in [*self._given, *self._found]:
            self._label_state(optimizer)

    def label_gradient(self, parameter: Tensor) -> None:
        """What `.grad` points to now; a hook after each accumulation. Weights may have been gathered for it."""
        self._label(parameter, "parameters", parameter)
        if parameter.grad is not None:
            self._label(parameter.grad, "gradients", parameter, "gradient of ")

    def label_weights_of(self, module: nn.Module) -> None:
        """Weights that a strategy gathered for this module's forward: other tensors than before, or other storages."""
        name = self.modules[module]
        for own, parameter in module._parameters.items():
            if parameter is not None:
                self._storages.label(parameter, "parameters", f"{name}.{own}", name)

    def hooks(self) -> Iterator:
        """Register what keeps the labels up to date; yields the handles to remove."""
        for _, _, parameter in self._parameters():
            if parameter.requires_grad and parameter.is_leaf:
                yield parameter.register_post_accumulate_grad_hook(self.label_gradient)
        yield register_optimizer_step_post_hook(self._stepped)

    def _parameters(self) -> Iterator[tuple[str, str, Tensor]]:
        """Module's path, own name, parameter: a tied one under its first name."""
        seen = set()
        for module, name in self.modules.items():
            for own, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name, own, parameter

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        if any(optimizer is known for known in self._given):
            self._label_masters(optimizer)
        elif not any(optimizer is known for known in self._found):
            self._found.append(optimizer)
        self._label_state(optimizer)

    def _label_masters(self, optimizer: object) -> None:
        """What it steps on and is not the model's own: that has its label already."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._label(parameter, "optimizer", parameter)
                self.label_gradient(parameter)

    def _label_state(self, optimizer: object) -> None:
        for parameter, state in getattr(optimizer, "state", {}).items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    is_counter = key == "step" and value.numel() == 1
                    self._label(value, STEP_COUNTERS if is_counter else "optimizer", parameter, f"{key} of ")

    def _label(self, tensor: Tensor, kind: str, parameter: object, what: str = "") -> None:
        if isinstance(tensor, FreedWeight):
            return  # a shape without numbers: they are in a shard
        name, module = self._names.get(id(parameter), ("master weights", "the optimizer"))
        self._storages.label(tensor, kind, what + name, module)


# ---- what a list of events adds up to ----

StorageSizes = list[tuple[TrackedStorage, int]]


@dataclass(frozen=True, kw_only=True)
class StorageInfo:
    """One storage that is held. name: of a parameter, of a state, or of the operation that made it. dtype: "float32".
    shape: (elements,) where it is larger than the tensor by which it was found.

    module: the path of the one whose forward or backward made it, or to whose parameter it belongs.
    """

    module: str
    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


def kind_of(storage: TrackedStorage) -> str:
    """One of MEMORY_KINDS, or STEP_COUNTERS."""
    return storage.kind or ("activations" if storage.kept else "temporaries")


def totals(events: Sequence[StorageEvent]) -> Iterator[tuple[StorageEvent, int]]:
    """Each event with the bytes that are held after it, step counters left out."""
    total = 0
    for event in events:
        if event.storage.kind != STEP_COUNTERS:
            total += event.change
            yield event, total


def num_events_at_peak(events: Sequence[StorageEvent]) -> int:
    """How many events lead to the highest total; the first time counts."""
    highest, total, found = -1, 0, 0
    for number, event in enumerate(events, start=1):
        if event.storage.kind != STEP_COUNTERS:
            total += event.change
            if total > highest:
                highest, found = total, number
    return found


def held_after(events: Iterable[StorageEvent]) -> StorageSizes:
    """The storages that are there after these events, with their bytes."""
    sizes: dict[int, tuple[TrackedStorage, int]] = {}  # by identity: weak references compare what they refer to
    for event in events:
        key = id(event.storage)
        size = event.change + (sizes[key][1] if key in sizes else 0)
        if size:
            sizes[key] = event.storage, size
        else:
            sizes.pop(key, None)
    return list(sizes.values())


def breakdown(held: StorageSizes, instant: str) -> MemoryBreakdown:
    """The sums by kind."""
    sums: Counter[str] = Counter()
    for storage, num_bytes in held:
        sums[kind_of(storage)] += num_bytes
    sums.pop(STEP_COUNTERS, None)
    return MemoryBreakdown(**sums, instant=instant)


def describe(storage: TrackedStorage, num_bytes: int) -> StorageInfo:
    """A storage in words and numbers."""
    made_by = storage.made_by if isinstance(storage.made_by, str) else storage.made_by.name()
    name = storage.name or made_by.partition("::")[2].partition(".")[0] or made_by
    num_elements = num_bytes // storage.dtype.itemsize
    shape = tuple(storage.shape) if prod(storage.shape) == num_elements else (num_elements,)  # it was first a view
    dtype = str(storage.dtype).removeprefix("torch.")
    return StorageInfo(
        module=storage.module, name=name, kind=kind_of(storage), shape=shape, dtype=dtype, num_bytes=num_bytes
    )


def holdings(events: Sequence[StorageEvent], rank: int, end: float) -> Iterator[Holding]:
    """From when to when each storage was there at which size; `end` (seconds) is where the recording ended."""
    opened: dict[int, tuple[TrackedStorage, int, float]] = {}
    for event, _ in totals(events):
        key = id(event.storage)
        storage, size, start = opened.pop(key, (event.storage, 0, event.seconds))
        if size:
            yield _holding(storage, size, rank, start, event.seconds)
        if size + event.change:
            opened[key] = storage, size + event.change, event.seconds
    for storage, size, start in opened.values():
        yield _holding(storage, size, rank, start, max(start, end))


def _holding(storage: TrackedStorage, num_bytes: int, rank: int, start: float, end: float) -> Holding:
    what = describe(storage, num_bytes)
    name = f"{what.name} {what.shape} of {what.module}"
    return Holding(rank=rank, name=name, kind=what.kind, num_bytes=num_bytes, start=start, end=end)
