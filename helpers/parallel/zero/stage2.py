"""ZeRO stage 2: shards optimizer state and gradients, so each rank stores only its shard's gradient after backward.

Legend: N = ranks, P = bytes of all parameters, padded bucket by bucket; m = micro-batches of a step,
s = elements of one rank's shard of a vector.
    backward   copies gradients into a bucket as they come, and drops them. A full bucket is reduce-scattered while
               backward goes on, then freed: (N-1)/N P per micro-batch. The shard's gradient accumulates the mean
    step       the optimizer inside updates the shards; then each bucket's parameters are all-gathered, (N-1)/N P
A vector (FlatVector in sharded_optimizer.py) is a flat tensor whose views are some of the parameters; an entry is one
trainable parameter. Each vector has a bucket (GradientBucket) for its gradients.
Together this is (m + 1)(N-1)/N P, because full gradients are gone before the next micro-batch. Under `no_sync` they are
accumulated first. That costs what stage 2 saves, P bytes of gradients per rank, but sends only 2(N-1)/N P. Full
gradients exist in at most two buckets: one in flight, and one that is being filled.
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.2.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from helpers.parallel.shared.bucket_rule import GLOO_BUCKET
from helpers.parallel.shared.buckets import watch_gradients, when_backward_starts
from helpers.parallel.shared.collectives import broadcast_tensors
from helpers.parallel.zero.sharded_optimizer import (
    FlatVector,
    ShardedOptimizer,
    TrainedParameter,
    missing_gradients_message,
)


class GradientBucket:
    """The full gradients of one vector, from the first that comes until they have been reduce-scattered."""

    def __init__(self, vector: FlatVector):
        self.vector, self.flat, self.work = vector, None, None
        self.sum = vector.layout.new_shard()  # (s,) the mean gradient of this rank's shard, of all micro-batches
        vector.use_gradient(self.sum)
        self.restart()

    def restart(self) -> None:
        """Start a new backward, in which no gradient has come."""
        self.flat = self.work = None  # (N s,) while gradients are there
        # id of an entry without a gradient in this backward -> its index in the layout
        self.waiting = {id(entry): index for index, entry in enumerate(self.vector.entries)}

    @torch.no_grad()
    def take(self, entry: TrainedParameter) -> None:
        """Copy a gradient into the bucket, divided by the number of ranks, and drop it. None counts as zero."""
        layout, gradient = self.vector.layout, entry.parameter.grad
        if self.flat is None:
            self.flat = layout.new_flat()
        index = self.waiting.pop(id(entry))
        if gradient is not None:
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            torch.mul(gradient, 1 / self.vector.group.size(), out=layout.view(self.flat, index))
            entry.parameter.grad, entry.present = None, True

    def send(self) -> None:
        """Start the reduce-scatter."""
        self.work = self.vector.layout.reduce_scatter(self.flat, async_op=True)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for the shard of the mean, accumulate it, and free the full gradients."""
        self.work.wait()
        self.sum += self.vector.layout.shard_of(self.flat)
        self.flat = self.work = None


class Zero2(ShardedOptimizer):
    """A sharded optimizer with sharded gradients: `Zero2(model, torch.optim.AdamW, group, lr=1e-3)`.

    Use it as a torch optimizer: zero_grad, backward, step. You still call the model itself.
    params: parameter groups of this model's parameters, with their own options; by default one group of all.
    bucket_bytes: gradients share a message until they reach this size. find_unused_parameters: some may get no gradient
    in a backward. Then each step also all-reduces one integer per parameter, and parameters that no rank used are not
    updated. Construction makes parameters and buffers equal to those of group rank 0.
    After backward a parameter's own `.grad` is None: the mean is in this rank's pieces, `param_groups[i]["params"]`.
    A rank stores all parameters, 1/N of gradients and optimizer state, and below N elements of padding per bucket.
    Raises ValueError as `ShardedOptimizer` does and for bucket_bytes not above 0, RuntimeError for a missing gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        params: Iterable | None = None,
        bucket_bytes: float = GLOO_BUCKET,
        find_unused_parameters: bool = False,
        **options,
    ):
        params = model.named_parameters() if params is None else params
        super().__init__(params, optimizer_class, group, bucket_bytes, options)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for entry in self.entries:
            entry.name = names.get(id(entry.parameter), entry.name)
        sharded = {id(entry.parameter) for entry in self.entries}
        frozen = [parameter for parameter in model.parameters() if id(parameter) not in sharded]
        broadcast_tensors([*frozen, *model.buffers()], self.group)
        self.find_unused = find_unused_parameters
        self.buckets = [GradientBucket(vector) for vector in self.vectors]
        self._bucket_of = {id(entry): bucket for bucket in self.buckets for entry in bucket.vector.entries}
        self._running = False  # whether a backward has begun and not ended
        watch_gradients(self.entries, self, "_arrived")
        self_ref = weakref.ref(self)
        handle = model.register_forward_hook(lambda _, __, output: self_ref()._forward_is_over(output))
        weakref.finalize(self, handle.remove)  # the hook goes when this optimizer is freed

    def step(self) -> None:
        """Update this rank's shard and gather the parameters. Every rank must call it."""
        self.collect_gradients()
        self.optimizer.step()
        self.gather_parameters()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. The memory of the shard's gradient stays."""
        for bucket in self.buckets:
            bucket.sum.zero_()
        for entry in self.entries:
            entry.parameter.grad, entry.present = None, False

    def collect_gradients(self) -> None:
        """Give the optimizer the mean gradients, which exist since backward. step() calls it, unless you have."""
        unsent = [entry.name for entry in self.entries if entry.parameter.grad is not None]
        if unsent:
            raise RuntimeError(
                f"{len(unsent)} gradients, the first of {unsent[0]}, were never reduced: run the last micro-batch of a "
                "step outside no_sync()"
            )
        if not self.find_unused and not all(entry.present for entry in self.entries):
            raise RuntimeError(missing_gradients_message(self.entries, self.group.rank(), "Zero2"))
        self.hand_out_gradients(find_unused=self.find_unused)

    def _forward_is_over(self, output: object) -> None:
        self._running = False  # if it is True, the last backward raised
        when_backward_starts(output, self._begin)

    def _begin(self) -> None:
        """Start a backward: empty the buckets, and have `_finish` called at its end."""
        if self._sync and not self._running:
            self._running, self._num_sent = True, 0  # _num_sent: how many buckets have been sent in this backward
            for bucket in self.buckets:
                bucket.restart()
            # not public, but torch's own DDP uses it: autograd calls the function when this backward ends
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _arrived(self, entry: TrainedParameter) -> None:
        """Handle a gradient that backward has accumulated: copy it into its bucket, and send full buckets."""
        if not self._sync:
            return
        self._begin()
        bucket = self._bucket_of[id(entry)]
        if id(entry) not in bucket.waiting:
            raise RuntimeError(
                f"the gradient of {entry.name} came twice in one backward; its bucket may be in flight. A parameter "
                "used in two reentrant checkpoints does this: pass use_reentrant=False to torch.utils.checkpoint"
            )
        bucket.take(entry)
        self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        """Send full buckets in the same order on every rank, so none before an earlier one, one at a time."""
        while self._num_sent < len(self.buckets) and not self.buckets[self._num_sent].waiting:
            self._finish_last()
            self.buckets[self._num_sent].send()
            self._num_sent += 1

    def _finish_last(self) -> None:
        """Wait for the bucket that was sent last, if there is one."""
        if self._num_sent:
            self.buckets[self._num_sent - 1].finish()

    def _finish(self) -> None:
        """End a backward: missing gradients count as zero here (step() may refuse them); send and wait for the rest."""
        for bucket in self.buckets:
            for entry in [entry for entry in bucket.vector.entries if id(entry) in bucket.waiting]:
                bucket.take(entry)
        self._send_full_buckets()
        self._finish_last()
        self._running = False
        for piece in self.pieces:
            piece.tensor.grad = piece.gradient if piece.entry.present else None
