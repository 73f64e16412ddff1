"""A pretended GPU with a limit, on any laptop: what does not fit raises, as CUDA's out-of-memory error does."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from helpers.parallel.shared.devices import VirtualDevices
from helpers.quantities.units import format_bytes

GPU, HOST = 0, 1
PATIENCE = 0.2  # seconds; gloo's thread lets go of a message's tensor a moment after wait(), later on a busy machine
WHAT_HELPS = (
    "smaller micro-batches with accumulation, chunked_token_loss, recompute_blocks, offload_activations, "
    "OffloadedOptimizer"
)


class OutOfBudget(torch.OutOfMemoryError):
    """The pretended device is full. Code that catches torch.OutOfMemoryError catches it, too."""


class Budget(VirtualDevices):
    """Device GPU (0) may hold `num_bytes`; device HOST (1) holds what you like.

        with Budget(8_000_000, model.parameters()) as budget:
            loss = model(x).sum()              # every new tensor counts, until nothing refers to it any more
            loss.backward()                    # OutOfBudget, if activations and gradients together are too many

    tensors: what the device holds already. Others that were made outside count from their first use on.
    What an operation needs inside itself, and the memory of Python, do not count; on a GPU, the first also does.
    After the error the count is right, the next line works, and nothing that existed has changed; a backward that was
    cut short has left some gradients behind, as on a GPU: zero them.
    Raises ValueError for a budget that is not above 0, or below what `tensors` hold; OutOfBudget inside the `with`.
    """

    def __init__(self, num_bytes: int, tensors: Iterable[Tensor] = ()):
        if num_bytes < 1:
            raise ValueError(f"Budget({num_bytes}): expected a number of bytes above 0; 8 MB is 8_000_000")
        super().__init__(2)
        self.num_bytes = num_bytes
        tensors = list(tensors)
        held = sum({id(storage): storage.nbytes() for storage in (t.untyped_storage() for t in tensors)}.values())
        if held > num_bytes:
            raise ValueError(
                f"Budget({format_bytes(num_bytes)}) is below what the device holds already: {format_bytes(held)} in "
                f"{len(tensors)} tensors. Give a larger budget, or a smaller model"
            )
        self.place(tensors, GPU)

    def _admit(self, num_bytes: int, device: int) -> None:
        if device != GPU or self._held[GPU] + num_bytes <= self.num_bytes:
            return
        gc.collect()  # what only a cycle of references keeps is free for the asking
        self._forget_freed()
        give_up = time.monotonic() + PATIENCE
        while self._held[GPU] + num_bytes > self.num_bytes and time.monotonic() < give_up:
            time.sleep(0.001)
            self._forget_freed()
        held = self._held[GPU]
        if held + num_bytes > self.num_bytes:
            raise OutOfBudget(
                f"tried to allocate {format_bytes(num_bytes)}: the device holds {format_bytes(held)} of its "
                f"{format_bytes(self.num_bytes)}, so {format_bytes(self.num_bytes - held)} are free. What helps, "
                f"the cheapest first: {WHAT_HELPS}"
            )
