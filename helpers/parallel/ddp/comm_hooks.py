"""Provides a communication hook, which averages one bucket of gradients; it works in this course's DDP and in torch's.

A hook gets (state, bucket), must average over the ranks itself, and returns a Future of the flat result. Here `state`
is the process group, or None for all ranks. This course's Bucket has the methods of torch's GradBucket. torch checks
that the annotation of `bucket` is the class dist.GradBucket, so this file must not turn annotations into strings with
`from __future__ import annotations`. Legend: N = ranks, n = bytes of the bucket in fp32.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


def fp16_compress_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Average the bucket over the ranks in fp16. Payload: n/2 bytes; 11 bits of mantissa; values above 65504 overflow.

    It divides by N before the sum, so that the sum cannot overflow where the mean would fit. The mean is written into
    the bucket in the bucket's own dtype.
    """
    group = group if group is not None else dist.group.WORLD
    buffer = bucket.buffer()
    message = buffer.to(torch.float16).div_(group.size())
    work = dist.all_reduce(message, group=group, async_op=True)
    # the Future of a collective holds a list of tensors, here of one
    return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))
