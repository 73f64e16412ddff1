"""What holds a card's memory, asked in the moment in which it is full."""

from __future__ import annotations

import gc

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.devices.cards.tensor import Card, memory


def by_kind() -> dict[str, int]:
    """Bytes of parameters, gradients, the optimizer's state, and of all the rest: activations and what is on its way.

    Whatever has the script's parameters is found among Python's objects; a storage counts once.
    """
    parameters, states = [], []
    for one in gc.get_objects():
        if isinstance(one, torch.nn.Parameter):
            parameters.append(one)
        elif isinstance(one, torch.optim.Optimizer):
            states += [leaf for leaf in tree_iter(dict(one.state)) if isinstance(leaf, Tensor)]
    states = [one for one in states if not isinstance(one, torch.nn.Parameter)]
    known: set[int] = set()
    found = {
        "parameters": _bytes(parameters, known),
        "gradients": _bytes([one.grad for one in parameters if one.grad is not None], known),
        "optimizer state": _bytes(states, known),
    }
    return found | {"activations and others": memory.held - sum(found.values())}


def _bytes(tensors: list[Tensor], known: set[int]) -> int:
    total = 0
    for one in tensors:
        inside = getattr(one, "_local_tensor", one)  # a DTensor's
        if isinstance(inside, Card) and memory.holds(storage := inside._raw.untyped_storage()):
            if storage._cdata not in known:
                known.add(storage._cdata)
                total += storage.nbytes()
    return total
