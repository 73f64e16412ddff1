"""Distributed data parallel: every rank holds the whole model and its own share of the batch.

Legend: N = ranks. Averaging gradients, not weights, keeps all ranks equal to one process on the global batch.
    NaiveDDP                 one all-reduce a parameter, after backward: many small messages, nothing overlaps
    FlatDDP                  one all-reduce of everything, after backward: one message, nothing overlaps
    DistributedDataParallel  buckets, each sent as soon as its gradients are there: communication hides behind backward
After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", sections 3 and 4.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from helpers.primitives import buckets as b
from helpers.primitives.join import Join


class NaiveDDP(nn.Module):
    """Call `average_gradients()` between `loss.backward()` and `optimizer.step()`.

    Forward: nothing. Backward: nothing. Then: one all-reduce a parameter, 2(N-1)/N of its bytes each.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.module, self.group = module, group if group is not None else dist.group.WORLD
        b.broadcast_tensors([*module.parameters(), *module.buffers()], self.group)  # all start equal to rank 0

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def average_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. One that is missing counts as zero."""
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # skipping it would pair its neighbour's message with another rank's
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=self.group)
                parameter.grad /= self.group.size()


class FlatDDP(NaiveDDP):
    """As NaiveDDP, with one message: all gradients in one flat tensor. Costs a second copy of the gradients."""

    def average_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks, in one all-reduce a dtype."""
        slots = b.trainable_slots(self.module)
        for bucket in b.build_buckets(slots, torch.inf, torch.inf):
            for slot in bucket.slots:
                slot.fill(1 / self.group.size())
                slot.parameter.grad = slot.view
            dist.all_reduce(bucket.flat, group=self.group)


class DistributedDataParallel(nn.Module):
    """The model to train on N ranks; call it, its loss's `backward()` and an optimizer as with one process.

    Construction: checks that all ranks built the same model, broadcasts parameters and buffers of group rank 0.
    Forward: broadcasts the buffers (training mode only). Backward: all-reduces each bucket, 2(N-1)/N of its bytes.
    After the first backward the buckets are rebuilt in the order in which gradients really came (rank 0's order).

    bucket_cap_mb, first_bucket_mb: sizes in MiB, as in torch. overlap=False sends the buckets after backward.
    find_unused_parameters: parameters may get no gradient. They are found when backward ends, not by walking the graph
    before it, so that outputs of any type may stay unused too; the price is that their buckets leave last. One more
    all-reduce of one integer a parameter tells which are unused everywhere: those keep `grad is None`.
    static_graph: promises that every step uses the same graph. The first backward learns how often each gradient hook
    fires (several times under reentrant checkpoints) and overlaps nothing; later ones overlap.

    Raises ValueError for a model without trainable parameters or ranks whose models differ, and RuntimeError at the end
    of a backward in which a parameter got no gradient (named) unless find_unused_parameters.
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
        super().__init__()
        self.module, self.group = module, group if group is not None else dist.group.WORLD
        self.world_size = self.divisor = dist.get_world_size(self.group)
        self.caps = bucket_cap_mb, first_bucket_mb
        self.broadcast_buffers, self.find_unused, self.overlap = broadcast_buffers, find_unused_parameters, overlap
        self.joining: Join | None = None
        self.source = 0  # group rank whose buffers count
        self.slots = b.trainable_slots(module)
        self.device = self.slots[0].parameter.device
        b.check_same_slots(self.slots, self.group)
        b.broadcast_tensors([*module.parameters(), *module.buffers()], self.group)
        self.learning = static_graph
        for slot in self.slots:
            slot.expected = b.LATE if static_graph else 1
        self._layout = self.slots[::-1]  # backward goes from the last layer to the first
        self._build()
        self._hook: tuple[Callable, object] | None = None
        self._sync, self._rebuilt = True, False
        self._watch()

    def forward(self, *args, **kwargs):
        if self._running:  # the last backward raised: its messages may still be on their way, so use new buffers
            self._build()
        if self._sync and self.training and torch.is_grad_enabled():
            if self.joining is not None:
                self.joining.announce(active=True)
            self._broadcast_buffers()
        output = self.module(*args, **kwargs)
        for tensor in b.tensors_in(output):
            if tensor.requires_grad:  # so that the end of the outermost backward is seen, also under checkpointing
                tensor.register_hook(lambda _: self._begin())
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
        self._hook = hook, state

    def join(self, *, divide_by_active: bool = True) -> Join:
        """Context in which ranks may have different numbers of batches: see primitives.join."""
        return Join(self, divide_by_active=divide_by_active)

    def shadow_step(self) -> None:
        """Send what a training step sends, with zeros: the part of a rank that has no data left."""
        self._broadcast_buffers()
        self._restart()
        for bucket in self.buckets:
            bucket.flat.zero_()
            bucket.pending = 0
        self._settle([False] * len(self.slots))

    def _watch(self) -> None:
        """One hook a parameter, which does not keep this object alive: wrapping a model again must not send twice."""
        me = weakref.ref(self)
        for slot in self.slots:
            handle = slot.parameter.register_post_accumulate_grad_hook(lambda _, slot=slot: me()._arrived(slot))
            weakref.finalize(self, handle.remove)

    def _build(self) -> None:
        self.buckets, self._running = b.build_buckets(self._layout, *self.caps), False

    def _broadcast_buffers(self) -> None:
        if self.broadcast_buffers:
            b.broadcast_tensors(self.module.buffers(), self.group, self.source)

    def _restart(self) -> None:
        self._running, self._works, self._order = True, [], []
        for slot in self.slots:
            slot.restart()
        for bucket in self.buckets:
            bucket.pending = len(bucket.slots)

    def _begin(self) -> None:
        """A backward has started: count from zero, and have `_finish` called at its end."""
        if self._sync and not self._running:
            self._restart()
            Variable._execution_engine.queue_callback(self._finish)

    def _arrived(self, slot: b.Slot) -> None:
        """The gradient of one parameter is there: into the bucket with it, and off with the buckets that are full."""
        if not self._sync:
            return
        self._begin()
        slot.fired += 1
        if slot.fired > slot.expected:
            raise RuntimeError(b.twice_message(slot, dist.get_rank(self.group)))
        self._order.append(slot.index)
        if slot.fired == slot.expected:
            self._fill(slot)
            if self.overlap:
                self._send_full_buckets()

    def _fill(self, slot: b.Slot) -> None:
        # before the sum: dividing first keeps fp16 sums in range
        slot.fill(1 / self.divisor if self._hook is None else 1.0)

    def _send_full_buckets(self) -> None:
        """Start the all-reduce of full buckets, in the same order on every rank, so never before an earlier one."""
        while len(self._works) < len(self.buckets) and self.buckets[len(self._works)].pending == 0:
            bucket = self.buckets[len(self._works)]
            if self._hook is None:
                self._works.append(dist.all_reduce(bucket.flat, group=self.group, async_op=True))
            else:
                hook, state = self._hook
                self._works.append(hook(state, bucket))

    def _finish(self) -> None:
        """Backward is over: what is missing counts as zero or is an error; then wait for every bucket."""
        missing = [slot for slot in self.slots if not slot.ready]
        if any(slot.expected for slot in missing) and not (self.find_unused or self.learning):
            raise RuntimeError(b.missing_message(missing, dist.get_rank(self.group)))
        present = [slot.parameter.grad is not None for slot in self.slots]
        for slot in missing:
            self._fill(slot)
        self._settle(present)

    def _settle(self, present: list[bool]) -> None:
        """Send what has not been sent, wait for all of it, and let every gradient be a view into its bucket."""
        self._send_full_buckets()
        if self.find_unused or self.learning:
            self._share_usage(present)
        for bucket, work in zip(self.buckets, self._works, strict=True):
            result = work.wait()
            if self._hook is not None and result.data_ptr() != bucket.flat.data_ptr():
                bucket.flat.copy_(result)
        for slot in self.slots:
            if slot.used and slot.parameter.grad is None:
                slot.parameter.grad = slot.view
        if not self._rebuilt:
            self._rebuild()
        self._running = False

    def _share_usage(self, present: list[bool]) -> None:
        """Learn which parameters got a gradient on some rank, and under static_graph how often each hook fires."""
        usage = torch.tensor(present, dtype=torch.int32, device=self.device)
        dist.all_reduce(usage, group=self.group)
        for slot, count in zip(self.slots, usage.tolist(), strict=True):
            slot.used = count > 0
            if self.learning:
                slot.expected = slot.fired
        self.learning = False

    def _rebuild(self) -> None:
        """New buckets in the order in which gradients came on rank 0; those that did not come go last."""
        last_arrivals = list(dict.fromkeys(reversed(self._order)))[::-1]
        absent = [slot.index for slot in self._layout if slot.index not in set(last_arrivals)]
        order = torch.tensor(last_arrivals + absent, device=self.device)
        dist.broadcast(order, group_src=0, group=self.group)
        self._layout, self._rebuilt = [self.slots[i] for i in order.tolist()], True
        self._build()
