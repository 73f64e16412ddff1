"""Answers every question about devices: what a process computes on, its random numbers, memory, streams and autocast.

No other package asks for a device by name. A practice card (device="card", the package `cards`) is a simulated GPU, a
device that is made in Python. Such devices register the module that makes them here when they are loaded.
`autocast_tables` says what autocast does on each device, and `call_site` finds the learner's line.

It exists so that a strategy runs on CPUs, GPUs and practice cards without a branch. Begin with `known_kinds` and
`accelerator` below.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

GPU = "cuda"  # what torch calls the GPUs that NCCL knows
CARD = "card"  # a practice GPU, which is made in Python
_python_devices: dict[str, ModuleType] = {}  # kind of device -> the module that makes it, once it has been loaded
_MAKERS = {CARD: "helpers.devices.cards"}  # kind of device -> the name of that module


def known_kinds() -> tuple[str, ...]:
    """The kinds of device that this process knows: "cpu" and "cuda", and "card" where one is installed."""
    return ("cpu", GPU, CARD) if hasattr(torch, CARD) else ("cpu", GPU)


def accelerator() -> torch.device | None:
    """What this process would compute on beside the CPU: its practice card, its current GPU, or None."""
    if hasattr(torch, CARD):
        return torch.device(CARD, 0)
    return torch.device(GPU, torch.cuda.current_device()) if torch.cuda.is_available() else None


def is_accelerator(device: torch.device | str) -> bool:
    """Whether a device has memory, a generator and streams of its own."""
    return torch.device(device).type in (GPU, CARD)


def runs_later(device: torch.device | str) -> bool:
    """Whether a call returns before its work is done, as a GPU's do and a practice card's do not."""
    return torch.device(device).type == GPU


def module_of(device: torch.device | str) -> ModuleType:
    """torch.cuda for a GPU, torch.card for a card, torch.cpu for the CPU: each with streams, events and memory."""
    return torch.get_device_module(torch.device(device))


def on_device(device: torch.device):
    """A context in which new tensors are made on this device, and kernels are launched on it."""
    return torch.cuda.device(device) if device.type == GPU else device


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has done all its work."""
    if is_accelerator(device):
        module_of(device).synchronize(device)


@contextmanager
def reporting_memory_kinds(device: torch.device, by_kind: Callable[[], dict[str, int]]) -> Iterator[None]:
    """Inside this context, the error of a full practice card says which kinds of tensors fill it.

    by_kind: returns {"parameters": bytes, …}. On other devices this has no effect.
    """
    # Other devices get an object that nobody reads, so that the lines below need no case for them.
    memory = module_of(device).memory if device.type == CARD else SimpleNamespace(by_kind=None)
    before, memory.by_kind = memory.by_kind, by_kind
    try:
        yield
    finally:
        memory.by_kind = before


def computing_device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Where the ranks of a group, by default of all, compute: cards, GPUs if the group speaks NCCL, else the CPU."""
    found = accelerator()
    if found is not None and (found.type == CARD or (dist.is_initialized() and "nccl" in dist.get_backend(group))):
        return found
    return torch.device("cpu")


# -- devices that are made in Python -------------------------------------------------------------------------------
def register(kind: str, maker: ModuleType) -> None:
    """Called by a module that makes devices of this kind, when it is loaded.

    The module has the functions install, is_card, holds and new_run, as helpers/devices/cards/__init__.py has them.
    """
    _python_devices[kind] = maker


def install(kind: str, num_bytes: int) -> None:
    """Give this process a device of this kind with `num_bytes` of memory; a second call changes its size.

    Raises ValueError and RuntimeError as the maker does, see cards.install.
    """
    if kind not in _python_devices:
        importlib.import_module(_MAKERS[kind])
    _python_devices[kind].install(num_bytes)


def is_on_python_device(tensor: object) -> bool:
    """Whether a tensor is on a device that is made in Python, as cards.holds says for a practice card."""
    return any(maker.holds(tensor) for maker in _python_devices.values())


def start_task() -> None:
    """A new task of this process begins: a race that a device reports only once per task may be reported again."""
    for maker in _python_devices.values():
        maker.new_run()


def reduced_to_cpu(value: object) -> tuple[Any, ...] | None:
    """How to pickle a tensor on such a device for a process without one; None for everything else."""
    return next((value.reduced_to_cpu() for maker in _python_devices.values() if maker.is_card(value)), None)


# -- random numbers ------------------------------------------------------------------------------------------------
def seed_generators(seed: int, kind: str = "cpu") -> None:
    """Seed Python's, numpy's and torch's generators, and that of the accelerator, if `kind` is one.

    The accelerator's seed is another one, because a GPU that nobody seeded draws other numbers than its CPU.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)  # the seeds that it takes
    torch.manual_seed(seed)
    if is_accelerator(kind):
        module_of(kind).manual_seed_all(seed + 1)


def random_states(devices: Iterable[torch.device] | None = None) -> dict[torch.device, torch.Tensor]:
    """The states of the CPU's generator and of these devices', by default of the accelerator's if it is in use."""
    if devices is None:
        devices = [found] if (found := accelerator()) is not None and module_of(found).is_initialized() else []
    cpu = {torch.device("cpu"): torch.get_rng_state()}
    return cpu | {device: module_of(device).get_rng_state(device) for device in devices}


def set_random_states(states: dict[torch.device, torch.Tensor]) -> None:
    """Restore what `random_states` returned."""
    for device, state in states.items():
        if is_accelerator(device):
            module_of(device).set_rng_state(state, device)
        else:
            torch.set_rng_state(state)


@contextmanager
def fork_random(*devices: torch.device | str) -> Iterator[None]:
    """After this context, the random generators of the CPU and of these devices have the same states as before it."""
    before = random_states([torch.device(one) for one in devices if is_accelerator(one)])
    try:
        yield
    finally:
        set_random_states(before)


# -- autocast ------------------------------------------------------------------------------------------------------
def table_of(kind: str) -> str:
    """Whose table of autocast a kind of device follows: a card follows CUDA's."""
    return GPU if kind == CARD else kind


# -- memory that nobody wrote --------------------------------------------------------------------------------------
# Fresh memory is often zero. A learner's function that forgets to write a part of its result would therefore pass a
# check on one day and fail it on another. Checks run such functions inside FillUninitialized, so they always fail.
MAKERS = {torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted}
MAKERS |= {torch.Tensor.new_empty, torch.Tensor.new_empty_strided}  # the functions whose results have no values yet


class FillUninitialized(TorchFunctionMode):
    """A mode in which torch.empty, new_empty and their like return tensors filled with `fill_value`."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in MAKERS:
            result.detach().fill_(fill_value(result.dtype))
        return result


def fill_value(dtype: torch.dtype) -> float | int | bool:
    """A large number. A floating one is still finite once it is squared. NaN would look like a division by zero."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return 0.5 * torch.finfo(dtype).max ** 0.5
    return torch.iinfo(dtype).max // 2
