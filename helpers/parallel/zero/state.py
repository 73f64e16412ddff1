"""Lists what a rank of any ZeRO stage stores, under the plain model's names, and gathers the full state_dict again.

    local_shards   this rank's parameter ranges, unsharded tensors and optimizer: what a checkpoint writes
    full_state     all tensors, unsharded, on every rank (stage 3)

A ShardRange is a range of one flattened parameter, with its weights in `tensor`. `local` is the tensor that the
optimizer steps on: the same tensor, or its float32 master. A unit (GatheredUnit) is a group of parameters of a Zero3
that are gathered together. sharded_checkpoint.py and the Trainer's checkpoint use this file.
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
    """A range of one flattened parameter, which this rank stores."""

    name: str
    shape: torch.Size  # of the full parameter
    start: int  # the first element of the range
    tensor: Tensor  # the elements, 1-D; none where this rank stores nothing of the parameter
    local: Tensor | None = None  # what the optimizer steps on: `tensor` or its float32 master; None without optimizer

    @property
    def stop(self) -> int:
        return self.start + self.tensor.numel()


@dataclass
class LocalShards:
    """What a rank saves."""

    ranges: list[ShardRange]  # of sharded parameters
    unsharded: dict[str, Tensor]  # tensors that every rank stores in full, by name
    shapes: dict[str, torch.Size]  # of every sharded parameter, even if this rank stores nothing of it
    groups: list[tuple[dict, list[str]]]  # for each parameter group: its options, and the names of its parameters
    optimizer: torch.optim.Optimizer | None  # the torch optimizer itself

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
    """Return what this rank stores of a Zero1 or Zero2. An entry is a trainable parameter, a piece its part here."""
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
    """Return what this rank stores of a Zero3, whose optimizer steps on the ranges' own tensors."""
    ranges = list(_ranges_of_units(zero.units))
    shapes, buffers = {each.name: each.shape for each in ranges}, dict(zero.module.named_buffers())
    if optimizer is None:
        return LocalShards(ranges, buffers, shapes, [], None)
    inner, by_id = torch_optimizer_of(optimizer), {id(each.tensor): each for each in ranges}
    # names are sorted as in the model, because units are in another order
    position = {name: index for index, (name, _) in enumerate(zero.module.named_parameters())}
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
    """Yield this rank's range of every parameter; it has no elements where the shard has none of the parameter."""
    for unit in units:
        starts = {piece.index: piece.start for piece in unit.layout.pieces()}
        for index, (name, tensor) in enumerate(unit.named_pieces()):
            yield ShardRange(name, unit.layout.shapes[index], starts.get(index, 0), tensor)


def torch_optimizer_of(optimizer) -> torch.optim.Optimizer:
    """Return the torch optimizer inside ZeRO's, MasterWeights or OffloadedOptimizer."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else torch_optimizer_of(optimizer.optimizer)


def _locals(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors that the optimizer steps on, in its order."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _options(optimizer: torch.optim.Optimizer) -> list[dict]:
    """Return the options of each parameter group, such as lr."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _unsharded(model: nn.Module | None, sharded: set[int]) -> dict[str, Tensor]:
    """Return buffers, and parameters that are in no shard. sharded: the ids of those that are."""
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
    for name, tensor in module.state_dict(keep_vars=True).items():  # keep_vars: it does not read freed weights
        if not isinstance(tensor, nn.Parameter):
            state[name] = tensor.detach().clone()
    return state
