"""A real GPU and its host's memory, joined by copies that run beside the computation."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.devices import is_accelerator, module_of
from helpers.parallel.shared.budget import GPU, HOST
from helpers.parallel.shared.devices import Devices


class PinnedDevices(Devices):
    """Device GPU (0) and device HOST (1), whose copies lie in pinned memory and travel on a stream of their own.

    `copy` returns at once; `wait(tensor)` before its first use. Three things keep this right:
    - the copying stream waits for the stream that computed what leaves the GPU,
    - record_stream: the allocator gives memory to nobody while either stream still uses it,
    - the CPU itself waits before it reads what arrives on the host.
    Raises ValueError for a device without memory of its own.
    """

    def __init__(self, device: torch.device | str = "cuda"):
        if not is_accelerator(device):
            raise ValueError(f"PinnedDevices({str(device)!r}): expected a CUDA device; on a CPU, Budget pretends one")
        super().__init__([device, "cpu"])
        self._module = module_of(device)
        self.stream = self._module.Stream(self.devices[GPU])

    def wait(self, tensor: Tensor) -> None:
        if not is_accelerator(tensor.device):
            self.stream.synchronize()
            return
        computing = self._module.current_stream(self.devices[GPU])
        computing.wait_stream(self.stream)
        tensor.record_stream(computing)

    def _move(self, tensor: Tensor, destination: int) -> Tensor:
        if destination == HOST:
            self.stream.wait_stream(self._module.current_stream(self.devices[GPU]))
        elif not tensor.is_pinned():
            tensor = tensor.pin_memory()  # from pageable memory the copy would hold up the CPU
        place = dict(pin_memory=True) if destination == HOST else dict(device=self.devices[GPU])
        with self._module.stream(self.stream):
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, **place)
            moved.copy_(tensor, non_blocking=True)
        if is_accelerator(tensor.device):
            tensor.record_stream(self.stream)
        return moved
