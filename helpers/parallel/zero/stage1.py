"""ZeRO stage 1: every rank holds all weights and gradients, but steps on its shard and keeps the state of that alone.

Legend: N = ranks, P = bytes of all parameters, padded so that N divides them.
    no_sync    nothing is sent; micro-batches add up in the flat gradients, which are there anyway
    backward   1. reduce-scatter of each full bucket of gradients while backward goes on, (N-1)/N P: a rank gets the
                  sum of its shard. In place, so once per step: the micro-batches before the last are for no_sync
    step       2. what has not been sent yet; then the optimizer inside steps on the mean, on the shard
               3. all-gather of the parameters, (N-1)/N P
Together 2(N-1)/N P, what the all-reduce of plain data parallelism sends. With reduce="all_reduce" in phase 1 every
rank gets every gradient's sum, of which it needs a shard: 3(N-1)/N P.
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from helpers.parallel.shared.bucket_rule import GLOO_BUCKET
from helpers.parallel.shared.buckets import watch_gradients
from helpers.parallel.zero.sharded_optimizer import (
    FlatVector,
    ShardedOptimizer,
    TrainedParameter,
    missing_gradients_message,
)

REDUCES = ("reduce_scatter", "all_reduce")


class FlatGradients:
    """The whole gradients of one vector in one flat tensor: micro-batches add up in it, then it is reduced in place."""

    def __init__(self, vector: FlatVector):
        self.vector, self.flat = vector, vector.layout.new_flat()  # (N s,)
        vector.use_gradient(vector.layout.shard_of(self.flat))
        self.views = dict(zip(map(id, vector.entries), vector.layout.views(self.flat), strict=True))
        self.work: dist.Work | None = None
        self.restart()

    def restart(self) -> None:
        """Nothing has come. What is under way must land first, since the next backward writes where it reads."""
        self.land()
        self.sent, self.waiting = False, set(self.views)

    @torch.no_grad()
    def take(self, entry: TrainedParameter) -> None:
        """Keep a gradient in the flat tensor, so that memory holds it once. One that is missing counts as zero."""
        gradient, view = entry.parameter.grad, self.views[id(entry)]
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            entry.parameter.grad = view

    def send(self, reduce: str) -> None:
        """From here on `.grad` is None: what lies in the flat tensor is no gradient of this rank any more."""
        for entry in self.vector.entries:
            entry.parameter.grad = None
        if reduce == "all_reduce":
            self.work = dist.all_reduce(self.flat, group=self.vector.layout.group, async_op=True)
        else:
            self.work = self.vector.layout.reduce_scatter(self.flat, async_op=True)
        self.sent = True

    def land(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None


class Zero1(ShardedOptimizer):
    """`optimizer = Zero1(model.parameters(), torch.optim.AdamW, group, lr=1e-3)`, then as with torch's: zero_grad,
    backward, step. The model is not wrapped.

    params: tensors, (name, tensor) pairs (then messages have names) or parameter groups with options of their own.
    optimizer_class: elementwise. reduce: "reduce_scatter" or "all_reduce". find_unused_parameters: some may get no
    gradient; then an integer a parameter is all-reduced, too, those that no rank used are left alone, and everything is
    sent in step(), since ranks that use different parts fill their buckets at different times.
    Several micro-batches, or gradients that you still change: backward under `no_sync`. A step right after it is fine.
    Construction makes trainable parameters equal to those of group rank 0. What was sent has no `.grad` any more: the
    mean lies in this rank's pieces, `param_groups[i]["params"]`, from `collect_gradients` on. After step() the
    gradients are spent: call zero_grad().
    bucket_bytes: parameters share a vector, and so a message, until they reach it; inf: all in one.
    Bytes a rank: parameters and gradients whole, the optimizer's state 1/N; padding below N elements a vector.
    Raises ValueError as `ShardedOptimizer` does and for an unknown `reduce`, RuntimeError for a missing gradient, one
    that comes after its bucket was sent, or a backward or a step on spent gradients.
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        reduce: str = "reduce_scatter",
        bucket_bytes: float = GLOO_BUCKET,
        find_unused_parameters: bool = False,
        **options,
    ):
        if reduce not in REDUCES:
            raise ValueError(f"Zero1 got reduce={reduce!r}; known are 'reduce_scatter' and 'all_reduce'")
        super().__init__(params, optimizer_class, group, bucket_bytes, options)
        self.reduce, self.find_unused = reduce, find_unused_parameters
        self.collected = self.spent = False
        self.buckets = [FlatGradients(vector) for vector in self.vectors]
        self._bucket_of = {number: bucket for bucket in self.buckets for number in bucket.views}
        watch_gradients(self.entries, self, "_arrived")

    def step(self) -> None:
        """Reduce what is left, step on the own shard, gather. Every rank must call it."""
        self.collect_gradients()
        self.optimizer.step()
        self.gather_parameters()
        self.spent = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. Their flat memory stays, for the next backward."""
        for bucket in self.buckets:
            bucket.restart()
            for entry in bucket.vector.entries:
                entry.parameter.grad = None if set_to_none else bucket.views[id(entry)].zero_()
        self.collected = self.spent = False

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Send what backward has not sent, and wait for the means. step() does it; call it yourself to look at them."""
        if self.spent:
            raise RuntimeError(
                "step() of Zero1 has used these gradients: call zero_grad() and backward before the next"
            )
        if self.collected:
            return
        self._check_complete()
        for bucket in self.buckets:
            if not bucket.sent:
                for entry in bucket.vector.entries:
                    bucket.take(entry)
                bucket.send(self.reduce)
        for bucket in self.buckets:
            bucket.land()
            bucket.vector.shard.grad /= self.group.size()
        self.collected = True
        self.hand_out_gradients(find_unused=self.find_unused)

    def _check_complete(self) -> None:
        """Before anything more is sent: every gradient is there once."""
        for bucket in self.buckets:
            for entry in bucket.vector.entries:
                if bucket.sent and entry.parameter.grad is not None:
                    raise RuntimeError(self._late_message(entry, "was set"))
                entry.present = bucket.sent or entry.parameter.grad is not None
        if not self.find_unused and not all(entry.present for entry in self.entries):
            raise RuntimeError(missing_gradients_message(self.entries, self.group.rank(), "Zero1"))

    def _arrived(self, entry: TrainedParameter) -> None:
        """Backward has added to this gradient: keep it in the flat tensor, and send the buckets that are full."""
        bucket = self._bucket_of[id(entry)]
        if bucket.sent:
            raise RuntimeError(self._late_message(entry, "came"))
        bucket.take(entry)
        if self._sync and not self.find_unused:
            bucket.waiting.discard(id(entry))
            self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        """In the same order on every rank, so never before an earlier one; several may be under way."""
        for bucket in self.buckets:
            if bucket.waiting:
                return
            if not bucket.sent:
                bucket.send(self.reduce)

    def _late_message(self, entry: TrainedParameter, how: str) -> str:
        return (
            f"a gradient of {entry.name} {how} after Zero1 had reduced the gradients of its bucket, so it would be "
            "lost. Run every micro-batch of a step but the last, and a parameter's checkpoints with "
            "use_reentrant=True, under no_sync(); call zero_grad() after step()"
        )
