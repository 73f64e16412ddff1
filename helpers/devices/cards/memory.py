"""Counts the bytes that a practice card holds, by storage, and raises the error of a full card.

Views share a storage, which counts once. It counts as a GPU's allocator does, but without rounding to 512 bytes, and
it does not see what a kernel needs inside itself.
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

PATIENCE = 0.2  # seconds; gloo's thread lets go of a message's tensor a moment after wait()


class CardMemory:
    """The bytes of one card. `by_kind`, if somebody knows: a function that gives {"parameters": bytes, …}."""

    def __init__(self) -> None:
        self.capacity = 1 << 62  # bytes, until `install` says
        self.allocated = self.peak = 0
        self.by_kind: Callable[[], dict[str, int]] | None = None
        self._known: dict[int, tuple[weakref.ref, int]] = {}  # address of a storage in C++: itself, its bytes
        self._freed: deque[int] = deque()  # a destructor may run in any thread at any moment: it appends, no more
        self._lock = threading.RLock()

    def charge(self, storage: torch.UntypedStorage) -> None:
        """This storage is on the card, with the size that it has now. Raises torch.OutOfMemoryError if it is full."""
        if self._freed or storage._cdata not in self._known:
            self.resize(storage, storage.nbytes())

    def holds(self, storage: torch.UntypedStorage) -> bool:
        self._forget_freed()
        return storage._cdata in self._known

    def resize(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        """This storage has, or is going to have, so many bytes. Raises torch.OutOfMemoryError if the card is full."""
        with self._lock:
            self._forget_freed()
            key = storage._cdata
            reference, before = self._known.get(key, (None, 0))
            extra = num_bytes - before
            if extra > 0 and self.allocated + extra > self.capacity:
                self._make_room(extra)
            append = self._freed.append
            self._known[key] = reference or weakref.ref(storage, lambda _: append(key)), num_bytes
            self.allocated += extra
            self.peak = max(self.peak, min(self.allocated, self.capacity))

    def allocated_now(self) -> int:
        with self._lock:
            self._forget_freed()
            return self.allocated

    def restart_peak(self) -> None:
        self.peak = self.allocated_now()

    def _forget_freed(self) -> None:
        with self._lock:
            while self._freed:
                self.allocated -= self._known.pop(self._freed.popleft())[1]

    def _make_room(self, extra: int) -> None:
        """Raise CUDA's error if `extra` bytes do not fit, even after garbage was collected and other threads let go."""
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
