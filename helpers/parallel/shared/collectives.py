"""Provides the small collectives that several strategies share: broadcasts, sums in few messages, and agreement checks.

    all_gather_flat, reduce_scatter_flat   the two collectives on one flat tensor, under the names that this torch has
    in_one_message, all_reduce_in_buckets  one message for many tensors, through one flat copy
    broadcast_tensors, check_same_slots    before training: every rank starts with the same model
    agree_on_order, share_usage            after a backward: in which order gradients came, and which parameters were used

Legend: N = ranks, P = trainable parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.shared.bucket_rule import GLOO_BUCKET, split_into_buckets
from helpers.parallel.shared.buckets import Slot

reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # (output, input)
all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # (output, input)


@torch.no_grad()
def all_reduce_in_buckets(
    tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None, *, bucket_cap: float = GLOO_BUCKET
) -> None:
    """Each tensor becomes its sum over the group, in place; of one dtype and device they travel together.

    All ranks give tensors of the same sizes in the same order. Holds one bucket (bytes) beside them.
    """
    sizes, keys = [tensor.nbytes for tensor in tensors], [(tensor.dtype, tensor.device) for tensor in tensors]
    for bucket in split_into_buckets(sizes, bucket_cap=bucket_cap, first_bucket_cap=bucket_cap, keys=keys):
        in_one_message([tensors[position] for position in bucket], lambda flat: dist.all_reduce(flat, group=group))


@torch.no_grad()
def in_one_message(tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
    """`send(flat)` with the tensors' values one after the other; what it leaves there is copied back into them.

    They have one dtype and device. send: a collective in place, which has ended when it returns.
    """
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    send(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0) -> None:
    """Overwrite `tensors` on every rank with those of group rank `source`: one message a dtype and device."""
    kinds: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for same in kinds.values():
        in_one_message(same, lambda flat: dist.broadcast(flat, group_src=source, group=group))


def check_same_parameters(slots: Sequence[Slot], group: dist.ProcessGroup) -> None:
    """Raise ValueError on every rank if the ranks' parameters differ in name, shape or dtype."""
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
                f"({len(theirs[0])} and {len(other)} parameters). Build the same model on every rank"
            )


def agree_on_order(arrivals: Sequence[int], slots: Sequence[Slot], group: dist.ProcessGroup) -> list[Slot]:
    """`slots` in the order in which gradients came on group rank 0. Sends P integers, one broadcast.

    arrivals: indices of slots as their hooks fired; of several firings the last counts. Those absent go last.
    """
    came = list(dict.fromkeys(reversed(arrivals)))[::-1]
    absent = [slot.index for slot in reversed(slots) if slot.index not in set(came)]
    order = torch.tensor(came + absent, device=slots[0].parameter.device)
    dist.broadcast(order, group_src=0, group=group)
    return [slots[index] for index in order.tolist()]


def share_usage(slots: Sequence[Slot], group: dist.ProcessGroup) -> None:
    """Set `slot.used` where `slot.present` holds on some rank. Sends P integers, one all-reduce."""
    usage = torch.tensor([slot.present for slot in slots], dtype=torch.int32, device=slots[0].parameter.device)
    dist.all_reduce(usage, group=group)
    for slot, count in zip(slots, usage.tolist(), strict=True):
        slot.used = count > 0


def missing_message(missing: Sequence[Slot], rank: int) -> str:
    """What to tell a learner whose backward left parameters without a gradient."""
    names = [f"{slot.name} (bucket {slot.bucket.index()})" for slot in missing[:8]]
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    frozen = any(not slot.parameter.requires_grad for slot in missing)
    thaw = " Some were frozen after the model was wrapped: freeze first, then wrap." if frozen else ""
    return (
        f"on rank {rank} {len(missing)} parameter(s) got no gradient in this backward: {', '.join(names)}{more}. "
        "Every rank must all-reduce every bucket, or the others wait for ever. Pass find_unused_parameters=True to "
        f"DistributedDataParallel, or let every parameter take part in the loss on every rank.{thaw}"
    )
