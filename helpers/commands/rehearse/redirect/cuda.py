"""Gives torch.cuda, torch.accelerator and autocast("cuda") the functions of the practice card.

The practice card is a simulated GPU: a device of torch called "card", with a module torch.card whose functions have the
names of torch.cuda's. `gpus` keeps which number a GPU has in the script: `gpus.current` is the current one, and
`gpu_index(device)` is the number that a device means, None for a device that is no GPU.
"""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace

import torch

from helpers.commands.rehearse.redirect import gpus
from helpers.devices.cards.torch_patches import replace_in_torch

_NAME = "NVIDIA practice card"  # what the script reads as the name of its GPU
# Names of torch.card that torch.cuda does not get, because it keeps its own or gets a function of this file.
_OWN = ("memory", "device", "device_count", "current_device", "set_device", "is_initialized", "_is_in_bad_fork")
# Functions that initialize CUDA when a script calls them.
_INITIALIZING = ("synchronize", "current_stream", "default_stream", "get_device_capability", "get_rng_state")


class Device:
    """torch.cuda.device(1), within which this GPU is the current one."""

    def __init__(self, device) -> None:
        self.index = None if isinstance(device, int) and device < 0 else gpus.gpu_index(device)  # None: no change

    def __enter__(self) -> None:
        self.before, gpus.current = gpus.current, gpus.current if self.index is None else self.index

    def __exit__(self, *_) -> None:
        gpus.current = self.before


class DeviceOf(Device):
    """torch.cuda.device_of(tensor), within which the GPU of the tensor is the current one."""

    def __init__(self, tensor) -> None:
        super().__init__(tensor.device)


def _set_device(device) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    if index is not None and index >= 0:
        gpus.choose(index)


def _current_device() -> int:
    gpus.initialize()
    return gpus.current


def _exchange(index: int) -> int:
    """Make this GPU the current one. Returns the one before; -1, which changes nothing, for -1."""
    return gpus.choose(index) if index >= 0 else -1


def replace(memory: int) -> None:
    """Give torch.cuda the card's functions. memory: bytes that the GPU says it has.

    The functions are looked up in torch.card when they are called, since others may replace them there.
    """
    card, cuda = torch.card, torch.cuda
    for name in dir(type(card)):
        if not name.startswith("__") and name not in _OWN:
            value = getattr(card, name)
            of_card = value if isinstance(value, type) or not callable(value) else functools.partial(_later, name)
            for module in (cuda, cuda.memory, cuda.random, cuda.streams):  # torch.cuda has its names from these
                if module is cuda or hasattr(module, name):
                    setattr(module, name, of_card)
    # Where the script asks for numbers of a GPU or for versions, it is told those of an H100 with CUDA 12.8.
    cuda.device, cuda.device_of = Device, DeviceOf
    cuda.set_device, cuda.current_device, cuda._exchange_device = _set_device, _current_device, _exchange
    cuda.is_initialized, cuda._is_in_bad_fork = gpus.is_initialized, lambda: gpus.is_forked
    cuda._maybe_exchange_device = _exchange
    cuda.device_count = lambda: len(gpus.visible())
    cuda.init = cuda._lazy_init = gpus.initialize
    cuda.ipc_collect = cuda.set_per_process_memory_fraction = lambda *_, **__: None
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
    torch.backends.cudnn.is_acceptable = lambda tensor: False  # what a card computes on the CPU runs without cuDNN
    torch.version.cuda = "12.8"
    cuda.get_arch_list = lambda: ["sm_90"]
    cuda.can_device_access_peer = lambda *_: True
    cuda.nccl.version, cuda.nccl.is_available = lambda: (2, 28, 9), lambda *_: True
    replace_in_torch("amp_definitely_not_available", cuda.amp.common.amp_definitely_not_available, lambda: False)
    _accelerator()
    _autocast()


def _later(name: str, *args, **kwargs):
    """Call this function of torch.card, with None for each device that is a GPU: there is only one card."""
    if name in _INITIALIZING:
        gpus.initialize()
    return getattr(torch.card, name)(*map(_without_gpu, args), **{k: _without_gpu(v) for k, v in kwargs.items()})


def _without_gpu(value):
    """None for a device that is a GPU, and any other argument as it is."""
    return None if isinstance(value, torch.device) and gpus.gpu_index(value) is not None else value


def _memory_stats(device=None) -> dict:
    """What torch.cuda.memory_stats returns, with the names that scripts read most."""
    stats = {"num_ooms": 0, "num_alloc_retries": 0}
    for kind in ("allocated", "reserved", "active"):
        stats[f"{kind}_bytes.all.current"] = torch.card.memory_allocated()
        stats[f"{kind}_bytes.all.peak"] = torch.card.max_memory_allocated()
    return stats


def _accelerator() -> None:
    """Let torch.accelerator say that there are GPUs, with the numbers that torch.cuda gives them."""
    one = torch.accelerator
    one.is_available, one.device_count = lambda: True, torch.cuda.device_count
    one.current_device_index = one.current_device_idx = torch.cuda.current_device
    one.set_device_index = one.set_device_idx = _set_device
    one.current_accelerator = torch._C._get_accelerator = lambda check_available=False: torch.device("cuda")
    one.device_index = lambda device: contextlib.nullcontext() if device is None else Device(device)


def _autocast() -> None:
    """Let autocast("cuda") keep its name, but read and set the state of autocast on the card."""
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
    """Call a function of autocast with "card" wherever the script says "cuda"."""
    if not args and function.__name__ == "is_autocast_enabled":
        args = ("cuda",)  # without a device type, torch means CUDA
    return function(*("card" if isinstance(one, str) and one == "cuda" else one for one in args))
