"""Provides communication hooks, which average one bucket of gradients; they work in this course's DDP and in torch's.

A hook gets (state, bucket), must average over the ranks itself, and returns a Future of the flat result. Here `state`
is the process group, or None for all ranks. This course's Bucket has the methods of torch's GradBucket. torch checks
that the annotation of `bucket` is the class dist.GradBucket, so this file must not turn annotations into strings with
`from __future__ import annotations`. Legend: N = ranks, n = bytes of the bucket in fp32.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


def allreduce_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Do what DDP does without a hook: divide by N and all-reduce. Payload: n bytes."""
    return _all_reduce_as(bucket.buffer().dtype, group, bucket)


def fp16_compress_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Send the bucket in fp16. Payload: n/2 bytes; 11 bits of mantissa; values above 65504 overflow.

    It divides by N before the sum, so that the sum cannot overflow where the mean would fit.
    """
    return _all_reduce_as(torch.float16, group, bucket)


def bf16_compress_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Send the bucket in bf16. Payload: n/2 bytes; 8 bits of mantissa, and the range of fp32."""
    return _all_reduce_as(torch.bfloat16, group, bucket)


def _all_reduce_as(dtype: torch.dtype, group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Average the bucket over the ranks in `dtype`, and write the mean into the bucket in its own dtype."""
    group = group if group is not None else dist.group.WORLD
    buffer = bucket.buffer()
    message = buffer.to(dtype).div_(group.size())
    work = dist.all_reduce(message, group=group, async_op=True)
    # the Future of a collective holds a list of tensors, here of one
    return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))
