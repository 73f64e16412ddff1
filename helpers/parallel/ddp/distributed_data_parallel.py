"""Provides DistributedDataParallel: BucketedDDP (simple.py) with all of PyTorch's options.

    DistributedDataParallel   no_sync, unused parameters, static graphs, buffers, communication hooks (comm_hooks.py)
    Join                      lets ranks have different numbers of batches

Legend: N = ranks. A Bucket is a flat tensor that carries many gradients in one message, and a Slot is one parameter's
part of it, with what is known about its gradient in this backward (shared/buckets.py).
After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from helpers.parallel.ddp.simple import BucketedDDP
from helpers.parallel.shared import collectives
from helpers.parallel.shared.buckets import UNTIL_BACKWARD_ENDS, Bucket, Slot, when_backward_starts, without_sync
from helpers.parallel.shared.collectives import broadcast_tensors


class Join:
    """Lets ranks have different numbers of batches: `with Join(model): for batch in batches: ...`.

    DDP's all-reduces need every rank, so a rank that left its loop early would make the others wait for ever. Under
    Join it sends zeros instead. Before each forward the ranks all-reduce N numbers, one per rank, where 1 means "I have
    data", so that every rank knows which others are active.
    model: a DistributedDataParallel. Backward averages over the active ranks, which equals one process on the batches
    that are left; divide_by_active=False always divides by N, as torch's Join does by default. At the end every rank
    gets the parameters and buffers of one that was active in the last round, so all are equal again. Unlike torch's
    Join it mirrors only DDP's messages, not a collective inside the model. Each training forward outside `no_sync` must
    be followed by one backward; gradients of an accumulation that runs out of data halfway are dropped.
    """

    def __init__(self, model, *, divide_by_active: bool = True):
        self.model, self.divide_by_active = model, divide_by_active
        self.group, self.rank = model.group, dist.get_rank(model.group)
        self.source: int | None = None  # the lowest group rank that was active in the last round

    def __enter__(self) -> Join:
        self.model.joining = self
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:  # kind: the class of the error that ended the `with`, or None
            while kind is None and self.announce(active=False):
                self.model.shadow_step()
            if kind is None and self.source is not None:
                module = self.model.module
                broadcast_tensors([*module.parameters(), *module.buffers()], self.group, self.source)
        finally:
            self.model.joining = None
            self.model.divisor, self.model.source = self.model.world_size, 0

    def announce(self, *, active: bool) -> bool:
        """Tell all ranks whether this one has data, and learn which others have. Returns False once none has."""
        flags = torch.zeros(self.model.world_size, dtype=torch.int32, device=self.model.slots[0].parameter.device)
        flags[self.rank] = int(active)
        dist.all_reduce(flags, group=self.group)
        active_ranks = flags.nonzero().flatten().tolist()
        if not active_ranks:
            return False
        self.source = self.model.source = active_ranks[0]
        self.model.divisor = len(active_ranks) if self.divide_by_active else self.model.world_size
        return True


class DistributedDataParallel(BucketedDDP):
    """Wraps a model to train on N ranks; call it, its loss's `backward()` and an optimizer as with one process.

    Construction checks that the ranks' models match, and broadcasts parameters and buffers of group rank 0. In training
    forward broadcasts buffers. Backward all-reduces each bucket, 2(N-1)/N of its bytes. After the first backward the
    buckets are rebuilt in the order in which gradients came on rank 0.

    bucket_cap_mb, first_bucket_mb: in MiB, as in torch. overlap=False sends the buckets after backward.
    find_unused_parameters: some may get no gradient. They are found when backward ends, so buckets with such parameters
    are sent last. torch finds them before backward, from the outputs; here outputs of any type may stay unused too. One
    more all-reduce, of one integer per parameter, finds those that are unused on all ranks, which keep `grad is None`.
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
        # divisor: over how many ranks gradients are averaged, which an active Join changes
        self.world_size = self.divisor = dist.get_world_size(self.group)
        self.shared_buffers = module.buffers if broadcast_buffers else tuple  # called before a forward; tuple() is ()
        self.find_unused, self.overlap = find_unused_parameters, overlap
        self.learning = static_graph  # whether this backward, the first, learns how often each hook fires
        self.joining, self.source = None, 0  # an active Join; the group rank that broadcasts its buffers
        # _sync: False inside no_sync. _rebuilt: buckets have the order of the first backward. _hook: averages a bucket
        self._sync, self._rebuilt, self._hook = True, False, None
        for slot in self.slots:
            slot.expected = UNTIL_BACKWARD_ENDS if static_graph else 1

    def forward(self, *args, **kwargs):
        if self._sync and self.training and torch.is_grad_enabled():
            if self.joining is not None:
                self.joining.announce(active=True)
            collectives.broadcast_tensors(self.shared_buffers(), self.group, self.source)
        output = super().forward(*args, **kwargs)
        when_backward_starts(output, self._begin)  # the first gradient may come inside a reentrant checkpoint
        return output

    def no_sync(self) -> AbstractContextManager[None]:
        """Accumulate gradients of micro-batches in `.grad` without sending them; the next backward outside sends."""
        return without_sync(self)

    def register_comm_hook(self, state: object, hook: Callable) -> None:
        """Let `hook(state, bucket)` average each bucket; it returns a Future of the flat result. Torch's hooks fit."""
        self._hook = lambda bucket: hook(state, bucket)

    def join(self, **options) -> Join:
        """Return the context in which ranks may have different numbers of batches: see `Join`."""
        return Join(self, **options)

    def shadow_step(self) -> None:
        """Send what a training step sends, but with zeros, because this rank has no data left (see `Join`)."""
        collectives.broadcast_tensors(self.shared_buffers(), self.group, self.source)
        self._restart()
        for bucket in self.buckets:
            bucket.fill_with_zeros()
        self._settle()

    def _begin(self) -> None:
        if self._sync:
            super()._begin()

    def _restart(self) -> None:
        super()._restart()
        self._arrivals = []  # the index of each slot, in the order in which gradients come
        self._scale = 1 / self.divisor if self._hook is None else 1.0  # a communication hook averages by itself

    def _arrived(self, slot: Slot) -> None:
        """Handle a gradient like BucketedDDP; in a static graph the last of several firings counts."""
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
        """End a backward: missing gradients count as zero or are an error; then wait for every bucket."""
        missing = [slot for slot in self.slots if not slot.ready]
        # a slot that is expected 0 times is unused in every step of a static graph
        if not (self.find_unused or self.learning) and any(slot.expected for slot in missing):
            raise RuntimeError(collectives.missing_message(missing, self.group.rank()))
        for slot in missing:
            slot.fill(self._scale)
        self._settle()

    def _settle(self) -> None:
        """Send what has not been sent, wait for everything, and make every gradient a view of its bucket."""
        self._send_full_buckets()
        if self.find_unused or self.learning:
            collectives.share_usage(self.slots, self.group)
        for bucket, work in zip(self.buckets, self._works, strict=True):
            # A communication hook's Future returns the averaged bucket; a collective's Work returns nothing.
            bucket.receive(work.wait())
        for slot in self.slots:  # used: some rank has a gradient of it
            if slot.used and slot.parameter.grad is None:
                slot.parameter.grad = slot.view
            slot.expected = slot.fired if self.learning else slot.expected
        self._running = self.learning = False
        if not self._rebuilt:
            self._layout, self._rebuilt = collectives.agree_on_order(self._arrivals, self.slots, self.group), True
            self._build()
