"""Many tensors in few messages: what all ranks do to them, such as a sum, happens to one flat copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.shared.bucket_rule import GLOO_BUCKET, split_into_buckets


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
