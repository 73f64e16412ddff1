"""Lists what a rank of any ZeRO stage stores, under the plain model's names, and gathers the full state_dict again.

    local_shards   this rank's parameter ranges, unsharded tensors and optimizer: what a checkpoint writes
    full_state     all tensors, unsharded, on every rank (stage 3)

A ShardRange is a range of one flattened parameter, with its weights in `tensor`. `local` is the tensor that the
optimizer steps on: the same tensor, or its float32 master.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from helpers.parallel.zero.gathered_unit import GatheredUnit

MASTER = "master"  # the key of fp32 master weights beside the optimizer's own state


@dataclass
class ShardRange:
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
class LocalShards:
    """Everything that a rank saves: its parts, what every rank holds whole, and the options of each parameter group.

    shapes: of every parameter of the model, also of those that lie elsewhere. groups: (options, names of parameters).
    """

    parts: list[ShardRange]
    whole: dict[str, Tensor]
    shapes: dict[str, torch.Size]
    groups: list[tuple[dict, list[str]]]
    optimizer: torch.optim.Optimizer | None

    def state_of(self, part: ShardRange) -> dict:
        """The optimizer's state of a part, and its master if it has one."""
        if part.local is None:
            return {}
        master = {} if part.local is part.tensor else {MASTER: part.local.detach()}
        return self.optimizer.state.get(part.local, {}) | master


def local_shards(sharded: object, optimizer: object = None, model: nn.Module | None = None) -> LocalShards:
    """What this rank owns of a Zero1, a Zero2 (both are their own optimizer) or a Zero3 with its optimizer.

    model: beside Zero1 and Zero2, to save buffers and frozen parameters, too, and to name everything.
    Raises ValueError for anything else, or an optimizer that steps on other tensors than the shards.
    """
    if hasattr(sharded, "pieces") and hasattr(sharded, "entries"):
        return _of_optimizer(sharded, model)
    if hasattr(sharded, "units"):
        return _of_model(sharded, optimizer)
    raise ValueError(f"got a {type(sharded).__name__}; give a Zero1, a Zero2, or a Zero3 with its optimizer")


def _of_optimizer(zero, model: nn.Module | None) -> LocalShards:
    names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
    name_of = {id(entry): names.get(id(entry.parameter), entry.name) for entry in zero.entries}
    inner = torch_optimizer_of(zero.optimizer)
    parts = [
        ShardRange(name_of[id(piece.entry)], piece.entry.parameter.shape, piece.where.start, piece.tensor, local)
        for piece, local in zip(zero.pieces, _locals(inner), strict=True)
    ]
    members = [[name_of[id(e)] for e in zero.entries if e.group == number] for number in range(len(inner.param_groups))]
    sharded = {id(entry.parameter) for entry in zero.entries}
    shapes = {name_of[id(entry)]: entry.parameter.shape for entry in zero.entries}
    return LocalShards(parts, _whole(model, sharded), shapes, list(zip(_options(inner), members, strict=True)), inner)


def _of_model(zero, optimizer: object) -> LocalShards:
    parts = list(_parts_of_units(zero.units))
    shapes = {part.name: part.shape for part in parts}
    whole = {name: buffer for name, buffer in zero.module.named_buffers()}
    if optimizer is None:
        return LocalShards(parts, whole, shapes, [], None)
    inner, by_id = torch_optimizer_of(optimizer), {id(part.tensor): part for part in parts}
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
    return LocalShards(parts, whole, shapes, list(zip(_options(inner), members, strict=True)), inner)


def _parts_of_units(units) -> Iterator[ShardRange]:
    for unit in units:
        starts = {piece.index: piece.start for piece in unit.layout.pieces()}
        for index, (name, tensor) in enumerate(unit.named_pieces()):
            yield ShardRange(name, unit.layout.shapes[index], starts.get(index, 0), tensor)


def torch_optimizer_of(optimizer) -> torch.optim.Optimizer:
    """The torch optimizer inside MasterWeights or OffloadedOptimizer."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else torch_optimizer_of(optimizer.optimizer)


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


def full_state(units: Sequence[GatheredUnit], module: nn.Module) -> dict[str, Tensor]:
    """Whole tensors under all names of the plain model, tied ones included, on every rank. One all_gather a unit."""
    state = {}
    for unit in units:
        for use, whole in zip(unit.uses, unit.full(), strict=True):
            state.update(dict.fromkeys(use.names, whole.clone()))
    return state | {name: buffer.detach().clone() for name, buffer in persistent_buffers(module).items()}


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Those that a state_dict has."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, owner in module.named_modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None and name not in owner._non_persistent_buffers_set
    }
