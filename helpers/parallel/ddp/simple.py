"""Provides simple forms of data parallelism, in which every rank has the full model and its own share of the batch.

Legend: N = ranks. Averaging gradients, not weights, keeps all ranks equal to one process on the global batch.
    NaiveDDP      one all-reduce per parameter, after backward: many small messages, and no overlap
    FlatDDP       one all-reduce of all gradients, after backward: one message, and no overlap
    BucketedDDP   buckets, each sent as soon as its gradients are there: communication overlaps with backward
                  It is the base class of DistributedDataParallel. MiniDDP (mini.py) is the same idea on one screen.
A Bucket is a flat tensor that carries the gradients of several parameters in one message. A Slot is one parameter's
part of it: slot.fill(scale) writes scale * gradient into the bucket and makes `.grad` a view of it (shared/buckets.py).
After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from helpers.parallel.shared import collectives
from helpers.parallel.shared.buckets import Bucket, Slot, build_buckets, trainable_slots, watch_gradients
from helpers.parallel.shared.placement import by_replicas, replicas_of


class NaiveDDP(nn.Module):
    """Averages gradients when you call `average_gradients()` between `loss.backward()` and `optimizer.step()`.

    Forward and backward send nothing. Then one all-reduce per parameter sends 2(N-1)/N of its bytes.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.module, self.group = module, group if group is not None else dist.group.WORLD
        # all ranks start equal to rank 0
        collectives.broadcast_tensors([*module.parameters(), *module.buffers()], self.group)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def average_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. A missing gradient counts as zero."""
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # skipping it would pair its neighbour's message with another rank's
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=self.group)
                parameter.grad /= self.group.size()


class FlatDDP(NaiveDDP):
    """Like NaiveDDP, but it sends one message per dtype: all gradients in one flat tensor."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__(module, group)
        self.buckets = build_buckets(trainable_slots(module), torch.inf, torch.inf)  # no limit: one bucket per dtype

    def average_gradients(self) -> None:
        for bucket in self.buckets:
            bucket.fill(1 / self.group.size())
            dist.all_reduce(bucket.flat, group=self.group)


class BucketedDDP(nn.Module):
    """Averages gradients in buckets during backward: when `loss.backward()` returns, every gradient is averaged.

    Forward sends nothing. While backward goes on, one all-reduce per bucket sends 2(N-1)/N of its bytes. Each trainable
    parameter must get one gradient in each backward. bucket_cap_mb, first_bucket_mb: in MiB, as in torch.
    """

    def __init__(self, module: nn.Module, group=None, *, bucket_cap_mb: float = 25, first_bucket_mb: float = 1):
        super().__init__()
        self.module, self.group = module, group if group is not None else dist.group.WORLD
        self.caps, self.slots = (bucket_cap_mb, first_bucket_mb), trainable_slots(module)
        collectives.check_same_parameters(self.slots, self.group)
        for replicas, tensors in by_replicas([*module.parameters(), *module.buffers()], self.group).items():
            collectives.broadcast_tensors(tensors, replicas)
        self._layout = self.slots[::-1]  # order of the buckets: backward goes from the last layer to the first
        self._build()
        watch_gradients(self.slots, self, "_arrived")  # calls self._arrived(slot) when backward has its gradient

    def forward(self, *args, **kwargs):
        if self._running:  # the last backward raised, and its messages may still be in flight, so use new buckets
            self._build()
        return self.module(*args, **kwargs)

    def _build(self) -> None:
        self.buckets, self._running = build_buckets(self._layout, *self.caps), False  # _running: inside a backward

    def _begin(self) -> None:
        """Start a backward: empty the buckets, and have `_finish` called at its end."""
        if not self._running:
            self._restart()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # private; torch's DDP uses it too

    def _restart(self) -> None:
        self._running, self._works = True, []  # _works: the all-reduces in flight, one per bucket sent
        for bucket in self.buckets:
            bucket.restart()

    def _arrived(self, slot: Slot) -> None:
        """Handle the gradient of one parameter: copy it into its bucket, and send the buckets that are full."""
        self._begin()
        slot.count_arrival()  # raises if the gradient came before in this backward
        slot.fill(1 / self.group.size())
        self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        """Send full buckets in the same order on every rank, so none before an earlier one."""
        while len(self._works) < len(self.buckets) and self.buckets[len(self._works)].pending == 0:
            self._works.append(self._send(self.buckets[len(self._works)]))  # pending: gradients that have not come

    def _send(self, bucket: Bucket) -> dist.Work:
        return dist.all_reduce(bucket.flat, group=replicas_of(bucket.slots[0].parameter, self.group), async_op=True)

    def _finish(self) -> None:
        """End a backward: wait for all messages. The gradients are views of the buckets, so they are averaged then."""
        missing = [slot for slot in self.slots if not slot.ready]  # ready: the gradient is in its bucket
        if missing:
            raise RuntimeError(collectives.missing_message(missing, self.group.rank()))
        for work in self._works:
            work.wait()
        self._running = False
