"""A real GPU and its host's memory, joined by copies that run beside the computation."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.parallel.shared.budget import GPU, HOST
from helpers.parallel.shared.devices import Devices


class PinnedDevices(Devices):
    """Device GPU (0) and device HOST (1), whose copies lie in pinned memory and travel on a stream of their own.

    `copy` returns at once; `wait(tensor)` before its first use. Three things keep this right:
    - the copying stream waits for the stream that computed what leaves the GPU,
    - record_stream: the allocator gives memory to nobody while either stream still uses it,
    - the CPU itself waits before it reads what arrives on the host.
    Raises ValueError for a device that is no CUDA device.
    """

    def __init__(self, device: torch.device | str = "cuda"):
        if torch.device(device).type != "cuda":
            raise ValueError(f"PinnedDevices({str(device)!r}): expected a CUDA device; on a CPU, Budget pretends one")
        super().__init__([device, "cpu"])
        self.stream = torch.cuda.Stream(self.devices[GPU])

    def wait(self, tensor: Tensor) -> None:
        if not tensor.is_cuda:
            self.stream.synchronize()
            return
        computing = torch.cuda.current_stream(self.devices[GPU])
        computing.wait_stream(self.stream)
        tensor.record_stream(computing)

    def _move(self, tensor: Tensor, destination: int) -> Tensor:
        if destination == HOST:
            self.stream.wait_stream(torch.cuda.current_stream(self.devices[GPU]))
        elif not tensor.is_pinned():
            tensor = tensor.pin_memory()  # from pageable memory the copy would hold up the CPU
        place = dict(pin_memory=True) if destination == HOST else dict(device=self.devices[GPU])
        with torch.cuda.stream(self.stream):
            moved = torch.empty(tensor.shape, dtype=tensor.dtype, **place)
            moved.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            tensor.record_stream(self.stream)
        return moved
