"""Sums of many tensors over ranks, in few messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.shared.bucket_rule import MIB, split_into_buckets


@torch.no_grad()
def all_reduce_in_buckets(
    tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None, *, bucket_cap: float = 8 * MIB
) -> None:
    """Each tensor becomes its sum over the group, in place; of one dtype and device they travel together.

    All ranks give tensors of the same sizes in the same order. Holds one bucket (bytes) beside them.
    """
    sizes, keys = [tensor.nbytes for tensor in tensors], [(tensor.dtype, tensor.device) for tensor in tensors]
    for bucket in split_into_buckets(sizes, bucket_cap=bucket_cap, first_bucket_cap=bucket_cap, keys=keys):
        members = [tensors[position] for position in bucket]
        flat = torch.cat([tensor.reshape(-1) for tensor in members])
        dist.all_reduce(flat, group=group)
        for tensor, piece in zip(members, flat.split([tensor.numel() for tensor in members]), strict=True):
            tensor.copy_(piece.view_as(tensor))
