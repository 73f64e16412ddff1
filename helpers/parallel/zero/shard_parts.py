"""Which numbers this rank owns, by the names of the plain model: what a checkpoint needs to know of any ZeRO stage.

A part is a range of one flattened parameter, its weights in `tensor`. `local` is the tensor that the optimizer steps
on: the same one, or its fp32 master.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MASTER = "master"  # the key of fp32 master weights beside the optimizer's own state


@dataclass
class Part:
    """Elements start .. start + tensor.numel() of flattened parameter `name`. tensor: 1-D, perhaps of no elements."""

    name: str
    shape: torch.Size
    start: int
    tensor: Tensor
    local: Tensor | None = None

    @property
    def stop(self) -> int:
        return self.start + self.tensor.numel()


@dataclass
class Owned:
    """Everything that a rank saves: its parts, what every rank holds whole, and the options of each parameter group.

    shapes: of every parameter of the model, also of those that lie elsewhere. groups: (options, names of parameters).
    """

    parts: list[Part]
    whole: dict[str, Tensor]
    shapes: dict[str, torch.Size]
    groups: list[tuple[dict, list[str]]]
    optimizer: torch.optim.Optimizer | None

    def state_of(self, part: Part) -> dict:
        """The optimizer's state of a part, and its master if it has one."""
        if part.local is None:
            return {}
        master = {} if part.local is part.tensor else {MASTER: part.local.detach()}
        return self.optimizer.state.get(part.local, {}) | master


def owned(sharded: object, optimizer: object = None, model: nn.Module | None = None) -> Owned:
    """What this rank owns of a Zero1, a Zero2 (both are their own optimizer) or a Zero3 with its optimizer.

    model: beside Zero1 and Zero2, to save buffers and frozen parameters, too, and to name everything.
    Raises ValueError for anything else, or an optimizer that steps on other tensors than the shards.
    """
    if hasattr(sharded, "pieces") and hasattr(sharded, "entries"):
        return _of_optimizer(sharded, model)
    if hasattr(sharded, "units"):
        return _of_model(sharded, optimizer)
    raise ValueError(f"got a {type(sharded).__name__}; give a Zero1, a Zero2, or a Zero3 with its optimizer")


def _of_optimizer(zero, model: nn.Module | None) -> Owned:
    names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
    name_of = {id(entry): names.get(id(entry.parameter), entry.name) for entry in zero.entries}
    inner = innermost(zero.optimizer)
    parts = [
        Part(name_of[id(piece.entry)], piece.entry.parameter.shape, piece.where.start, piece.tensor, local)
        for piece, local in zip(zero.pieces, _locals(inner), strict=True)
    ]
    members = [[name_of[id(e)] for e in zero.entries if e.group == number] for number in range(len(inner.param_groups))]
    sharded = {id(entry.parameter) for entry in zero.entries}
    shapes = {name_of[id(entry)]: entry.parameter.shape for entry in zero.entries}
    return Owned(parts, _whole(model, sharded), shapes, list(zip(_options(inner), members, strict=True)), inner)


def _of_model(zero, optimizer: object) -> Owned:
    parts = list(_parts_of_units(zero.units))
    shapes = {part.name: part.shape for part in parts}
    whole = {name: buffer for name, buffer in zero.module.named_buffers()}
    if optimizer is None:
        return Owned(parts, whole, shapes, [], None)
    inner, by_id = innermost(optimizer), {id(part.tensor): part for part in parts}
    place = {name: index for index, (name, _) in enumerate(zero.module.named_parameters())}  # units come in another
    members: list[list[str]] = []
    for group in inner.param_groups:
        found = [by_id.get(id(tensor)) for tensor in group["params"]]
        if None in found:
            raise ValueError(
                f"{type(optimizer).__name__} steps on tensors that are not shards of this model: build it on "
                "model.parameters() after Zero3(model, …)"
            )
        for part in found:
            part.local = part.tensor
        members.append(sorted((part.name for part in found), key=lambda name: place[name]))
    return Owned(parts, whole, shapes, list(zip(_options(inner), members, strict=True)), inner)


def _parts_of_units(units) -> Iterator[Part]:
    for unit in units:
        starts = {piece.index: piece.start for piece in unit.layout.pieces()}
        for index, (name, tensor) in enumerate(unit.named_pieces()):
            yield Part(name, unit.layout.shapes[index], starts.get(index, 0), tensor)


def innermost(optimizer) -> torch.optim.Optimizer:
    """The torch optimizer inside MasterWeights or OffloadedOptimizer."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else innermost(optimizer.optimizer)


def _locals(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _options(optimizer: torch.optim.Optimizer) -> list[dict]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _whole(model: nn.Module | None, sharded: set[int]) -> dict[str, Tensor]:
    """Buffers, and parameters that are in no shard."""
    if model is None:
        return {}
    frozen = {name: p.detach() for name, p in model.named_parameters() if id(p) not in sharded}
    return frozen | dict(model.named_buffers())
