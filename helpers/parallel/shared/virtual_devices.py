"""Provides several devices in one process, with a log of every byte that is copied from one to another.

    Devices          real devices: torch devices such as cuda:0 and cuda:1
    VirtualDevices   simulated devices in CPU memory, so that an example on eight runs on any laptop
    Budget           one simulated GPU with a memory limit, and its host: what does not fit raises OutOfBudget

Virtual devices behave as real ones do: a tensor lives on exactly one of them, an operation on tensors of two of them is
an error, and `copy` is the only way to move data. Each device counts the bytes that it stores now, and its peak.
DataParallel (chapter 02) runs on them, and offload (chapter 05) copies between the two devices of a Budget.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from helpers.devices import on_device
from helpers.quantities.units import format_bytes


class DeviceCopy(NamedTuple):
    """One tensor that was copied from device `source` to device `destination`; `what` says what it was for."""

    source: int
    destination: int
    num_bytes: int
    what: str


class Devices:
    """Real devices, numbered 0 to N - 1; number 0 is the master. `copies` is the log of all copies.

    In every method `device`, `source` and `destination` are such numbers, and `what` says what a copy is for.

    Raises ValueError for an empty list.
    """

    def __init__(self, devices: Sequence[torch.device | str | int]):
        if not devices:
            raise ValueError("Devices got an empty list: give at least one device, such as ['cuda:0', 'cuda:1']")
        self.devices = [torch.device(device) for device in devices]
        self.copies: list[DeviceCopy] = []

    def __len__(self) -> int:
        return len(self.devices)

    def copy(self, tensor: Tensor, source: int, destination: int, what: str) -> Tensor:
        """Return the tensor on another device and log the copy. A tensor that is there already is returned as it is."""
        if source == destination:
            return tensor
        self.copies.append(DeviceCopy(source, destination, tensor.numel() * tensor.element_size(), what))
        return self._move(tensor, destination)

    def wait(self, tensor: Tensor) -> None:
        """Wait until a tensor that `copy` returned is complete. Here a copy is complete when it returns."""

    def place(self, tensors: Iterable[Tensor], device: int) -> None:
        """Record on which device tensors are. With real devices, the tensors know it themselves."""

    @contextmanager
    def use(self, device: int) -> Iterator[None]:
        """Make this thread work for one device: operations without input tensors, such as torch.zeros, create there."""
        with on_device(self.devices[device]):
            yield

    def sent(self, device: int) -> int:
        """Return the bytes that were copied from a device."""
        return sum(copy.num_bytes for copy in self.copies if copy.source == device)

    def received(self, device: int) -> int:
        """Return the bytes that were copied to a device."""
        return sum(copy.num_bytes for copy in self.copies if copy.destination == device)

    def bytes_by_purpose(self) -> dict[str, int]:
        """Return the copied bytes for each `what`, in the order of their first copy."""
        total: Counter[str] = Counter()
        for copy in self.copies:
            total[copy.what] += copy.num_bytes
        return dict(total)

    def _move(self, tensor: Tensor, destination: int) -> Tensor:
        return tensor.to(self.devices[destination])


class VirtualDevices(Devices):
    """N simulated devices in CPU memory. Inside `with devices:` every tensor has a home device, and bytes are counted.

    A tensor that was not placed is on device 0. Outside the `with`, `copy` still logs, but homes are neither recorded
    nor checked.
    Raises ValueError for fewer than 1 device, and RuntimeError when an operation mixes tensors of two devices.
    """

    def __init__(self, num_devices: int):
        if num_devices < 1:
            raise ValueError(f"VirtualDevices({num_devices}): expected 1 or more")
        super().__init__(["cpu"] * num_devices)
        self._homes: dict[int, tuple[weakref.ref, int, int]] = {}  # by id of a storage: the storage, device, bytes
        self._freed: deque[int] = deque()  # ids; a destructor may run in any thread at any moment, so it only appends
        self._lock = threading.Lock()
        self._bytes, self._peak = [0] * num_devices, [0] * num_devices
        # of each thread: `device`, where operations without input tensors create theirs, and `landing`, the destination
        # of the copy that runs now
        self._here = threading.local()
        self._entered: list[_Homes] = []  # one for each `with devices:` that is open

    def __enter__(self) -> VirtualDevices:
        self._entered.append(_Homes(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._entered.pop().__exit__(*error)

    @contextmanager
    def use(self, device: int) -> Iterator[None]:
        before, self._here.device = getattr(self._here, "device", 0), device
        try:
            # a dispatch mode watches only the thread that entered it, and this may be another thread than `with`'s
            with _Homes(self) if self._entered else nullcontext():
                yield
        finally:
            self._here.device = before

    def place(self, tensors: Iterable[Tensor], device: int) -> None:
        for tensor in tensors:
            self._settle(tensor.untyped_storage(), device)

    def home(self, tensor: Tensor) -> int:
        """Return the device that a tensor lives on."""
        return self._settle(tensor.untyped_storage(), 0)

    def bytes_on(self, device: int) -> int:
        """Return the bytes of the tensors that live on a device now."""
        with self._lock:
            self._forget_freed()
            return self._bytes[device]

    def peak(self, device: int) -> int:
        """Return the most bytes that lived on a device since `reset`."""
        return self._peak[device]

    def reset(self) -> None:
        """Empty the log, and let every peak start from the bytes of now."""
        self.copies.clear()
        self._peak = [self.bytes_on(device) for device in range(len(self))]

    def _move(self, tensor: Tensor, destination: int) -> Tensor:
        """Clone the tensor; `landing` tells the dispatch mode below that the clone's home is the destination."""
        self._here.landing = destination
        try:
            return tensor.clone(memory_format=torch.contiguous_format)
        finally:
            self._here.landing = None

    def _settle(self, storage: torch.UntypedStorage, device: int) -> int:
        """Return the home of a storage, which becomes `device` if it has none yet."""
        with self._lock:
            self._forget_freed()
            key = id(storage)
            if key not in self._homes:
                self._admit(storage.nbytes(), device)
                # when torch frees the storage, the callback notes its key; `_forget_freed` then subtracts the bytes.
                # freed=: the callback holds only the queue, so it does not keep these devices alive
                reference = weakref.ref(storage, lambda _, freed=self._freed: freed.append(key))
                self._homes[key] = reference, device, storage.nbytes()
                self._bytes[device] += storage.nbytes()
                self._peak[device] = max(self._peak[device], self._bytes[device])
            return self._homes[key][1]

    def _admit(self, num_bytes: int, device: int) -> None:
        """Called before bytes are counted, with the lock held. A device with a limit raises here."""

    def _forget_freed(self) -> None:
        """Subtract the bytes of storages that torch has freed since the last call."""
        while self._freed:
            _, device, num_bytes = self._homes.pop(self._freed.popleft())
            self._bytes[device] -= num_bytes


class _Homes(TorchDispatchMode):
    """Watches every operation of one thread: its inputs must have one home, which its outputs get.

    The home of a tensor is the number of the virtual device that it lives on.
    """

    def __init__(self, owner: VirtualDevices):
        super().__init__()
        self.owner = owner

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        landing = getattr(self.owner._here, "landing", None)
        home = self._common_home(function, (args, kwargs)) if landing is None else landing
        result = function(*args, **(kwargs or {}))
        self.owner.place(_tensors(result), home)
        return result

    def _common_home(self, function, inputs) -> int:
        if function is torch.ops.aten.lift_fresh.default:  # torch.tensor(...) creates a tensor without inputs
            return getattr(self.owner._here, "device", 0)
        tensors = list(_tensors(inputs))
        # as on GPUs, a scalar tensor may be combined with any device; among scalars alone their homes count
        homes = {self.owner.home(tensor) for tensor in tensors if tensor.dim()}
        homes = homes or {self.owner.home(tensor) for tensor in tensors}
        if len(homes) > 1:
            raise RuntimeError(
                f"{function.name()} got tensors of the virtual devices {sorted(homes)}; all must be on one. A tensor "
                "that is neither parameter nor buffer is not replicated: register_buffer moves it along"
            )
        return homes.pop() if homes else getattr(self.owner._here, "device", 0)


def _tensors(tree) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts, but no meta tensors, which have no bytes."""
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor) and not leaf.is_meta)


GPU, HOST = 0, 1  # the numbers of a Budget's two devices
FREEING_SECONDS = 0.2  # gloo's thread frees a message's tensor a moment after wait(), later on a busy machine
# the end of an OutOfBudget error: names from helpers.parallel.memory that need less memory
WHAT_HELPS = (
    "smaller micro-batches with accumulation, chunked_token_loss, recompute_blocks, offload_activations, "
    "OffloadedOptimizer"
)


class OutOfBudget(torch.OutOfMemoryError):
    """The simulated device is full. Code that catches torch.OutOfMemoryError catches this, too."""


class Budget(VirtualDevices):
    """A simulated GPU (device 0) with `num_bytes` of memory, and its host (device 1) without a limit.

        with Budget(8_000_000, model.parameters()) as budget:
            loss = model(x).sum()              # every new tensor counts until nothing refers to it any more
            loss.backward()                    # raises OutOfBudget if activations and gradients need too much

    tensors: what is on the device already. Other tensors that were made outside count from their first use on.
    Temporary memory inside an operation does not count (on a GPU it does), nor does Python's memory.
    After the error the count is right and nothing that existed has changed. As on a GPU, a backward that was stopped
    has left some gradients behind, so zero them.
    Raises ValueError for a budget that is not above 0, or below the bytes of `tensors`; OutOfBudget inside the `with`.
    """

    def __init__(self, num_bytes: int, tensors: Iterable[Tensor] = ()):
        if num_bytes < 1:
            raise ValueError(f"Budget({num_bytes}): expected a number of bytes above 0; 8 MB is 8_000_000")
        super().__init__(2)
        self.num_bytes = num_bytes
        tensors = list(tensors)
        storages = [tensor.untyped_storage() for tensor in tensors]
        used = sum({id(storage): storage.nbytes() for storage in storages}.values())  # a shared storage counts once
        if used > num_bytes:
            raise ValueError(
                f"Budget({format_bytes(num_bytes)}) is below what the device holds already: {format_bytes(used)} in "
                f"{len(tensors)} tensors. Give a larger budget, or a smaller model"
            )
        self.place(tensors, GPU)

    def _admit(self, num_bytes: int, device: int) -> None:
        """Raise OutOfBudget where the GPU has not so many bytes left, after waiting for memory that is being freed."""
        if device != GPU or self._bytes[GPU] + num_bytes <= self.num_bytes:
            return
        gc.collect()  # frees tensors that only a cycle of references keeps alive
        self._forget_freed()
        give_up = time.monotonic() + FREEING_SECONDS
        while self._bytes[GPU] + num_bytes > self.num_bytes and time.monotonic() < give_up:
            time.sleep(0.001)
            self._forget_freed()
        used = self._bytes[GPU]
        if used + num_bytes > self.num_bytes:
            raise OutOfBudget(
                f"tried to allocate {format_bytes(num_bytes)}: the device holds {format_bytes(used)} of its "
                f"{format_bytes(self.num_bytes)}, so {format_bytes(self.num_bytes - used)} are free. What helps, "
                f"the cheapest first: {WHAT_HELPS}"
            )
