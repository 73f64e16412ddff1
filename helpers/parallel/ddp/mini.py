"""Provides MiniDDP, data parallelism on one screen: hooks, buckets, overlap and no_sync, in plain torch.

It needs nothing else of this package, so the class can be copied into a script. All ranks must use every trainable
parameter in each backward, and all parameters must have one dtype. distributed_data_parallel.py has the other options.
After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class MiniDDP(nn.Module):
    """Averages gradients over all ranks while backward runs. Call `wait()` after backward, before the optimizer."""

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20, first_bucket_bytes: int = 2**20):
        super().__init__()
        self.module, self.is_syncing, self.ready, self.in_flight = module, True, set(), []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)  # all replicas start with the weights of rank 0
        self.buckets, cap = [[]], first_bucket_bytes
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):  # backward starts at the end
            if sum(p.nbytes for p in self.buckets[-1]) >= cap:  # the bucket is full, so open the next one
                self.buckets, cap = [*self.buckets, []], bucket_bytes
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self.gradient_is_ready)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def gradient_is_ready(self, parameter: nn.Parameter) -> None:
        """Send every bucket that is complete, in the same order on every rank. Autograd calls it during backward."""
        if self.is_syncing:
            self.ready.add(parameter)
        while len(self.in_flight) < len(self.buckets) and self.ready.issuperset(self.buckets[len(self.in_flight)]):
            bucket = self.buckets[len(self.in_flight)]
            flat = torch.cat([p.grad.flatten() for p in bucket]) / dist.get_world_size()
            self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))  # starts, and does not wait

    def wait(self) -> None:
        """Return when every gradient is the mean over the ranks."""
        if missing := sum(len(bucket) for bucket in self.buckets) - len(self.ready):
            raise RuntimeError(f"{missing} parameter(s) got no gradient: use every parameter in the loss on every rank")
        for bucket, (flat, work) in zip(self.buckets, self.in_flight, strict=True):
            work.wait()
            for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.ready, self.in_flight = set(), []

    @contextmanager
    def no_sync(self):
        """Let gradients of micro-batches add up in `.grad`; the next backward outside sends the sum."""
        self.is_syncing = False
        try:
            yield
        finally:  # also after an error
            self.is_syncing = True
