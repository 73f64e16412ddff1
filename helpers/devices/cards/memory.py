"""Counts the bytes that a practice card holds, by storage, and raises the error of a full card.

A practice card is a simulated GPU whose tensors are in the CPU's memory. Views share a storage, which counts once.
Bytes are counted as a GPU's allocator counts them, but without rounding to 512 bytes, and without the memory that a
kernel uses inside itself.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import torch

from helpers.devices.cards.errors import raise_or_defer
from helpers.quantities.units import format_bytes

PATIENCE = 0.2  # seconds to wait for memory; a thread of gloo frees a message's tensor a moment after wait()


class CardMemory:
    """The bytes of one card. allocated: now. peak: the most since restart_peak. capacity: of the card.

    by_kind: a function that returns {"parameters": bytes, …} for the error of a full card, or None.
    """

    def __init__(self) -> None:
        self.capacity = 1 << 62  # bytes: no limit until `install` sets it
        self.allocated = self.peak = 0
        self.by_kind: Callable[[], dict[str, int]] | None = None
        self._known: dict[int, tuple[weakref.ref, int]] = {}  # address of a storage in C++ -> the storage, its bytes
        # Addresses of storages that were freed. A destructor may run in any thread at any moment, even while the lock
        # is held, so it only appends here.
        self._freed: deque[int] = deque()
        self._lock = threading.RLock()

    def charge(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, with the size that it has now. Raises torch.OutOfMemoryError if the card is full."""
        # Another storage may have got the address of one that was freed, so freed ones must be forgotten first.
        if self._freed or storage._cdata not in self._known:
            self.resize(storage, storage.nbytes())

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is on the card."""
        self._forget_freed()
        return storage._cdata in self._known

    def resize(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        """Count a storage with a size that it has or will have. Raises torch.OutOfMemoryError if that is too much."""
        with self._lock:
            self._forget_freed()
            key = storage._cdata
            reference, before = self._known.get(key, (None, 0))
            extra = num_bytes - before
            if extra > 0 and self.allocated + extra > self.capacity:
                self._make_room(extra)
            append = self._freed.append  # so that the callback below does not keep this object alive
            self._known[key] = reference or weakref.ref(storage, lambda _: append(key)), num_bytes
            self.allocated += extra
            # More than the capacity is allocated where the error of a full card must wait for the end of a backward.
            self.peak = max(self.peak, min(self.allocated, self.capacity))

    def allocated_now(self) -> int:
        """The bytes on the card, without storages that were just freed."""
        with self._lock:
            self._forget_freed()
            return self.allocated

    def restart_peak(self) -> None:
        self.peak = self.allocated_now()

    def _forget_freed(self) -> None:
        """Stop counting the storages that were freed."""
        with self._lock:
            while self._freed:
                self.allocated -= self._known.pop(self._freed.popleft())[1]

    def _make_room(self, extra: int) -> None:
        """Wait until `extra` more bytes fit, after a garbage collection. Raises CUDA's error if they do not."""
        gc.collect()
        give_up = time.monotonic() + PATIENCE
        self._forget_freed()
        while self.allocated + extra > self.capacity and time.monotonic() < give_up:
            time.sleep(0.001)
            self._forget_freed()
        if self.allocated + extra <= self.capacity:
            return
        free = max(0, self.capacity - self.allocated)
        sizes = extra, self.capacity, free, self.allocated
        needed, capacity, free_bytes, allocated = (format_bytes(size, binary=True) for size in sizes)
        kinds = self.by_kind() if self.by_kind else {}
        by_kind = ", ".join(f"{kind} {format_bytes(size, binary=True)}" for kind, size in kinds.items() if size)
        raise_or_defer(
            torch.OutOfMemoryError(
                f"card out of memory. Tried to allocate {needed}. Card 0 has a total capacity of {capacity} of which "
                f"{free_bytes} is free. {allocated} is allocated by PyTorch" + (f": {by_kind}." if by_kind else ".")
            )
        )
