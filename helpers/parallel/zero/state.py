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

MASTER = "master"  # the key of float32 master weights in a checkpoint, next to the optimizer's own state


@dataclass
class ShardRange:
    """Elements start .. start + tensor.numel() of flattened parameter `name`. tensor: 1-D, perhaps without elements."""

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
    """What a rank saves: its ranges of sharded parameters, unsharded tensors, and each parameter group's options.

    unsharded: tensors that every rank stores in full. shapes: of every sharded parameter of the model, even if this
    rank stores nothing of it. groups: (options, names of parameters).
    """

    ranges: list[ShardRange]
    unsharded: dict[str, Tensor]
    shapes: dict[str, torch.Size]
    groups: list[tuple[dict, list[str]]]
    optimizer: torch.optim.Optimizer | None

    def state_of(self, shard_range: ShardRange) -> dict:
        """Return the optimizer's state of a range, and its master if it has one."""
        local = shard_range.local
        if local is None:
            return {}
        master = {} if local is shard_range.tensor else {MASTER: local.detach()}
        return self.optimizer.state.get(local, {}) | master


def local_shards(sharded: object, optimizer: object = None, model: nn.Module | None = None) -> LocalShards:
    """Return what this rank stores of a Zero1 or a Zero2 (both are optimizers), or of a Zero3 with its optimizer.

    model: for Zero1 and Zero2 the plain model, which gives names, buffers and frozen parameters.
    Raises ValueError for anything else, and for an optimizer that updates other tensors than the shards.
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
    ranges = [
        ShardRange(name_of[id(piece.entry)], piece.entry.parameter.shape, piece.where.start, piece.tensor, local)
        for piece, local in zip(zero.pieces, _locals(inner), strict=True)
    ]
    members = [[name_of[id(e)] for e in zero.entries if e.group == number] for number in range(len(inner.param_groups))]
    sharded = {id(entry.parameter) for entry in zero.entries}
    shapes = {name_of[id(entry)]: entry.parameter.shape for entry in zero.entries}
    groups = list(zip(_options(inner), members, strict=True))
    return LocalShards(ranges, _unsharded(model, sharded), shapes, groups, inner)


def _of_model(zero, optimizer: object) -> LocalShards:
    ranges = list(_ranges_of_units(zero.units))
    shapes, buffers = {each.name: each.shape for each in ranges}, dict(zero.module.named_buffers())
    if optimizer is None:
        return LocalShards(ranges, buffers, shapes, [], None)
    inner, by_id = torch_optimizer_of(optimizer), {id(each.tensor): each for each in ranges}
    position = {
        name: index for index, (name, _) in enumerate(zero.module.named_parameters())
    }  # units are ordered otherwise
    members: list[list[str]] = []
    for group in inner.param_groups:
        in_group = [by_id.get(id(tensor)) for tensor in group["params"]]
        if None in in_group:
            raise ValueError(
                f"{type(optimizer).__name__} steps on tensors that are not shards of this model: build it on "
                "model.parameters() after Zero3(model, …)"
            )
        for each in in_group:
            each.local = each.tensor
        members.append(sorted((each.name for each in in_group), key=position.get))
    return LocalShards(ranges, buffers, shapes, list(zip(_options(inner), members, strict=True)), inner)


def _ranges_of_units(units) -> Iterator[ShardRange]:
    for unit in units:
        starts = {piece.index: piece.start for piece in unit.layout.pieces()}
        for index, (name, tensor) in enumerate(unit.named_pieces()):
            yield ShardRange(name, unit.layout.shapes[index], starts.get(index, 0), tensor)


def torch_optimizer_of(optimizer) -> torch.optim.Optimizer:
    """Return the torch optimizer inside ZeRO's, MasterWeights or OffloadedOptimizer."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else torch_optimizer_of(optimizer.optimizer)


def _locals(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _options(optimizer: torch.optim.Optimizer) -> list[dict]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _unsharded(model: nn.Module | None, sharded: set[int]) -> dict[str, Tensor]:
    """Return buffers, and parameters that are in no shard."""
    if model is None:
        return {}
    frozen = {name: p.detach() for name, p in model.named_parameters() if id(p) not in sharded}
    return frozen | dict(model.named_buffers())


def full_state(units: Sequence[GatheredUnit], module: nn.Module) -> dict[str, Tensor]:
    """Return the plain model's state_dict on every rank, tied names included. It sends one all-gather per unit."""
    state = {}
    for unit in units:
        for use, full in zip(unit.uses, unit.full(), strict=True):
            state.update(dict.fromkeys(use.names, full.clone()))
    return state | {name: buffer.detach().clone() for name, buffer in persistent_buffers(module).items()}


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a state_dict has."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, owner in module.named_modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None and name not in owner._non_persistent_buffers_set
    }
