"""An ordinary torch optimizer that steps on this rank's shards alone: what stages 1 and 2 of ZeRO have in common.

Parameters become views of flat vectors (`flat_shards`). Each vector is cut into N shards. What lies in this rank's
shard, piece by piece, is what the optimizer inside gets as its parameters. So its state exists once on all ranks
together, and a group's options, a parameter without a gradient and a step counter each mean what they mean in one
process. Legend: N = ranks; an entry is a whole parameter, a piece is the part of it in this rank's shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.shared.agreement import check_same_slots, share_usage
from helpers.parallel.shared.bucket_rule import split_into_buckets
from helpers.parallel.shared.clip import gradient_norm, scale_to
from helpers.parallel.shared.placement import Placement, place, placements_of
from helpers.parallel.zero.elementwise import check_elementwise
from helpers.parallel.zero.flat_shards import FlatShards, Piece, flatten_parameters


@dataclass
class Entry:
    """A trainable parameter. group: place of its parameter group. present: this rank has a gradient; used: any has."""

    index: int
    name: str
    parameter: nn.Parameter
    group: int
    present: bool = False
    used: bool = True


@dataclass
class OwnPiece:
    """The part of a parameter in this rank's shard: `tensor` is a view of the weights, `gradient` of the gradients."""

    entry: Entry
    where: Piece
    tensor: Tensor
    gradient: Tensor | None = None


class Vector:
    """Parameters that share a flat vector, and the gradient of this rank's shard of it."""

    def __init__(self, entries: Sequence[Entry], group: dist.ProcessGroup):
        self.entries = list(entries)
        parameters = [entry.parameter for entry in entries]
        self.layout = FlatShards(parameters, group)
        self.flat = flatten_parameters(parameters, self.layout)  # (N s,)
        dist.broadcast(self.flat, group_src=0, group=group)  # all ranks start equal
        self.shard = self.layout.shard_of(self.flat)  # (s,)
        self.own = [self._piece(entries[where.index], where) for where in self.layout.pieces()]

    def _piece(self, entry: Entry, where: Piece) -> OwnPiece:
        tensor = self.shard[where.offset : where.offset + where.numel].detach().requires_grad_()
        here = Placement.sharded("dp", self.layout.group)
        return OwnPiece(entry, where, place(tensor, here, like=entry.parameter))

    def use_gradient(self, gradient: Tensor) -> None:
        """gradient: (s,), where the gradient of this rank's shard will lie."""
        self.shard.grad = gradient
        for piece in self.own:
            piece.gradient = gradient[piece.where.offset : piece.where.offset + piece.where.numel]


class ShardedOptimizer:
    """Base of Zero1 and Zero2. `optimizer` is the torch optimizer inside: give it to a learning-rate scheduler.

    params: as torch's optimizers take them: tensors, (name, tensor) pairs or parameter groups; frozen parameters stay
    as they are. bucket_bytes: parameters share a vector until they reach it. options: of the optimizer.
    Raises ValueError for nothing trainable, a parameter given twice, ranks that hold different models or an optimizer
    that is not elementwise.
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
        check_same_slots(self.entries, self.group)
        first = self.entries[0].parameter
        check_elementwise(optimizer_class, group_options, options, dtype=first.dtype, device=first.device)
        self.vectors = [
            Vector([self.entries[i] for i in positions], self.group)
            for positions in buckets_of(self.entries, bucket_bytes)
        ]
        pieces = [piece for vector in self.vectors for piece in vector.own]
        self.pieces = sorted(pieces, key=lambda piece: piece.entry.group)  # as the optimizer inside holds them
        own = [[p.tensor for p in self.pieces if p.entry.group == number] for number in range(len(group_options))]
        inner = [{**group, "params": tensors} for group, tensors in zip(group_options, own, strict=True)]
        self.optimizer = optimizer_class(inner, **options)
        self._sync = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here sends nothing and adds whole gradients up in `.grad`; the next outside reduces the sum."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    @property
    def param_groups(self) -> list[dict]:
        """Those of the optimizer inside: options as you gave them, and this rank's pieces as "params"."""
        return self.optimizer.param_groups

    @property
    def padding(self) -> int:
        """Elements that are in no parameter: they round each vector up to N equal shards."""
        return sum(vector.layout.padding for vector in self.vectors)

    def collect_gradients(self) -> None:
        """Let `.grad` of every piece be the mean over the ranks. Each stage has its own way."""
        raise NotImplementedError

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip by the norm of the mean gradients of the whole model; returns it. Between backward and step().

        All-reduces one scalar: each rank sees its shard only. One more for each other axis on which the parameters lie.
        For `MasterWeights` inside, clip its masters instead.
        """
        self.collect_gradients()
        here, own = Placement.sharded("dp", self.group), {piece.entry.index: piece.gradient for piece in self.pieces}
        gradients = [own.get(entry.index) for entry in self.entries]  # all: a rank without pieces must know their axes
        placements = [placements_of(entry.parameter) | {here.axis: here} for entry in self.entries]
        norm = gradient_norm(gradients, norm_type=norm_type, group=self.group, placements=placements)
        scale_to(gradients, max_norm, norm)
        return norm

    def hand_out_gradients(self, *, find_unused: bool) -> None:
        """Give each piece its gradient; None for a parameter that no rank used, which the optimizer then passes over.

        find_unused: ask the other ranks, one all-reduce of an integer a parameter. Otherwise all must be used.
        """
        if find_unused:
            share_usage(self.entries, self.group)
        for piece in self.pieces:
            piece.tensor.grad = piece.gradient if piece.entry.used else None
        if hasattr(self.optimizer, "collect_gradients"):  # MasterWeights
            self.optimizer.collect_gradients()

    def state_dict(self) -> dict:
        """This rank's part: only this rank of as many ranks can load it. For others see `sharded_checkpoint`."""
        return {"cut": self._cut(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`. Raises ValueError for that of another rank, world size, model or bucket size."""
        if state["cut"] != self._cut():
            there, here = ("rank {} of {}".format(*cut[:2]) for cut in (state["cut"], self._cut()))
            raise ValueError(
                f"this is the state of {there} and of its shards, here is {here} with others, so the numbers would go "
                "to other parameters. To change ranks or buckets use helpers.parallel.zero.sharded_checkpoint"
            )
        self.optimizer.load_state_dict(state["optimizer"])

    def _cut(self) -> list:
        """Rank, ranks, and which elements of which parameter are here."""
        pieces = [[piece.entry.index, piece.where.start, piece.where.stop] for piece in self.pieces]
        return [self.group.rank(), self.group.size(), pieces]

    def gather_parameters(self) -> None:
        """All-gather the updated shards, in place: every rank holds all parameters again."""
        works = [vector.layout.all_gather(vector.flat, async_op=True) for vector in self.vectors]
        for work in works:
            work.wait()


def read_groups(params: Iterable) -> tuple[list[Entry], list[dict]]:
    """The trainable parameters, and the options of each parameter group without its "params".

    Raises ValueError for nothing trainable or a parameter given twice.
    """
    groups = list(params)
    groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
    entries: list[Entry] = []
    seen: dict[int, str] = {}
    count = 0
    for number, group in enumerate(groups):
        own = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for item in own:
            name, parameter = item if isinstance(item, tuple) else (f"parameter {count}", item)
            count += 1
            if id(parameter) in seen:
                raise ValueError(f"{name} is {seen[id(parameter)]} once more: give each parameter to one group, once")
            seen[id(parameter)] = name
            if parameter.requires_grad:
                entries.append(Entry(len(entries), name, parameter, number))
    if not entries:
        raise ValueError(f"got {count} parameters, none of them trainable: pass model.parameters()")
    return entries, [{key: value for key, value in group.items() if key != "params"} for group in groups]


def buckets_of(entries: Sequence[Entry], bucket_bytes: float) -> list[list[int]]:
    """Positions of entries, by bucket: what shares a vector, and so travels as one message.

    A bucket closes with the parameter that takes it to bucket_bytes; backward goes from the last layer to the first, so
    that is how they fill. Raises ValueError for bucket_bytes not above 0.
    """
    backwards = range(len(entries) - 1, -1, -1)
    parameters: list[Tensor] = [entries[position].parameter for position in backwards]
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    kinds = [(parameter.dtype, parameter.device) for parameter in parameters]
    groups = split_into_buckets(sizes, keys=kinds, bucket_cap=bucket_bytes, first_bucket_cap=bucket_bytes)
    return [[backwards[place] for place in group] for group in groups]


def missing_gradients_message(entries: Sequence[Entry], rank: int, owner: str) -> str:
    """What to tell a learner whose backward left parameters without a gradient."""
    missing = [entry.name for entry in entries if not entry.present]
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return (
        f"on rank {rank} {len(missing)} of {len(entries)} parameters have no gradient: {', '.join(missing[:8])}{more}."
        f" Call backward before step(). If the loss does not use them, pass find_unused_parameters=True to {owner}: "
        "then the ranks ask each other in every step"
    )
