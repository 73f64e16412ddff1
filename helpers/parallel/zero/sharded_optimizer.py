"""Runs an ordinary torch optimizer on this rank's shards alone: the common base of ZeRO stages 1 and 2.

Parameters become views of flat vectors (flat_shards.py), and each vector is split into N shards. The optimizer inside
gets as its parameters the pieces that lie in this rank's shard. Its state therefore exists once on all ranks together,
and the options of a parameter group, a parameter without a gradient and a step counter mean what they mean in one
process. Legend: N = ranks.

A shard ends inside tensors, so the optimizer must be elementwise: the new value of an element may depend on that
element's gradient and state alone. SGD, Adam, AdamW, RMSprop and most others are. Adafactor (sums over rows and
columns), Muon (orthogonalises full matrices), LARS and LAMB (norms of full tensors) and LBFGS (inner products over all
parameters) are not. No list can know an optimizer of your own, so `check_elementwise` tries it on a small matrix.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.shared.buckets import bucket_positions, without_sync
from helpers.parallel.shared.clip import gradient_norm, scale_to
from helpers.parallel.shared.collectives import check_same_parameters, share_usage
from helpers.parallel.shared.placement import Placement, Placements, place, placements_of, replicas_of
from helpers.parallel.zero.flat_shards import FlatShards, ShardPiece, flatten_parameters

# `check_elementwise` runs some steps on a matrix of this size, and on flat parts of the same matrix. The parts are the
# elements 0-4, 5-12 and 13-23, which end inside rows, as shards do.
STEPS, ROWS, COLUMNS = 3, 4, 6
EDGES = (0, 5, 13, 24)


def check_elementwise(
    optimizer_class: type[torch.optim.Optimizer],
    groups: Sequence[dict],
    options: dict,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Raise ValueError, with the reason, if an optimizer's step on parts differs from its step on full tensors.

    groups: the options of each parameter group, without "params"; options: those of the optimizer. It changes nothing
    of the caller's and takes some milliseconds.
    """
    name = getattr(optimizer_class, "__name__", None) or repr(optimizer_class)
    if _needs_closure(optimizer_class):
        raise ValueError(_refusal(name, "its step() needs a closure, so it searches along all parameters at once"))
    full = _trial(optimizer_class, groups, options, [(0, ROWS * COLUMNS)], dtype, device, flat=False)
    try:
        parts = _trial(optimizer_class, groups, options, list(pairwise(EDGES)), dtype, device)
    except Exception as error:
        raise ValueError(_refusal(name, f"it does not take a part of a tensor ({error})")) from error
    if not torch.allclose(full.double(), parts.double(), rtol=1e-3, atol=0):  # 1e-3: the trial may be in 16 bits
        raise ValueError(_refusal(name, "a step on the parts of a matrix gave other values than on the full matrix"))


def _needs_closure(optimizer_class: object) -> bool:
    """Return whether step() must get a function that computes the loss again, as LBFGS's."""
    step = getattr(optimizer_class, "step", None)
    closure = inspect.signature(step).parameters.get("closure") if step is not None else None
    return closure is not None and closure.default is inspect.Parameter.empty


def _refusal(name: str, reason: str) -> str:
    return (
        f"{name} is not elementwise: {reason}. A shard is a range of the flat parameters and ends inside tensors, so "
        "its rank cannot know what the step needs. Take an elementwise optimizer (SGD, Adam, AdamW, RMSprop, …)"
    )


def _trial(optimizer_class, groups, options, ranges, dtype, device, *, flat: bool = True) -> Tensor:
    """Run some steps on one matrix per parameter group, and return all values as one vector.

    ranges: the parts in which the optimizer gets each flattened matrix. flat=False: one part, as a matrix.
    """
    params = []  # for each group: its parts
    for index in range(len(groups)):
        matrix = _test_values(ROWS * COLUMNS, index, dtype, device)
        parts = [matrix[start:stop].clone() for start, stop in ranges]
        params.append([(part if flat else part.view(ROWS, COLUMNS)).requires_grad_() for part in parts])
    with_params = [{**group, "params": parts} for group, parts in zip(groups, params, strict=True)]
    optimizer = optimizer_class(with_params, **options)
    for step in range(STEPS):
        for index, parts in enumerate(params):
            # the seed gives each step and each of up to ten groups its own gradient
            gradient = _test_values(ROWS * COLUMNS, 10 * step + index + 1, dtype, device)
            for part, (start, stop) in zip(parts, ranges, strict=True):
                part.grad = gradient[start:stop].clone().view_as(part)
        optimizer.step()
    return torch.cat([part.reshape(-1) for parts in params for part in parts])


def _test_values(count: int, seed: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return irregular numbers between -1 and 1 without using torch's random generator (a common shader hash)."""
    positions = torch.arange(1, count + 1, dtype=torch.float64) * (seed + 1)
    return (torch.sin(positions * 12.9898) * 43758.5453).frac().to(dtype=dtype, device=device)


@dataclass
class TrainedParameter:
    """A trainable parameter, and whether it has a gradient in this step."""

    index: int  # its position among the trainable parameters
    name: str
    parameter: nn.Parameter
    group: int  # the index of its parameter group
    present: bool = False  # this rank has a gradient of it
    used: bool = True  # some rank has a gradient of it


@dataclass
class LocalPiece:
    """The part of one parameter that lies in this rank's shard."""

    entry: TrainedParameter
    where: ShardPiece  # start and stop in the flattened parameter, offset in the shard
    tensor: Tensor  # 1-D, a view of the weights in the shard: what the optimizer inside updates
    gradient: Tensor | None = None  # a view of the shard's gradient


class FlatVector:
    """Parameters that share a flat vector, this rank's shard of it, and the pieces of parameters in the shard.

    The ranks of `group` that have replicas of these parameters share the vector. layout (FlatShards) knows where each
    parameter lies in the vector, and sends shards.
    """

    def __init__(self, entries: Sequence[TrainedParameter], group: dist.ProcessGroup):
        self.entries = list(entries)
        parameters = [entry.parameter for entry in entries]
        self.group, replicas = group, replicas_of(parameters[0], group)
        self.layout = FlatShards(parameters, replicas)
        self.flat = flatten_parameters(parameters, self.layout)  # (N s,)
        dist.broadcast(self.flat, group_src=0, group=replicas)  # all replicas start equal
        self.shard = self.layout.shard_of(self.flat)  # (s,)
        self.pieces = [self._piece(entries[where.index], where) for where in self.layout.pieces()]

    def _piece(self, entry: TrainedParameter, where: ShardPiece) -> LocalPiece:
        """Make one piece, and record that it is sharded over dp, which gradient norms must know."""
        tensor = self.shard[where.offset : where.offset + where.numel].detach().requires_grad_()
        return LocalPiece(entry, where, place(tensor, *placements_of_shard(entry.parameter, self.group).values()))

    def use_gradient(self, gradient: Tensor) -> None:
        """Use `gradient` (s,) as the memory for the gradient of this rank's shard."""
        self.shard.grad = gradient
        for piece in self.pieces:
            piece.gradient = gradient[piece.where.offset : piece.where.offset + piece.where.numel]


def placements_of_shard(parameter: nn.Parameter, group: dist.ProcessGroup) -> Placements:
    """Return the placements of a shard: those of its parameter, and dp, since each entry is on one rank of `group`.

    That is so for experts, too: their ranks on the axis ep, which is a part of `group`, have different experts.
    """
    others = {axis: placement for axis, placement in placements_of(parameter).items() if axis != "ep"}
    return others | {"dp": Placement.sharded("dp", group)}


class ShardedOptimizer:
    """Base class of Zero1 and Zero2. `optimizer` is the torch optimizer inside: give it to a learning-rate scheduler.

    It has no state_dict, because each rank has only its shards: a Trainer (helpers/compose) saves and loads them.
    params: as torch's optimizers take them: tensors, (name, tensor) pairs or parameter groups; frozen parameters do not
    change. bucket_bytes: parameters share a vector until they reach this size. options: those of the optimizer.
    Raises ValueError for nothing trainable, a parameter given twice, ranks with different models, or an optimizer that
    is not elementwise.
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None,
        bucket_bytes: float,
        options: dict,
    ):
        self.group = group if group is not None else dist.group.WORLD
        self.entries, group_options = read_groups(params)
        check_same_parameters(self.entries, self.group)
        first = self.entries[0].parameter
        check_elementwise(optimizer_class, group_options, options, dtype=first.dtype, device=first.device)
        buckets = buckets_of(self.entries, bucket_bytes)  # for each, the positions of its entries
        self.vectors = [FlatVector([self.entries[i] for i in positions], self.group) for positions in buckets]
        pieces = [piece for vector in self.vectors for piece in vector.pieces]
        self.pieces = sorted(pieces, key=lambda piece: piece.entry.group)  # in the order of the optimizer inside
        groups = [
            {**group, "params": [piece.tensor for piece in self.pieces if piece.entry.group == number]}
            for number, group in enumerate(group_options)
        ]
        self.optimizer = optimizer_class(groups, **options)
        self._sync = True  # False inside no_sync

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate full gradients without sending them; the next backward outside reduces their sum."""
        return without_sync(self)

    @property
    def param_groups(self) -> list[dict]:
        """Return those of the optimizer inside: your options, and this rank's pieces as "params"."""
        return self.optimizer.param_groups

    @property
    def padding(self) -> int:
        """Return the number of elements that are in no parameter, which round each vector up to N equal shards."""
        return sum(vector.layout.padding for vector in self.vectors)

    def collect_gradients(self) -> None:
        """Set `.grad` of every piece to the mean over the ranks. Each stage implements it."""
        raise NotImplementedError

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip by the norm of the mean gradients of all parameters and return it. Call it between backward and step().

        Each rank has only its shard, so one scalar is all-reduced, and one more for each other axis on which the
        parameters lie. With `MasterWeights` inside, clip its masters instead.
        """
        self.collect_gradients()
        local = {piece.entry.index: piece.gradient for piece in self.pieces}
        # one entry per parameter, even None, because a rank without pieces must know all axes too
        gradients = [local.get(entry.index) for entry in self.entries]
        placements = [placements_of_shard(entry.parameter, self.group) for entry in self.entries]
        norm = gradient_norm(gradients, norm_type=norm_type, group=self.group, placements=placements)
        scale_to(gradients, max_norm, norm)
        return norm

    def hand_out_gradients(self, *, find_unused: bool) -> None:
        """Give each piece its gradient, or None for a parameter that no rank used, which the optimizer then skips.

        find_unused: ask the other ranks, by an all-reduce of one integer per parameter. Otherwise all must be used.
        """
        if find_unused:
            share_usage(self.entries, self.group)
        for piece in self.pieces:
            piece.tensor.grad = piece.gradient if piece.entry.used else None
        if hasattr(self.optimizer, "collect_gradients"):  # MasterWeights: copies them to its float32 masters
            self.optimizer.collect_gradients()

    def gather_parameters(self) -> None:
        """All-gather the updated shards in place, so that every rank has all parameters again."""
        works = [vector.layout.all_gather(vector.flat, async_op=True) for vector in self.vectors]
        for work in works:
            work.wait()


def read_groups(params: Iterable) -> tuple[list[TrainedParameter], list[dict]]:
    """Return the trainable parameters, and the options of each parameter group without its "params".

    Raises ValueError for nothing trainable or a parameter given twice.
    """
    groups = list(params)
    groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
    entries: list[TrainedParameter] = []
    seen: dict[int, str] = {}  # id of a parameter -> its name
    count = 0
    for number, group in enumerate(groups):
        for item in [group["params"]] if isinstance(group["params"], Tensor) else group["params"]:
            name, parameter = item if isinstance(item, tuple) else (f"parameter {count}", item)
            count += 1
            if id(parameter) in seen:
                raise ValueError(f"{name} is {seen[id(parameter)]} once more: give each parameter to one group, once")
            seen[id(parameter)] = name
            if parameter.requires_grad:
                entries.append(TrainedParameter(len(entries), name, parameter, number))
    if not entries:
        raise ValueError(f"got {count} parameters, none of them trainable: pass model.parameters()")
    return entries, [{key: value for key, value in group.items() if key != "params"} for group in groups]


def buckets_of(entries: Sequence[TrainedParameter], bucket_bytes: float) -> list[list[int]]:
    """Return the positions of entries by bucket. The parameters of a bucket share a vector, and so a message.

    A bucket closes with the parameter that takes it to bucket_bytes. They fill from the last layer to the first, as
    backward does. Raises ValueError for bucket_bytes not above 0.
    """
    backwards = range(len(entries) - 1, -1, -1)  # positions from the last to the first
    # bucket_bytes twice: the first bucket is not smaller than the others here, as it is in DDP
    groups = bucket_positions([entries[position].parameter for position in backwards], bucket_bytes, bucket_bytes)
    return [[backwards[position] for position in group] for group in groups]


def missing_gradients_message(entries: Sequence[TrainedParameter], rank: int, owner: str) -> str:
    """Return the error text for a backward that left parameters without a gradient."""
    missing = [entry.name for entry in entries if not entry.present]
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return (
        f"on rank {rank} {len(missing)} of {len(entries)} parameters have no gradient: {', '.join(missing[:8])}{more}."
        f" Call backward before step(). If the loss does not use them, pass find_unused_parameters=True to {owner}: "
        "then the ranks ask each other in every step"
    )
