"""Gives torch.cuda, torch.accelerator and autocast("cuda") the functions of the practice card."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace

import torch

from helpers.commands.rehearse.redirect import gpus
from helpers.devices.cards.torch_patches import replace_in_torch

_NAME = "NVIDIA practice card"
_OWN = ("memory", "device", "device_count", "current_device", "set_device")  # not the card's: numbered, or a module


class Device:
    """torch.cuda.device(1), as a context."""

    def __init__(self, device) -> None:
        self.index = None if isinstance(device, int) and device < 0 else gpus.gpu_index(device)

    def __enter__(self) -> None:
        self.before, gpus.current = gpus.current, gpus.current if self.index is None else self.index

    def __exit__(self, *_) -> None:
        gpus.current = self.before


class DeviceOf(Device):
    def __init__(self, tensor) -> None:
        super().__init__(tensor.device)


def _set_device(device) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    if index is not None and index >= 0:
        gpus.choose(index)


def _exchange(index: int) -> int:
    return gpus.choose(index) if index >= 0 else -1


def replace(memory: int) -> None:
    """Give torch.cuda the card's functions: they are looked up when called, since others may replace them."""
    card, cuda = torch.card, torch.cuda
    for name in dir(type(card)):
        if not name.startswith("__") and name not in _OWN:
            value = getattr(card, name)
            of_card = value if isinstance(value, type) or not callable(value) else functools.partial(_later, name)
            for module in (cuda, cuda.memory, cuda.random, cuda.streams):
                if module is cuda or hasattr(module, name):
                    setattr(module, name, of_card)
    cuda.device, cuda.device_of = Device, DeviceOf
    cuda.set_device, cuda.current_device, cuda._exchange_device = _set_device, lambda: gpus.current, _exchange
    cuda._maybe_exchange_device = _exchange
    cuda.device_count = lambda: len(gpus.visible())
    cuda.init = cuda._lazy_init = cuda.ipc_collect = cuda.set_per_process_memory_fraction = lambda *_, **__: None
    cuda.StreamContext = cuda.stream
    card.Stream.is_capturing = lambda stream: False
    cuda.is_current_stream_capturing = lambda: False
    cuda.mem_get_info = cuda.memory.mem_get_info = lambda device=None: (memory - card.memory_allocated(), memory)
    cuda.get_device_name = lambda device=None: _NAME
    cuda.get_device_properties = lambda device=None: SimpleNamespace(
        **vars(card.get_device_properties())
        | {"name": _NAME, "total_memory": memory, "multi_processor_count": 132, "L2_cache_size": 50 << 20}
    )
    cuda.memory_stats = cuda.memory.memory_stats = _memory_stats
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    torch.version.cuda = "12.8"
    cuda.get_arch_list = lambda: ["sm_90"]
    cuda.can_device_access_peer = lambda *_: True
    cuda.nccl.version, cuda.nccl.is_available = lambda: (2, 28, 9), lambda *_: True
    replace_in_torch("amp_definitely_not_available", cuda.amp.common.amp_definitely_not_available, lambda: False)
    _accelerator()
    _autocast()


def _later(name: str, *args, **kwargs):
    return getattr(torch.card, name)(*_without_gpus(args), **{k: _without_gpu(v) for k, v in kwargs.items()})


def _without_gpus(args: tuple) -> tuple:
    return tuple(map(_without_gpu, args))


def _without_gpu(value):
    return None if isinstance(value, torch.device) and gpus.gpu_index(value) is not None else value


def _memory_stats(device=None) -> dict:
    now, peak = torch.card.memory_allocated(), torch.card.max_memory_allocated()
    return {
        f"{kind}_bytes.all.{when}": value
        for kind in ("allocated", "reserved", "active")
        for when, value in (("current", now), ("peak", peak))
    } | {"num_ooms": 0, "num_alloc_retries": 0}


def _accelerator() -> None:
    one = torch.accelerator
    one.is_available, one.device_count = lambda: True, torch.cuda.device_count
    one.current_device_index = one.current_device_idx = torch.cuda.current_device
    one.set_device_index = one.set_device_idx = _set_device
    one.current_accelerator = torch._C._get_accelerator = lambda check_available=False: torch.device("cuda")
    one.device_index = lambda device: contextlib.nullcontext() if device is None else Device(device)


def _autocast() -> None:
    """autocast("cuda") keeps its name, and asks torch for the card's table."""
    for name in (
        "is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype",
        "is_autocast_available",
    ):  # fmt: skip
        usual = getattr(torch, name, None) or getattr(torch.amp, name)
        new = functools.partial(_for_card, usual)
        replace_in_torch(name, usual, new)
        if hasattr(torch, name):
            setattr(torch, name, new)


def _for_card(function, *args):
    if not args and function.__name__ == "is_autocast_enabled":
        args = ("cuda",)
    return function(*("card" if isinstance(one, str) and one == "cuda" else one for one in args))
