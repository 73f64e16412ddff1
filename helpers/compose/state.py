"""Whole tensors again, under the names of the model before it was cut."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.tensor_parallel.copies import gather_whole
from helpers.parallel.tensor_parallel.tensor_plan import Cut


class Names:
    """The names of the plain model, whole shapes, and how tp cut each: what outlives the cutting.

    A tied tensor has several names; `first` is the one that stands for it.
    """

    def __init__(self, model: nn.Module):
        state = model.state_dict(keep_vars=True)
        seen: dict[int, str] = {}
        self.first = {name: seen.setdefault(id(tensor), name) for name, tensor in state.items()}
        self.shapes = {name: tensor.shape for name, tensor in state.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in state.items()}
        self.cuts: dict[str, Cut] = {}

    def cut(self, model: nn.Module) -> None:
        """After tp: remember each tensor's cut, and which tensor has which name."""
        state = model.state_dict(keep_vars=True)
        self.of = {id(tensor): self.first[name] for name, tensor in reversed(state.items())}
        for name in state:
            path, _, leaf = name.rpartition(".")
            if cut := getattr(model.get_submodule(path), "cuts", {}).get(leaf):
                self.cuts[self.first[name]] = cut


def own_tensors(trainer) -> dict[str, Tensor]:
    """What this rank holds, or its part of a tp group, under the plain model's first names; Zero3's is gathered."""
    if trainer.plan.zero == 3:
        state, names = trainer.held.full_state(), trainer.names.first
        return {name: tensor for name, tensor in state.items() if names[name] == name}
    return {name: tensor.detach() for name, tensor in named_tensors(trainer).items()}


def named_tensors(trainer) -> dict[str, Tensor]:
    """This rank's parameters and buffers by the plain model's first names; those of Zero3 are freed: do not touch."""
    tensors, names = trainer.held.state_dict(keep_vars=True).values(), trainer.names.of
    return {names[id(tensor)]: tensor for tensor in tensors if id(tensor) in names}


@torch.no_grad()
def full_state(trainer) -> dict[str, Tensor]:
    """For each tensor: an all-gather over tp where it is cut, then a broadcast from the stage that holds it."""
    own, names = own_tensors(trainer), trainer.names
    tp, pp = trainer.axes.group("tp"), trainer.axes.group("pp")
    holders: list = [None] * trainer.plan.pp
    dist.all_gather_object(holders, list(own), group=pp)
    whole = {}
    for name in (name for name, first in names.first.items() if name == first):
        stage = next(place for place, held in enumerate(holders) if name in held)
        if name in own and trainer.axes.place["pp"] == stage:
            cut = names.cuts.get(name)
            whole[name] = own[name].clone() if cut is None else gather_whole(own[name], cut, tp)
        else:
            whole[name] = torch.empty(names.shapes[name], dtype=names.dtypes[name], device=_device(own))
        if trainer.plan.pp > 1:
            dist.broadcast(whole[name], group_src=stage, group=pp)
    return {name: whole[first] for name, first in names.first.items()}


def _device(tensors: dict[str, Tensor]) -> torch.device:
    return next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
