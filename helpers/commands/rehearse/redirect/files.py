"""torch.load: a file that remembers a GPU, or is asked to come to one."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from helpers.commands.rehearse.redirect import gpus

_remembered: list[int] = []  # GPUs that storages of the file came from: a file of real GPUs


class _Probe:
    """What a `map_location` function is given for a storage: it says whether it would go to a GPU."""

    def cuda(self, device=None, non_blocking: bool = False) -> int:
        return gpus.checked(device if isinstance(device, int) else gpus.number(device))

    def cpu(self) -> _Probe:
        return self


def replace() -> None:
    usual = torch.load
    torch.load = torch.serialization.load = functools.wraps(usual)(functools.partial(_load, usual))
    torch.serialization.register_package(5, lambda storage: None, _restore)


def _load(usual, f, map_location=None, *args, **kwargs) -> Any:
    index = gpus.number(map_location)
    if callable(map_location):
        chosen = map_location(_Probe(), "cuda:0")
        index, map_location = (chosen, None) if isinstance(chosen, int) else (None, "cpu")
    _remembered.clear()
    loaded = usual(f, "cpu" if index is not None else map_location, *args, **kwargs)
    if index is None and _remembered and map_location is None:
        index = gpus.checked(_remembered[0])
    return loaded if index is None else tree_map(functools.partial(_moved, torch.device("cuda", index)), loaded)


def _moved(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, (Tensor, torch.nn.Module)) else value


def _restore(storage, location: str):
    """A storage of a real GPU stays on the CPU, until all of the file is there."""
    if not location.startswith("cuda"):
        return None
    _remembered.append(torch.device(location).index or 0)
    return storage
