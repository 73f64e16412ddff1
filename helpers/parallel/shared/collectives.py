"""Provides the small collectives that several strategies share: broadcasts, sums in few messages, and agreement checks.

    all_gather_flat, reduce_scatter_flat   the two collectives on one flat tensor, under the names that this torch has
    in_one_message, all_reduce_in_buckets  one message for many tensors, through one flat copy
    broadcast_tensors, check_same_parameters  before training: every rank starts with the same model
    agree_on_order, share_usage            after a backward: the order of gradients, and which parameters were used

Legend: N = ranks, P = trainable parameters. A Slot (buckets.py) is a parameter with its name, its index and the state
of its gradient in this backward: `present` says whether this rank has a gradient, `used` whether any rank has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.shared.bucket_rule import GLOO_BUCKET
from helpers.parallel.shared.buckets import Slot, bucket_positions

# newer versions of torch have the first name, older ones the second
reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # (output, input)
all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # (output, input)


@torch.no_grad()
def all_reduce_in_buckets(
    tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None, *, bucket_cap: float = GLOO_BUCKET
) -> None:
    """Replace each tensor by its sum over the group, in place; tensors of one dtype and device share messages.

    All ranks give tensors of the same sizes in the same order. It needs memory for one bucket of `bucket_cap` bytes.
    """
    for bucket in bucket_positions(tensors, bucket_cap, bucket_cap):  # twice: the first bucket has the same cap
        in_one_message([tensors[position] for position in bucket], lambda flat: dist.all_reduce(flat, group=group))


@torch.no_grad()
def in_one_message(tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
    """Copy the tensors into one flat tensor, call `send(flat)`, and copy the result back into them.

    They must have one dtype and device. send: an in-place collective that is complete when it returns.
    """
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    send(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup, source: int = 0) -> None:
    """Overwrite `tensors` on every rank with those of group rank `source`, in one message per dtype and device."""
    tensors = [tensor.detach() for tensor in tensors]
    for positions in split_by_kind(tensors):
        same_kind = [tensors[position] for position in positions]
        in_one_message(same_kind, lambda flat: dist.broadcast(flat, group_src=source, group=group))


def split_by_kind(tensors: Iterable[Tensor]) -> list[list[int]]:
    """Group the positions of `tensors` by dtype and device, because only such tensors can share a flat vector."""
    kinds: dict[tuple, list[int]] = {}
    for position, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(position)
    return list(kinds.values())


def check_same_parameters(slots: Sequence[Slot], group: dist.ProcessGroup) -> None:
    """Raise ValueError on every rank if the ranks' parameters differ in name, shape or dtype."""
    local = [f"{s.name} {tuple(s.parameter.shape)} {s.parameter.dtype}" for s in slots]
    of_ranks: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, local, group=group)
    first = of_ranks[0]
    for rank, other in enumerate(of_ranks):
        if other != first:
            pairs = zip_longest(first, other, fillvalue="nothing")
            here, there = next((a, b) for a, b in pairs if a != b)  # the first difference
            raise ValueError(
                f"the ranks hold different models: where rank 0 has {here}, rank {rank} has {there} "
                f"({len(first)} and {len(other)} parameters). Build the same model on every rank"
            )


def agree_on_order(arrivals: Sequence[int], slots: Sequence[Slot], group: dist.ProcessGroup) -> list[Slot]:
    """Return `slots` in the order in which gradients came on group rank 0. Sends P integers in one broadcast.

    arrivals: indices of slots in the order in which their hooks fired. If a hook fired several times, the last time
    counts. Slots whose hook never fired come last.
    """
    with_gradient = list(dict.fromkeys(reversed(arrivals)))[::-1]  # each index once, where it came last
    without = [slot.index for slot in reversed(slots) if slot.index not in set(with_gradient)]
    order = torch.tensor(with_gradient + without, device=slots[0].parameter.device)
    dist.broadcast(order, group_src=0, group=group)
    return [slots[index] for index in order.tolist()]


def share_usage(slots: Sequence[Slot], group: dist.ProcessGroup) -> None:
    """Set `slot.used` to whether `slot.present` is true on any rank. Sends P integers in one all-reduce."""
    usage = torch.tensor([slot.present for slot in slots], dtype=torch.int32, device=slots[0].parameter.device)
    dist.all_reduce(usage, group=group)
    for slot, count in zip(slots, usage.tolist(), strict=True):
        slot.used = count > 0


def missing_message(missing: Sequence[Slot], rank: int) -> str:
    """Return the error text for a backward that left parameters without a gradient."""
    names = [f"{slot.name} (bucket {slot.bucket.index()})" for slot in missing[:8]]
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    frozen = any(not slot.parameter.requires_grad for slot in missing)
    thaw = " Some were frozen after the model was wrapped: freeze first, then wrap." if frozen else ""
    return (
        f"on rank {rank} {len(missing)} parameter(s) got no gradient in this backward: {', '.join(names)}{more}. "
        "Every rank must all-reduce every bucket, or the others wait for ever. Pass find_unused_parameters=True to "
        f"DistributedDataParallel, or let every parameter take part in the loss on every rank.{thaw}"
    )
