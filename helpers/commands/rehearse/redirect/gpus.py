"""Tracks on which GPU of its node a tensor is, as the script numbers them.

A process has one card, but a script may call it cuda:0 or cuda:1. The number of the first tensor is the process's own,
`home_gpu`. Only where a script puts tensors elsewhere, too (a constant "cuda:0", a checkpoint that remembers another
GPU), are numbers kept per storage and compared in each operation.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.commands.rehearse import rank_notes
from helpers.devices.call_site import call_site
from helpers.devices.cards.errors import CROSSING, raise_or_defer
from helpers.devices.cards.tensor import CardTensor, memory

CARD = torch.device("card", 0)
INVALID = (
    "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
count = 1  # of the node
current = 0  # as torch.cuda.current_device()
was_set = False  # whether the script chose the current device
home_gpu: int | None = None  # where the first tensor was put
gpu_of_storage: dict[int, tuple[weakref.ref, int]] = {}  # address of a storage: itself, its GPU


def begin(gpus_of_node: int) -> None:
    global count
    count = gpus_of_node
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # this machine's, not the script's
    usual = memory.resize

    def resize(storage: torch.UntypedStorage, num_bytes: int) -> None:
        is_new = home_gpu != current and not memory.holds(storage)
        usual(storage, num_bytes)
        if is_new:
            _mark(storage, current)

    memory.resize = resize


@functools.cache
def visible() -> tuple[int, ...]:
    """The node's GPUs that this process may use: what CUDA_VISIBLE_DEVICES said when the script first asked."""
    devices = torch.cuda._parse_visible_devices()
    return tuple(itertools.takewhile(lambda index: isinstance(index, int) and 0 <= index < count, devices))


def choose(index: int) -> int:
    """The current device, from now on. The one before."""
    global current, was_set
    before, current, was_set = current, checked(index), True
    return before


def checked(index: int | None) -> int:
    """Raises CUDA's error for a number that the node does not have."""
    if index is None:
        index = current
    if not 0 <= index < len(visible()):
        raise getattr(torch, "AcceleratorError", RuntimeError)(INVALID)
    return index


def gpu_index(device: Any) -> int | None:
    """The GPU that "cuda", "cuda:1", torch.device("cuda", 1) or 1 means; None for what is no GPU."""
    if isinstance(device, bool) or device is None:
        return None
    if isinstance(device, int):
        return checked(device)
    if not isinstance(device, (str, torch.device)) or not str(device).startswith("cuda"):
        return None
    return checked(torch.device(device).index)


def gpu_of(card: Tensor) -> int:
    """The number of the GPU that this tensor is on."""
    if gpu_of_storage and isinstance(card, CardTensor):
        known = gpu_of_storage.get(card._raw.untyped_storage()._cdata)
        if known is not None:
            return known[1]
    return current if home_gpu is None else home_gpu


def put(made: Any, index: int | None) -> Any:
    """What an operation has made is on GPU `index`."""
    if index is not None and (index != home_gpu or gpu_of_storage):
        for leaf in tree_iter(made):
            if isinstance(leaf, CardTensor):
                _mark(leaf._raw.untyped_storage(), index)
    return made


def _mark(storage: torch.UntypedStorage, index: int) -> None:
    global home_gpu
    if home_gpu is None:
        home_gpu = index
    key = storage._cdata
    if index == home_gpu:
        gpu_of_storage.pop(key, None)
        return
    if not gpu_of_storage:
        rank_notes.note_once("not rehearsed", name="two_gpus", site=call_site())
        _compare()
    gpu_of_storage[key] = weakref.ref(storage, lambda _: gpu_of_storage.pop(key, None)), index


@contextlib.contextmanager
def chosen(index: int | None) -> Iterator[None]:
    global current
    before, current = current, current if index is None else index
    try:
        yield
    finally:
        current = before


_usual = None


def _compare() -> None:
    """From now on, every operation compares the numbers of its tensors."""
    global _usual
    if _usual is not None:
        return
    _usual = CardTensor.__torch_dispatch__

    def dispatch(cls, func, types, args=(), kwargs=None):
        if not gpu_of_storage:
            return _usual(func, types, args, kwargs)
        inside = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, CardTensor)]
        found = sorted({gpu_of(card) for card in inside}, reverse=True)
        if len(found) > 1 and func not in CROSSING and not func._schema.name.startswith("c10d::"):
            first, second = (f"cuda:{index}" for index in found[:2])
            raise_or_defer(
                RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"{first} and {second}!"
                )
            )
        made = _usual(func, types, args, kwargs)
        if found:
            old = {card._raw.untyped_storage()._cdata for card in inside}
            new = [
                x for x in tree_iter(made) if isinstance(x, CardTensor) and x._raw.untyped_storage()._cdata not in old
            ]
            put(new, gpu_of(inside[0]))
        return made

    CardTensor.__torch_dispatch__ = classmethod(dispatch)
