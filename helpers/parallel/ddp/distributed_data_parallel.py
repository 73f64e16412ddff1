"""Distributed data parallel with all its options; what it does without any of them is `BucketedDDP` (simple.py).

Legend: N = ranks.
After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from helpers.parallel.ddp.join import Join
from helpers.parallel.ddp.simple import BucketedDDP
from helpers.parallel.shared import agreement
from helpers.parallel.shared.buckets import LATE, Bucket, Slot, when_backward_starts


class DistributedDataParallel(BucketedDDP):
    """The model to train on N ranks; call it, its loss's `backward()` and an optimizer as with one process.

    Construction: checks that the ranks' models match, broadcasts parameters and buffers of group rank 0.
    Forward: broadcasts buffers (in training only). Backward: all-reduces each bucket, 2(N-1)/N of its bytes. After the
    first backward the buckets are rebuilt in the order in which gradients came on rank 0.

    bucket_cap_mb, first_bucket_mb: MiB, as in torch. overlap=False sends the buckets after backward.
    find_unused_parameters: some may get no gradient. They are found when backward ends, not by walking the graph before
    it as torch does: outputs of any type may then stay unused too, but buckets with such parameters leave last. One
    more all-reduce, of an integer a parameter, tells which are unused on all ranks: those keep `grad is None`.
    static_graph: every step has the same graph. The first backward learns how often each hook fires (several times
    under reentrant checkpoints) and overlaps nothing.
    Raises ValueError for a model without trainable parameters or models that differ between ranks, and RuntimeError
    at the end of a backward that left parameters without a gradient, with their names.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        bucket_cap_mb: float = 25,
        first_bucket_mb: float = 1,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        overlap: bool = True,
    ):
        super().__init__(module, group, bucket_cap_mb=bucket_cap_mb, first_bucket_mb=first_bucket_mb)
        self.world_size = self.divisor = dist.get_world_size(self.group)
        self.shared_buffers = module.buffers if broadcast_buffers else tuple
        self.find_unused, self.learning, self.overlap = find_unused_parameters, static_graph, overlap
        self.joining, self.source = None, 0  # an active Join; the group rank whose buffers count
        self._sync, self._rebuilt, self._hook = True, False, None
        for slot in self.slots:
            slot.expected = LATE if static_graph else 1

    def forward(self, *args, **kwargs):
        if self._sync and self.training and torch.is_grad_enabled():
            if self.joining is not None:
                self.joining.announce(active=True)
            agreement.broadcast_tensors(self.shared_buffers(), self.group, self.source)
        output = super().forward(*args, **kwargs)
        when_backward_starts(output, self._begin)  # the first gradient may come inside a reentrant checkpoint
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here only adds to `.grad`; the next one outside averages the sum. For micro-batches."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def register_comm_hook(self, state: object, hook: Callable) -> None:
        """Let `hook(state, bucket)` average each bucket; it returns a Future of the flat result. Torch's hooks fit."""
        self._hook = lambda bucket: hook(state, bucket)

    def join(self, **options) -> Join:
        """Context in which ranks may have different numbers of batches: see `helpers.parallel.ddp.join.Join`."""
        return Join(self, **options)

    def shadow_step(self) -> None:
        """Send what a training step sends, with zeros: the part of a rank that has no data left."""
        agreement.broadcast_tensors(self.shared_buffers(), self.group, self.source)
        self._restart()
        for bucket in self.buckets:
            bucket.fill_with_zeros()
        self._settle()

    def _begin(self) -> None:
        if self._sync:
            super()._begin()

    def _restart(self) -> None:
        super()._restart()
        self._arrivals = []
        self._scale = 1 / self.divisor if self._hook is None else 1.0  # a hook divides itself

    def _arrived(self, slot: Slot) -> None:
        """As in BucketedDDP; in a static graph the last of several firings counts."""
        if not self._sync:
            return
        self._begin()
        slot.count_arrival()
        self._arrivals.append(slot.index)
        if slot.fired == slot.expected:
            slot.fill(self._scale)
            if self.overlap:
                self._send_full_buckets()

    def _send(self, bucket: Bucket) -> dist.Work | Future:
        return super()._send(bucket) if self._hook is None else self._hook(bucket)

    def _finish(self) -> None:
        """Backward is over: what is missing counts as zero or is an error; then wait for every bucket."""
        missing = [slot for slot in self.slots if not slot.ready]
        if not (self.find_unused or self.learning) and any(slot.expected for slot in missing):
            raise RuntimeError(agreement.missing_message(missing, self.group.rank()))
        for slot in missing:
            slot.fill(self._scale)
        self._settle()

    def _settle(self) -> None:
        """Send what has not been sent, wait for all of it, and let every gradient be a view into its bucket."""
        self._send_full_buckets()
        if self.find_unused or self.learning:
            agreement.share_usage(self.slots, self.group)
        for bucket, work in zip(self.buckets, self._works, strict=True):
            bucket.receive(work.wait())
        for slot in self.slots:
            if slot.used and slot.parameter.grad is None:
                slot.parameter.grad = slot.view
            slot.expected = slot.fired if self.learning else slot.expected
        self._running = self.learning = False
        if not self._rebuilt:
            self._layout, self._rebuilt = agreement.agree_on_order(self._arrivals, self.slots, self.group), True
            self._build()
