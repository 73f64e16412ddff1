"""What torch's caching allocator says on CUDA: allocated, reserved, fragmentation, and a picture of every block.

allocated   bytes of the tensors that live, each rounded up to 512
reserved    bytes that the allocator holds of the GPU's memory, for tensors that live or may come
The difference is `fragmentation`: reserved, but in pieces that the next tensor may not fit into. nvidia-smi shows more:
also the CUDA context and what libraries hold, 0.3 to 1 GB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from helpers.devices import has_allocator, module_of


@dataclass(frozen=True, kw_only=True)
class AllocatorBytes:
    """Bytes on one GPU. peak_allocated: the most since a block of record_memory began, or the process."""

    allocated: int
    reserved: int
    peak_allocated: int

    @property
    def fragmentation(self) -> int:
        """Bytes that are reserved and hold no tensor."""
        return self.reserved - self.allocated


def allocator_bytes(device: torch.device | str | int) -> AllocatorBytes:
    """What the caching allocator of a GPU says now. RuntimeError for a device that has none."""
    device = _with_allocator(device)
    return AllocatorBytes(
        allocated=module_of(device).memory_allocated(device),
        reserved=module_of(device).memory_reserved(device),
        peak_allocated=module_of(device).max_memory_allocated(device),
    )


@contextmanager
def save_snapshot(path: str | os.PathLike, *, max_entries: int = 100_000) -> Iterator[None]:
    """`with save_snapshot("step.pickle"): step()`: every block with the code that asked for it.

    Drop the file on https://pytorch.org/memory_viz, which reads it in your browser. max_entries: the last so many
    allocations and frees are kept. RuntimeError where no GPU is in use, or torch has no such recording.
    """
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    if record is None or not torch.cuda.is_available():
        raise RuntimeError(
            "save_snapshot needs an NVIDIA GPU and its caching allocator, and torch sees none here; on CPU "
            "record_memory(model).largest() says what is held, and by which module"
        )
    record(max_entries=max_entries)
    try:
        yield
    finally:  # also after an out-of-memory error, which is what most people look for
        torch.cuda.memory._dump_snapshot(os.fspath(path))
        record(enabled=None)


def _with_allocator(device: torch.device | str | int) -> torch.device:
    device = torch.device(device)
    if not has_allocator(device):
        raise RuntimeError(
            f"there is no caching allocator on {device.type!r}: allocated, reserved and fragmentation are a GPU's; "
            "read at(...) and peak, which count the bytes of tensors on any device"
        )
    return device
