"""From shards to a plain model's state_dict, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from helpers.parallel.zero.gathered import GatheredUnit


def full_state(units: Sequence[GatheredUnit], module: nn.Module) -> dict[str, Tensor]:
    """Whole tensors under all names of the plain model, tied ones included, on every rank. One all_gather a unit."""
    state = {}
    for unit in units:
        for use, whole in zip(unit.uses, unit.full(), strict=True):
            state.update(dict.fromkeys(use.names, whole.clone()))
    return state | {name: buffer.detach().clone() for name, buffer in persistent_buffers(module).items()}


@torch.no_grad()
def load_full_state(units: Sequence[GatheredUnit], module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The reverse; sends nothing. Raises ValueError for names or shapes that do not fit, before anything is changed."""
    wanted = {name: shape for unit in units for name, shape in zip(unit.names, unit.layout.shapes, strict=True)}
    wanted |= {name: buffer.shape for name, buffer in persistent_buffers(module).items()}
    for name, shape in wanted.items():
        found = tuple(state[name].shape) if name in state else "nothing"
        if found != tuple(shape):
            raise ValueError(
                f"load_full_state wants {name} of shape {tuple(shape)} and found {found}: give the state_dict of the "
                "same model"
            )
    for unit in units:
        unit.load([state[name] for name in unit.names])
    for name, buffer in persistent_buffers(module).items():
        buffer.copy_(state[name])


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Those that a state_dict has."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, owner in module.named_modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None and name not in owner._non_persistent_buffers_set
    }
