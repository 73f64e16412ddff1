"""Provides buckets: flat buffers for many gradients, so that one message carries them all.

A Bucket is one flat tensor, and a Slot is the part of it that belongs to one parameter. DDP (ddp/simple.py) fills and
sends them during backward. ZeRO has its own flat tensors, and uses only the functions at the end of this file, which
tell a wrapper when a backward starts and when a gradient has come.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from helpers.parallel.shared.bucket_rule import MIB, split_into_buckets

UNTIL_BACKWARD_ENDS = math.inf  # a value of `Slot.expected` that is never reached, so the bucket waits for the end


class Slot:
    """One parameter's part of a bucket, and the state of its gradient in this backward.

    view: the part of the bucket's flat tensor, with the parameter's shape. fired: how often the gradient hook ran in
    this backward. expected: how often it will run (1; with
    `static_graph` and checkpoints, as often as DDP counted in the first step). ready: the
    gradient is in the bucket. present: this rank has a gradient for it. used: some rank has.
    """

    def __init__(self, index: int, name: str, parameter: nn.Parameter):
        self.index, self.name, self.parameter = index, name, parameter
        self.bucket: Bucket  # the Bucket sets this and `view`
        self.view: Tensor
        self.fired: int = 0
        self.expected: float = 1
        self.ready, self.present, self.used = False, True, True

    def count_arrival(self) -> None:
        """Count that the hook has fired. Raises RuntimeError if it fires more often than expected in one backward."""
        self.fired += 1
        if self.fired > self.expected:
            raise RuntimeError(
                f"the gradient of {self.name} arrived {self.fired} times in one backward, {self.expected} expected: "
                "its bucket may already be in flight. A parameter used in two reentrant checkpoints does this. Pass "
                "use_reentrant=False to torch.utils.checkpoint, or static_graph=True to DistributedDataParallel"
            )

    @torch.no_grad()
    def fill(self, scale: float) -> None:
        """Write scale * gradient (zeros if there is none) into the bucket and let `.grad` be the view of it."""
        gradient = self.parameter.grad
        if gradient is None:
            return self.fill_with_zeros()
        if gradient.is_sparse:
            raise ValueError(
                f"the gradient of {self.name} is sparse, but buckets are dense: build the embedding with sparse=False"
            )
        torch.mul(gradient, scale, out=self.view)
        self.parameter.grad = self.view
        self._mark_ready(present=True)

    def fill_with_zeros(self) -> None:
        """Contribute zeros to the sum; `.grad` does not change."""
        self.view.zero_()
        self._mark_ready(present=False)

    def _mark_ready(self, *, present: bool) -> None:
        self.ready, self.present = True, present
        self.bucket.pending -= 1


class Bucket:
    """One flat tensor for the gradients of several parameters. It has the methods of torch's GradBucket."""

    def __init__(self, index: int, slots: Sequence[Slot], is_last: bool):
        self.slots, self._index, self._is_last = list(slots), index, is_last
        first = slots[0].parameter
        self.flat = torch.zeros(sum(s.parameter.numel() for s in slots), dtype=first.dtype, device=first.device)
        pieces = self.flat.split([slot.parameter.numel() for slot in slots])
        for slot, piece in zip(slots, pieces, strict=True):
            slot.bucket, slot.view = self, piece.view_as(slot.parameter)
        self.restart()

    def restart(self) -> None:
        """Start a new backward, in which no gradient has come yet."""
        self.pending = len(self.slots)  # gradients still to come
        for slot in self.slots:
            slot.fired, slot.ready = 0, False

    def fill(self, scale: float) -> None:
        """Write scale * gradient of every parameter into the bucket; every `.grad`, even None, becomes a view."""
        for slot in self.slots:
            slot.fill(scale)
            slot.parameter.grad = slot.view

    def fill_with_zeros(self) -> None:
        """Fill the bucket as if every gradient had come once and were zero.

        A rank that has no data left sends such a bucket, because the other ranks' all-reduce waits for it.
        """
        for slot in self.slots:
            slot.fired = 1
            slot.fill_with_zeros()

    def receive(self, result: object) -> None:
        """Copy the result of a communication hook's Future into the bucket.

        A collective's Work has written into the bucket itself, and its `wait()` returns no tensor.
        """
        if isinstance(result, Tensor) and result.data_ptr() != self.flat.data_ptr():
            self.flat.copy_(result)

    def index(self) -> int:
        """Return the position of this bucket in the order of sending, from 0."""
        return self._index

    def is_last(self) -> bool:
        """Return whether no bucket follows."""
        return self._is_last

    def buffer(self) -> Tensor:
        """Return the flat tensor itself, which a hook may change in place."""
        return self.flat

    def set_buffer(self, tensor: Tensor) -> None:
        """Copy `tensor`, which is as long as the flat tensor, into it."""
        self.flat.copy_(tensor)

    def gradients(self) -> list[Tensor]:
        """Return one view per parameter, in the order of the bucket."""
        return [slot.view for slot in self.slots]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters, in the order of the bucket."""
        return [slot.parameter for slot in self.slots]


def build_buckets(slots: Sequence[Slot], bucket_cap_mb: float, first_bucket_mb: float) -> list[Bucket]:
    """Make zeroed buckets for `slots`, given in the order in which their gradients become ready. Caps are in MiB."""
    parameters = [slot.parameter for slot in slots]
    groups = bucket_positions(parameters, bucket_cap_mb * MIB, first_bucket_mb * MIB)
    return [Bucket(i, [slots[p] for p in group], i == len(groups) - 1) for i, group in enumerate(groups)]


def bucket_positions(tensors: Sequence[Tensor], bucket_cap: float, first_bucket_cap: float) -> list[list[int]]:
    """Group the positions of `tensors` into buckets of one dtype and device. Caps are in bytes (bucket_rule.py).

    Parameters whose replicas are on other ranks (placement.py) have buckets of their own.
    """
    keys = [(tensor.dtype, tensor.device, getattr(tensor, "replicas", None)) for tensor in tensors]
    sizes = [tensor.nbytes for tensor in tensors]
    return split_into_buckets(sizes, keys=keys, bucket_cap=bucket_cap, first_bucket_cap=first_bucket_cap)


def when_backward_starts(output: object, callback: Callable[[], None]) -> None:
    """Call `callback` when a backward reaches a tensor of `output`, before it computes anything else.

    DDP uses it to ask autograd's engine for a callback at the end of backward. A reentrant checkpoint runs a second
    backward inside the first, and a callback that is asked for in there would come at the end of the inner one.
    """
    for leaf in tree_iter(output):  # all that is in nested tuples, lists and dictionaries
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(lambda _: callback())


def trainable_slots(module: nn.Module) -> list[Slot]:
    """Make one slot per trainable parameter; a tied one counts once. Raises ValueError if nothing is trainable."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError(
            f"{type(module).__name__} has no parameter with requires_grad=True, so there is no gradient to average: "
            "use the module as it is"
        )
    return [Slot(i, name, parameter) for i, (name, parameter) in enumerate(named)]


@contextmanager
def without_sync(wrapper) -> Iterator[None]:
    """Set `wrapper._sync` to False inside the `with`: the wrapper (DDP, ZeRO) then accumulates and sends nothing."""
    before, wrapper._sync = wrapper._sync, False
    try:
        yield
    finally:
        wrapper._sync = before


def watch_gradients(slots: Sequence[Slot], owner: object, method: str) -> None:
    """Call the method named `method` of `owner` with a slot when its gradient was accumulated, while `owner` lives.

    The hooks do not keep the owner alive, because a model that is wrapped a second time must not send everything twice.
    """
    owner_ref = weakref.ref(owner)
    for slot in slots:
        # slot=slot binds the present slot; without it, all hooks would use the last one
        hook = lambda _, slot=slot: getattr(owner_ref(), method)(slot)  # noqa: E731
        handle = slot.parameter.register_post_accumulate_grad_hook(hook)
        weakref.finalize(owner, handle.remove)
