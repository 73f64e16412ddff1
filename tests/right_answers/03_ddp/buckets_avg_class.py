"""A small class with ReduceOp.AVG."""

import torch
import torch.distributed as dist

TASK = "03.buckets"


class Bucket:
    def __init__(self):
        self.members, self.size = [], 0

    def add(self, tensor):
        self.members.append(tensor)
        self.size += tensor.element_size() * tensor.nelement()

    def flush(self):
        if self.members:
            flat = torch._utils._flatten_dense_tensors(self.members)
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            for old, new in zip(self.members, torch._utils._unflatten_dense_tensors(flat, self.members), strict=True):
                old.copy_(new)
        self.__init__()


def average_in_buckets(grads, cap_bytes):
    bucket = Bucket()
    for index, g in enumerate(grads):
        bucket.add(g)
        if bucket.size >= cap_bytes or index == len(grads) - 1:
            bucket.flush()
