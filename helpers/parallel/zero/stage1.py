"""ZeRO stage 1: every rank holds all weights and gradients, but steps on its shard and keeps the state of that alone.

Legend: N = ranks, P = bytes of all parameters, padded so that N divides them.
    backward   nothing is sent; micro-batches add up in the flat gradient
    step       1. reduce-scatter of the gradients, (N-1)/N P: a rank gets the mean of its shard
               2. the optimizer inside steps on the shard
               3. all-gather of the parameters, (N-1)/N P
Together 2(N-1)/N P, what the all-reduce of plain data parallelism sends. With reduce="all_reduce" in phase 1 every
rank gets every mean gradient, of which it needs a shard: 3(N-1)/N P.
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.parallel.shared.bucket_rule import MIB
from helpers.parallel.shared.buckets import watch_gradients
from helpers.parallel.zero.sharded_optimizer import Entry, ShardedOptimizer, missing_gradients_message

REDUCES = ("reduce_scatter", "all_reduce")


class Zero1(ShardedOptimizer):
    """`optimizer = Zero1(model.parameters(), torch.optim.AdamW, group, lr=1e-3)`, then as with torch's: zero_grad,
    backward, step. The model is not wrapped.

    params: tensors, (name, tensor) pairs (then messages have names) or parameter groups with options of their own.
    optimizer_class: elementwise. reduce: "reduce_scatter" or "all_reduce". find_unused_parameters: some may get no
    gradient; then an integer a parameter is all-reduced, too, and those that no rank used are left alone.
    Construction makes trainable parameters equal to those of group rank 0. After step() the gradients are spent: call
    zero_grad(). bucket_bytes: parameters share a vector, and so a message, until they reach it; inf: all in one.
    Bytes a rank: parameters and gradients whole, the optimizer's state 1/N; padding below N elements a vector.
    Raises ValueError as `ShardedOptimizer` does and for an unknown `reduce`, RuntimeError for a missing gradient or a
    backward or a step on spent gradients.
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        reduce: str = "reduce_scatter",
        bucket_bytes: float = 25 * MIB,
        find_unused_parameters: bool = False,
        **options,
    ):
        if reduce not in REDUCES:
            raise ValueError(f"Zero1 got reduce={reduce!r}; known are 'reduce_scatter' and 'all_reduce'")
        super().__init__(params, optimizer_class, group, bucket_bytes, options)
        self.reduce, self.find_unused = reduce, find_unused_parameters
        self.collected = self.spent = False
        self.gradients = [vector.layout.new_flat() for vector in self.vectors]  # (N s,) each
        self.views: dict[int, Tensor] = {}  # id of an entry: its place in the flat gradient
        for vector, flat in zip(self.vectors, self.gradients, strict=True):
            vector.use_gradient(vector.layout.shard_of(flat))
            self.views |= zip(map(id, vector.entries), vector.layout.views(flat), strict=True)
        watch_gradients(self.entries, self, "_arrived")

    def step(self) -> None:
        """Reduce, step on the own shard, gather. Every rank must call it."""
        self.collect_gradients()
        self.optimizer.step()
        self.gather_parameters()
        self.spent = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients. Their flat memory stays, for the next backward."""
        for entry in self.entries:
            entry.parameter.grad = None if set_to_none else self.views[id(entry)].zero_()
        self.collected = self.spent = False

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Phase 1. step() does it; call it yourself to look at the mean gradients before."""
        if self.spent:
            raise RuntimeError(
                "step() of Zero1 has used these gradients: call zero_grad() and backward before the next"
            )
        if self.collected:
            return
        self._fill()
        for vector, flat in zip(self.vectors, self.gradients, strict=True):
            if self.reduce == "all_reduce":
                dist.all_reduce(flat, group=self.group)
                flat /= self.group.size()
            else:
                vector.layout.reduce_scatter(flat)  # in place: the rest of `flat` is of no use any more
                vector.shard.grad /= self.group.size()
        self.collected = True
        self.hand_out_gradients(find_unused=self.find_unused)

    def _fill(self) -> None:
        """Every gradient lies in the flat vector; one that is missing counts as zero there, or is an error."""
        for entry in self.entries:
            entry.present = entry.parameter.grad is not None
            self._move(entry)
        if not self.find_unused and not all(entry.present for entry in self.entries):
            raise RuntimeError(missing_gradients_message(self.entries, self.group.rank(), "Zero1"))

    @torch.no_grad()
    def _arrived(self, entry: Entry) -> None:
        """Backward has added to this gradient: keep it in the flat vector, so that memory holds it once."""
        if self.collected:
            raise RuntimeError(
                f"backward reached {entry.name} after Zero1 had reduced the gradients, so they are no longer sums of "
                "this rank: call zero_grad() after step(), and add micro-batches up before it"
            )
        self._move(entry)

    def _move(self, entry: Entry) -> None:
        gradient, view = entry.parameter.grad, self.views[id(entry)]
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            entry.parameter.grad = view
