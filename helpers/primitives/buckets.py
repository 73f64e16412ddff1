"""Flat buffers that hold many gradients, so that one message carries them all.

A Slot is one parameter's place; a Bucket is one flat tensor and the slots in it. Legend: N = ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .bucket_rule import MIB, split_into_buckets

LATE = math.inf  # an `expected` that is never reached: wait for the end of backward


class Slot:
    """One parameter's place in a bucket, and how far its gradient has come in this backward.

    view: the part of the bucket's flat tensor with the parameter's shape. fired: how often the gradient hook ran in
    this backward; expected: how often it will (1, unless a checkpointed graph was learnt). used: some rank has a
    gradient for it.
    """

    def __init__(self, index: int, name: str, parameter: nn.Parameter):
        self.index, self.name, self.parameter = index, name, parameter
        self.bucket: Bucket
        self.view: Tensor
        self.fired, self.expected = 0, 1
        self.ready, self.used = False, True

    def restart(self) -> None:
        """Forget the last backward."""
        self.fired, self.ready = 0, False

    @torch.no_grad()
    def fill(self, scale: float) -> None:
        """Write scale * gradient (zeros if there is none) into the bucket and let `.grad` be the view of it."""
        gradient = self.parameter.grad
        if gradient is None:
            self.view.zero_()
        elif gradient.is_sparse:
            raise ValueError(
                f"the gradient of {self.name} is sparse, but buckets are dense: build the embedding with sparse=False"
            )
        else:
            torch.mul(gradient, scale, out=self.view)
            self.parameter.grad = self.view
        self.ready = True
        self.bucket.pending -= 1


class Bucket:
    """One flat tensor for the gradients of several parameters. Its methods are those of torch's GradBucket."""

    def __init__(self, index: int, slots: Sequence[Slot], is_last: bool):
        self.slots, self.pending = list(slots), len(slots)
        self._index, self._is_last = index, is_last
        first = slots[0].parameter
        self.flat = torch.zeros(sum(s.parameter.numel() for s in slots), dtype=first.dtype, device=first.device)
        pieces = self.flat.split([slot.parameter.numel() for slot in slots])
        for slot, piece in zip(slots, pieces, strict=True):
            slot.bucket, slot.view = self, piece.view_as(slot.parameter)

    def index(self) -> int:
        """Place of this bucket in the order of sending, from 0."""
        return self._index

    def is_last(self) -> bool:
        """Whether no bucket follows."""
        return self._is_last

    def buffer(self) -> Tensor:
        """The flat tensor itself: a hook may change it in place."""
        return self.flat

    def set_buffer(self, tensor: Tensor) -> None:
        """Copy `tensor`, as long as the flat tensor, into it."""
        self.flat.copy_(tensor)

    def gradients(self) -> list[Tensor]:
        """One view a parameter, in the order of the bucket."""
        return [slot.view for slot in self.slots]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters, in the order of the bucket."""
        return [slot.parameter for slot in self.slots]


def build_buckets(slots: Sequence[Slot], bucket_cap_mb: float, first_bucket_mb: float) -> list[Bucket]:
    """New zeroed buckets for `slots`, which come in the order in which their gradients become ready. Caps in MiB."""
    sizes = [slot.parameter.numel() * slot.parameter.element_size() for slot in slots]
    keys = [(slot.parameter.dtype, slot.parameter.device) for slot in slots]
    caps = {"bucket_cap": bucket_cap_mb * MIB, "first_bucket_cap": first_bucket_mb * MIB}
    groups = split_into_buckets(sizes, keys=keys, **caps)
    return [Bucket(i, [slots[p] for p in group], i == len(groups) - 1) for i, group in enumerate(groups)]


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries, such as a model's output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0) -> None:
    """Overwrite `tensors` on every rank with those of group rank `source`: one message a dtype and device."""
    kinds: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for same in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.broadcast(flat, group_src=source, group=group)
        for tensor, piece in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(piece.view_as(tensor))


def trainable_slots(module: nn.Module) -> list[Slot]:
    """One slot a trainable parameter; a tied one counts once, a frozen one not at all.

    Raises ValueError if nothing is trainable.
    """
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError(
            f"{type(module).__name__} has no parameter with requires_grad=True, so there is no gradient to average: "
            "use the module as it is"
        )
    return [Slot(i, name, parameter) for i, (name, parameter) in enumerate(named)]


def check_same_slots(slots: Sequence[Slot], group: dist.ProcessGroup) -> None:
    """Raise ValueError on every rank if the ranks' trainable parameters differ in name, shape or dtype."""
    mine = [f"{s.name} {tuple(s.parameter.shape)} {s.parameter.dtype}" for s in slots]
    theirs: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        if other != theirs[0]:
            width = max(len(other), len(theirs[0]))
            pairs = zip(*(part + ["nothing"] * (width - len(part)) for part in (theirs[0], other)), strict=True)
            here, there = next((a, b) for a, b in pairs if a != b)
            raise ValueError(
                f"the ranks hold different models: where rank 0 has {here}, rank {rank} has {there} "
                f"({len(theirs[0])} and {len(other)} trainable parameters). Build the same model on every rank"
            )


def missing_message(missing: Sequence[Slot], rank: int) -> str:
    """What to tell a learner whose backward left parameters without a gradient."""
    names = [f"{slot.name} (bucket {slot.bucket.index()})" for slot in missing[:8]]
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    frozen = any(not slot.parameter.requires_grad for slot in missing)
    thaw = " Some were frozen after the model was wrapped: freeze first, then wrap." if frozen else ""
    return (
        f"on rank {rank} {len(missing)} parameter(s) got no gradient in this backward: {', '.join(names)}{more}. "
        "Every rank must all-reduce every bucket, or the others wait for ever. Pass find_unused_parameters=True, or "
        f"let every parameter take part in the loss on every rank.{thaw}"
    )


def twice_message(slot: Slot, rank: int) -> str:
    """What to tell a learner whose parameter got its gradient in two parts."""
    return (
        f"on rank {rank} the gradient of {slot.name} arrived {slot.fired} times in one backward, {slot.expected} "
        "expected: its bucket may already be on its way. A parameter used in two reentrant checkpoints does this. "
        "Pass use_reentrant=False to torch.utils.checkpoint, or static_graph=True here"
    )
