"""The one place that knows devices: what a process computes on, its generator, its streams, its memory, its autocast.

Elsewhere no device is asked for by name. `cards` is a GPU of practice, `autocast_tables` what autocast does on each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist

from helpers.devices.cards import NAME as CARD

GPU = "cuda"  # what torch calls the GPUs that NCCL knows


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


def has_allocator(device: torch.device | str) -> bool:
    """Whether a device has torch's caching allocator, which keeps what was freed."""
    return torch.device(device).type == GPU


def runs_later(device: torch.device | str) -> bool:
    """Whether a call returns before its work is done, as a GPU's do and a practice card's do not."""
    return torch.device(device).type == GPU


def module_of(device: torch.device | str) -> ModuleType:
    """torch.cuda for a GPU, torch.card for a card, torch.cpu for the CPU: each with streams, events and memory."""
    return torch.get_device_module(torch.device(device))


def on_device(device: torch.device):
    """A context in which what is made from nothing is made there, and kernels go to it."""
    return torch.cuda.device(device) if device.type == GPU else device


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has done what it was told."""
    if is_accelerator(device):
        module_of(device).synchronize(device)


@contextmanager
def telling_kinds(device: torch.device, by_kind: Callable[[], dict[str, int]]) -> Iterator[None]:
    """In here, the error of a practice card that is full says what holds it, as `by_kind` knows. Elsewhere nothing."""
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


# -- random numbers ------------------------------------------------------------------------------------------------
def random_states(devices: Iterable[torch.device] | None = None) -> dict[torch.device, torch.Tensor]:
    """The states of the CPU's generator and of these devices', by default of the accelerator's if it is in use."""
    if devices is None:
        devices = [found] if (found := accelerator()) is not None and module_of(found).is_initialized() else []
    cpu = {torch.device("cpu"): torch.get_rng_state()}
    return cpu | {device: module_of(device).get_rng_state(device) for device in devices}


def set_random_states(states: dict[torch.device, torch.Tensor]) -> None:
    for device, state in states.items():
        if is_accelerator(device):
            module_of(device).set_rng_state(state, device)
        else:
            torch.set_rng_state(state)


@contextmanager
def fork_random(*devices: torch.device | str) -> Iterator[None]:
    """In here, generators of the CPU and of these devices do what they like; afterwards they are as before."""
    before = random_states([torch.device(one) for one in devices if is_accelerator(one)])
    try:
        yield
    finally:
        set_random_states(before)


# -- autocast ------------------------------------------------------------------------------------------------------
def table_of(kind: str) -> str:
    """Whose table of autocast a kind of device follows: a card follows CUDA's."""
    return GPU if kind == CARD else kind
