"""ZeRO stage 1: shards the optimizer state, so each rank updates its shard of the weights and all-gathers the rest.

Every rank still stores all weights and gradients. Legend: N = ranks, P = bytes of all parameters, padded to N shards,
s = elements of one rank's shard of a vector.
    no_sync    sends nothing; micro-batches are accumulated in the flat gradients
    backward   1. reduce-scatters each full bucket of gradients while backward goes on, (N-1)/N P, so that a rank gets
                  the sum of its shard. It works in place, so only once per step: run earlier micro-batches under
                  no_sync
    step       2. sends what has not been sent yet; then the optimizer inside updates the shard with the mean gradient
               3. all-gathers the parameters, (N-1)/N P
A vector (FlatVector in sharded_optimizer.py) is a flat tensor whose views are some of the parameters; an entry is one
trainable parameter. Each vector has a bucket (FlatGradients) for its gradients.
Together this is 2(N-1)/N P, as much as the all-reduce of plain data parallelism sends. With reduce="all_reduce" every
rank gets the sum of all gradients, of which it needs only a shard: 3(N-1)/N P.
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
    """One vector's gradients in a flat tensor (N s,), which accumulates micro-batches and is reduced in place."""

    def __init__(self, vector: FlatVector):
        self.vector, self.flat = vector, vector.layout.new_flat()  # (N s,)
        vector.use_gradient(vector.layout.shard_of(self.flat))
        # by id of an entry: the part of the flat tensor that belongs to its gradient
        self.views = dict(zip(map(id, vector.entries), vector.layout.views(self.flat), strict=True))
        self.work: dist.Work | None = None  # the reduction in flight
        self.restart()

    def restart(self) -> None:
        """Start a new step. A reduction in flight must end first, because the next backward writes where it reads."""
        self.wait()
        self.sent, self.waiting = False, set(self.views)  # waiting: ids of entries without a gradient in this backward

    @torch.no_grad()
    def take(self, entry: TrainedParameter) -> None:
        """Move a gradient into the flat tensor, of which `.grad` becomes a view. A missing gradient counts as zero."""
        gradient, view = entry.parameter.grad, self.views[id(entry)]
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            entry.parameter.grad = view

    def send(self, reduce: str) -> None:
        """Start the reduction, and set `.grad` to None, because the flat tensor no longer has this rank's gradients."""
        for entry in self.vector.entries:
            entry.parameter.grad = None
        if reduce == "all_reduce":
            self.work = dist.all_reduce(self.flat, group=self.vector.layout.group, async_op=True)
        else:
            self.work = self.vector.layout.reduce_scatter(self.flat, async_op=True)
        self.sent = True

    def wait(self) -> None:
        """Wait for the reduction, if one is in flight."""
        if self.work is not None:
            self.work.wait()
            self.work = None


class Zero1(ShardedOptimizer):
    """A sharded optimizer: `Zero1(model.parameters(), torch.optim.AdamW, group, lr=1e-3)`. The model is not wrapped.

    Use it as a torch optimizer: zero_grad, backward, step. Run backward under `no_sync` for all micro-batches but the
    last, and where you change gradients yourself before step().
    params: tensors, (name, tensor) pairs (then errors have names) or parameter groups with their own options.
    optimizer_class: must be elementwise. reduce: "reduce_scatter" or "all_reduce". bucket_bytes: parameters share a
    vector, and so a message, until they reach this size; with inf all share one.
    find_unused_parameters: some may get no gradient. Then one integer per parameter is all-reduced, too, and parameters
    that no rank used are not updated. Everything is sent in step(), because ranks that use different parameters would
    fill their buckets at different times.
    Construction makes trainable parameters equal to those of group rank 0. Gradients that were sent have no `.grad` any
    more: from `collect_gradients` on, their mean is in this rank's pieces, `param_groups[i]["params"]`. After step()
    they are used up, so call zero_grad().
    A rank stores all parameters and gradients, 1/N of the optimizer state, and below N elements of padding per vector.
    Raises ValueError as `ShardedOptimizer` does and for an unknown `reduce`; RuntimeError for a missing gradient, for
    one that comes after its bucket was sent, and for a backward or step on gradients that are used up.
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
        self.collected = False  # whether the pieces have their mean gradients
        self.spent = False  # whether step() has used them
        self.buckets = [FlatGradients(vector) for vector in self.vectors]
        self._bucket_of = {entry_id: bucket for bucket in self.buckets for entry_id in bucket.views}
        watch_gradients(self.entries, self, "_arrived")  # calls self._arrived(entry) when backward has its gradient

    def step(self) -> None:
        """Reduce what is left, update this rank's shard, and gather the parameters. Every rank must call it."""
        self.collect_gradients()
        self.optimizer.step()
        self.gather_parameters()
        self.spent = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. Their flat memory stays for the next backward."""
        for bucket in self.buckets:
            bucket.restart()
            for entry in bucket.vector.entries:
                entry.parameter.grad = None if set_to_none else bucket.views[id(entry)].zero_()
        self.collected = self.spent = False

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Send what backward has not sent, and wait for the mean gradients. step() calls it, unless you have."""
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
            bucket.wait()
            bucket.vector.shard.grad /= self.group.size()
        self.collected = True
        self.hand_out_gradients(find_unused=self.find_unused)

    def _check_complete(self) -> None:
        """Check, before anything more is sent, that every gradient is there exactly once."""
        for bucket in self.buckets:
            for entry in bucket.vector.entries:
                if bucket.sent and entry.parameter.grad is not None:
                    raise RuntimeError(self._late_message(entry, "was set"))
                entry.present = bucket.sent or entry.parameter.grad is not None
        if not self.find_unused and not all(entry.present for entry in self.entries):
            raise RuntimeError(missing_gradients_message(self.entries, self.group.rank(), "Zero1"))

    def _arrived(self, entry: TrainedParameter) -> None:
        """Handle a gradient that backward has accumulated: move it into the flat tensor, and send full buckets."""
        bucket = self._bucket_of[id(entry)]
        if bucket.sent:
            raise RuntimeError(self._late_message(entry, "came"))
        bucket.take(entry)
        if self._sync and not self.find_unused:
            bucket.waiting.discard(id(entry))
            self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        """Send full buckets in the same order on every rank, so none before an earlier one."""
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
