"""Which pieces of the whole model a trainer holds on this rank, whatever its plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.compose.state import named_tensors
from helpers.parallel.tensor_parallel.tensor_plan import Cut
from helpers.parallel.zero.shard_parts import innermost, owned


@dataclass
class Held:
    """Elements start … of this rank's flattened part of tensor `name`, in `flat`, a view.

    owner: the optimizer keeps its state under it; None for what it does not step on. sharded: over dp, by ZeRO.
    """

    name: str
    flat: Tensor
    start: int
    cut: Cut | None
    owner: Tensor | None
    sharded: bool


def held(trainer) -> Iterator[Held]:
    """Every tensor of the model of which this rank holds something, tied ones once."""
    names, seen = trainer.names, set()
    for name, flat, start, owner in _of_optimizer(trainer):
        seen.add(name)
        yield Held(name, flat, start, names.cuts.get(name), owner, trainer.plan.zero > 0)
    for name, tensor in named_tensors(trainer).items():
        if name not in seen:
            yield Held(name, tensor.detach().view(-1), 0, names.cuts.get(name), None, False)


def _of_optimizer(trainer) -> Iterator[tuple[str, Tensor, int, Tensor]]:
    names, zero = trainer.names, trainer.plan.zero
    if zero == 3:
        for part in owned(trainer.held, trainer.optimizer).parts:
            yield names.first[part.name], part.tensor.detach(), part.start, part.local
    elif zero:
        for piece in trainer.optimizer.pieces:
            yield names.of[id(piece.entry.parameter)], piece.tensor.detach(), piece.where.start, piece.tensor
    else:
        for parameter in trainer.optimizer.param_groups[0]["params"]:
            yield names.of[id(parameter)], parameter.detach().view(-1), 0, parameter


def inner(trainer) -> torch.optim.Optimizer:
    """The torch optimizer that steps."""
    return innermost(trainer.optimizer)


def is_first(trainer, piece: Held) -> bool:
    """Whether no rank before this one holds the same: copies over dp, what tp left whole, a weight that stages tie."""
    place = trainer.axes.place
    earlier_stage = any(place["pp"] > min(owners) for name, owners in trainer.tied.items() if name == piece.name)
    return not (earlier_stage or (place["dp"] > 0 and not piece.sharded) or (place["tp"] > 0 and piece.cut is None))
