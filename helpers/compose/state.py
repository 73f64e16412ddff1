"""Lists the tensors that a rank of a Trainer stores, under the plain model's names, and gathers the full state_dict.

TensorNames     the names, shapes and splits (over tp, or of experts over ep) of the model before it was sharded
stored_pieces   the ranges of tensors on this rank, with the optimizer's key for each: what a checkpoint saves
full_state      every tensor of the model, unsharded, on every rank

The functions read from the trainer: plan (its axes and the ZeRO stage), axes (process groups, and this rank's index on
each axis), names (TensorNames), local_model (this rank's weights) and optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.tensor_parallel.splits import Split, gather_full_tensor


class TensorNames:
    """The names, full shapes and dtypes of the plain model's tensors, and how tp or ep splits each.

    A tied tensor has several names; `first` maps each of them to the one that stands for it. `of` maps the id of a
    tensor on this rank to that name, once `record_splits` has run.
    """

    def __init__(self, model: nn.Module):
        state = model.state_dict(keep_vars=True)
        seen: dict[int, str] = {}
        # setdefault returns the name that the tensor had first
        self.first = {name: seen.setdefault(id(tensor), name) for name, tensor in state.items()}
        self.shapes = {name: tensor.shape for name, tensor in state.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in state.items()}
        self.splits: dict[str, Split] = {}

    def record_splits(self, model: nn.Module) -> None:
        """Remember the split of each tensor and its name. Call it after the model was sharded, before it is wrapped."""
        state = model.state_dict(keep_vars=True)
        # reversed, so that the first of several names wins
        self.of = {id(tensor): self.first[name] for name, tensor in reversed(state.items())}
        for name in state:  # a sharded module has `splits`: by parameter name, which entries each rank stores
            path, _, leaf = name.rpartition(".")
            if split := getattr(model.get_submodule(path), "splits", {}).get(leaf):
                self.splits[self.first[name]] = split


def local_tensors(trainer) -> dict[str, Tensor]:
    """Return this rank's tensors (tp shards stay shards) by the plain model's first names; Zero3 first gathers them."""
    if trainer.plan.zero == 3:
        state, names = trainer.local_model.full_state(), trainer.names.first
        return {name: tensor for name, tensor in state.items() if names[name] == name}
    return {name: tensor.detach() for name, tensor in named_tensors(trainer).items()}


def named_tensors(trainer) -> dict[str, Tensor]:
    """Return this rank's parameters and buffers by the plain model's first names, without communication.

    Under Zero3 these are freed weights, whose values must not be read.
    """
    tensors, names = trainer.local_model.state_dict(keep_vars=True).values(), trainer.names.of
    return {names[id(tensor)]: tensor for tensor in tensors if id(tensor) in names}


@torch.no_grad()
def full_state(trainer) -> dict[str, Tensor]:
    """Return the plain model's state_dict on every rank.

    Each tensor is all-gathered over tp or ep where it is split, then broadcast over pp from the first stage that stores
    it.
    """
    local, names = local_tensors(trainer), trainer.names
    pp = trainer.axes.group("pp")
    names_of_stage: list = [None] * trainer.plan.pp
    dist.all_gather_object(names_of_stage, list(local), group=pp)
    full, device = {}, next((tensor.device for tensor in local.values()), torch.device("cpu"))
    for name in dict.fromkeys(names.first.values()):  # a tied tensor once
        stage = next(stage for stage, stored in enumerate(names_of_stage) if name in stored)  # the first that has it
        if name in local and trainer.axes.coordinates["pp"] == stage:
            split = names.splits.get(name)
            if split is None:
                full[name] = local[name].clone()
            else:
                full[name] = gather_full_tensor(local[name], split, trainer.axes.group(split.axis))
        else:
            full[name] = torch.empty(names.shapes[name], dtype=names.dtypes[name], device=device)
        if trainer.plan.pp > 1:
            dist.broadcast(full[name], group_src=stage, group=pp)
    return {name: full[first] for name, first in names.first.items()}


@dataclass
class StoredPiece:
    """A range of a tensor that this rank stores."""

    name: str  # of the tensor in the plain model
    flat: Tensor  # the elements, a 1-D view of the memory that training uses
    start: int  # the first element of the range in the flattened tensor, or in this rank's flattened shard with a split
    split: Split | None  # how tensor or expert parallelism splits the tensor, if one does
    optimizer_key: Tensor | None  # the tensor under which the optimizer stores its state; None if it does not update it
    sharded: bool  # ZeRO shards the tensor over dp x cp


def stored_pieces(trainer) -> Iterator[StoredPiece]:
    """Yield every piece of the model that this rank stores; tied tensors count once."""
    names, seen = trainer.names, set()
    for name, flat, start, key in _optimizer_pieces(trainer):
        seen.add(name)
        yield StoredPiece(name, flat, start, names.splits.get(name), key, trainer.plan.zero > 0)
    for name, tensor in named_tensors(trainer).items():
        if name not in seen:
            # all of it (from 0); no optimizer updates it (None), and ZeRO does not shard it (False)
            yield StoredPiece(name, tensor.detach().view(-1), 0, names.splits.get(name), None, False)


def _optimizer_pieces(trainer) -> Iterator[tuple[str, Tensor, int, Tensor]]:
    """Yield (name, flat view, start, optimizer key) of what the optimizer updates; see StoredPiece."""
    names, zero = trainer.names, trainer.plan.zero
    if zero == 3:
        for name, piece, start in trainer.local_model.stored_pieces():
            yield names.first[name], piece.detach(), start, piece
    elif zero:
        for piece in trainer.optimizer.pieces:
            yield names.of[id(piece.entry.parameter)], piece.tensor.detach(), piece.where.start, piece.tensor
    else:
        for parameter in trainer.optimizer.param_groups[0]["params"]:  # a Trainer makes exactly one group
            yield names.of[id(parameter)], parameter.detach().view(-1), 0, parameter


def torch_optimizer(trainer) -> torch.optim.Optimizer:
    """Return the torch optimizer itself, which under ZeRO 1 and 2 is inside the trainer's optimizer."""
    return trainer.optimizer.optimizer if trainer.plan.zero in (1, 2) else trainer.optimizer


def is_first_owner(trainer, piece: StoredPiece) -> bool:
    """Return whether no rank before this one stores the same values, so that this rank is the one that saves them.

    Ranks of dp x cp store the same values unless ZeRO shards the tensor (of experts, only those of edp), tp ranks do
    where tp does not split the tensor, and stages do where they share a tied weight. trainer.tied: the stages that
    share a weight, by its name.
    """
    index = trainer.axes.coordinates  # of this rank on each axis
    split_axis = None if piece.split is None else piece.split.axis
    replicas = trainer.axes.group("edp") if split_axis == "ep" else trainer.axes.group("dp", "cp")
    on_earlier_stage = index["pp"] > min(trainer.tied.get(piece.name, [index["pp"]]))
    on_earlier_replica = dist.get_rank(replicas) > 0 and not piece.sharded
    on_earlier_tp_rank = index["tp"] > 0 and split_axis != "tp"
    return not (on_earlier_stage or on_earlier_replica or on_earlier_tp_rank)
