"""Records the bytes that one rank holds during real steps: by kind, over time, at the peak, and by module.

Run the steps in `with record_memory(model, optimizer) as recorder:`, then read `recorder.peak`, `.at(mark)` and others.
memory_storages.py finds the storages (the memory behind tensors) and what each one is; memory_positions.py says where
in the step one was made. This file puts both together.

Every storage has one kind for its whole life:
    parameters    of the model; also full weights that a sharding strategy gathers for a module's forward
    gradients     what `.grad` of a parameter pointed to, looked up after each accumulation and at every mark
    optimizer     its state and its fp32 master weights; AdamW's 4-byte step counters are `step_counters`, in no kind
    buffers       of the model
    activations   made in the model's forward (or in the loss after it, or in a recomputation) and still there when that
                  pass had ended: what autograd saves for backward, and outputs that you keep; also the model's inputs
    temporaries   everything else: what a forward frees before it ends, gradients of activations, what an optimizer's
                  step needs for a moment

A storage that was there before and belongs to neither the model nor the optimizer is not counted, and neither is memory
that a kernel uses inside. The simulated devices of parallel/shared/virtual_devices.py count for themselves; here they
are CPU memory. On CUDA kinds are found in the same way. There torch's caching allocator takes more memory than the
tensors need, because it rounds sizes up to 512 bytes and keeps what is freed: torch.cuda.memory_reserved() counts that.
nvidia-smi shows 0.3 to 1 GB more: the CUDA context, and what libraries hold.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_iter

from helpers.devices import reporting_memory_kinds
from helpers.observe.memory_positions import PositionTracker
from helpers.observe.memory_storages import (
    STEP_COUNTERS,
    StorageInfo,
    StorageLabels,
    StorageSizes,
    StorageTracker,
    breakdown,
    describe,
    holdings,
    kind_of,
    num_events_at_peak,
    optimizers_in,
    sizes_after,
    totals,
)
from helpers.observe.timeline import TimelineRecorder, record_timeline
from helpers.records import MEMORY_KINDS, MemoryBreakdown, Timeline


@contextmanager
def record_memory(model: nn.Module, optimizer: object = None) -> Iterator[MemoryRecorder]:
    """Record the block: `with record_memory(model, optimizer) as recorder: step(); recorder.mark("after step")`.

    Enter it after the model and the optimizer exist. The state that an optimizer makes in its step is found even if the
    optimizer is not given. It is meant for a few steps, because the record grows with each operation. It also works on
    the meta device, where nothing is computed and bytes are counted all the same.
    Raises ValueError for a model without parameters, and for an optimizer that has no `param_groups`.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is None:
        raise ValueError(f"record_memory got a {type(model).__name__} without parameters; give the model that trains")
    optimizers = optimizers_in(optimizer)
    recorder = MemoryRecorder(model, optimizers, device)
    with ExitStack() as stack:
        with_hooks = next((found for found in optimizers if isinstance(found, Optimizer)), None)  # torch's own class
        recorder._spans = stack.enter_context(record_timeline(model, with_hooks))
        for handle in (*recorder._position.hooks(model), *recorder._labels.hooks()):
            stack.callback(handle.remove)
        stack.enter_context(recorder._tracker.watch_resizes())
        stack.enter_context(recorder._tracker)
        # On a simulated GPU that is full, the out-of-memory error lists the bytes by kind.
        stack.enter_context(reporting_memory_kinds(device, recorder._kinds_now))
        try:
            yield recorder
        finally:  # after an out-of-memory error, too: the record says what filled the memory
            recorder._finish()


class MemoryRecorder:
    """The bytes that one rank holds, as `record_memory` records them.

    Call `mark` inside the block, and the other methods inside it or after it. The kind of a storage counts for its
    whole life and may be found late: until a forward pass has ended, what it made counts as temporaries. So read
    `at(...)` after the step.
    """

    def __init__(self, model: nn.Module, optimizers: list, device: torch.device) -> None:
        # A lambda, because `_tracker` is made only in the next line, and needs the position itself.
        self._position = PositionTracker(self._before_forward, lambda: self._tracker.settle())
        self._tracker = StorageTracker(device, self._position.now)
        self._labels = StorageLabels(model, optimizers, self._tracker)
        self._events = self._tracker.events
        self._marks: dict[str, tuple[int, float]] = {}  # name: number of events so far, seconds
        self._spans: TimelineRecorder | None = None
        self._start = time.perf_counter()
        self._labels.label_all()

    def mark(self, name: str) -> None:
        """Name this instant, for `at(name)`. ValueError for a name that is taken, RuntimeError after the block."""
        if not self._tracker.running:
            raise RuntimeError(f"mark({name!r}) came after the block of record_memory had ended; move it inside")
        if not isinstance(name, str) or not name:
            raise ValueError(f"mark({name!r}): expected a text such as 'after backward'")
        if name in self._marks:
            raise ValueError(f"mark({name!r}): this name is taken; give each instant its own, as 'step 2, {name}'")
        self._labels.label_all()
        if not self._position.is_inside:  # no forward runs, so what the last one made was made to be kept
            self._tracker.settle()
        self._marks[name] = len(self._events), time.perf_counter()

    def at(self, name: str) -> MemoryBreakdown:
        """Bytes by kind at a marked instant. Raises ValueError for an unknown name."""
        return breakdown(self._sizes(name), name)

    def _kinds_now(self) -> dict[str, int]:
        """Bytes by kind, for the error of a device that is full.

        Inside a forward pass activations and temporaries are one number: which of the two a storage is, is known only
        when the pass has ended.
        """
        now = breakdown(sizes_after(self._events), "now")
        kinds = {kind: getattr(now, kind) for kind in MEMORY_KINDS}
        if self._position.is_inside:
            kinds["activations and temporaries"] = kinds.pop("activations") + kinds.pop("temporaries")
        return kinds

    @property
    def peak(self) -> MemoryBreakdown:
        """Bytes by kind when the total was largest; `.instant` is such as "backward of blocks.3.feed_forward"."""
        last = self._events[num_events_at_peak(self._events) - 1]  # the event that led to the peak
        return breakdown(self._sizes(), str(last.position))

    @property
    def curve(self) -> tuple[tuple[float, int], ...]:
        """One pair per change: (seconds since the block began, bytes from then on)."""
        return tuple((event.seconds - self._start, total) for _, event, total in totals(self._events))

    @property
    def instants(self) -> dict[str, float]:
        """Name of each mark -> seconds, on the clock of `curve`, in the order in which they were made."""
        return {name: seconds - self._start for name, (_, seconds) in self._marks.items()}

    @property
    def step_counters(self) -> int:
        """Bytes of the optimizers' step counters now, or at the end of the block."""
        sizes = sizes_after(self._events)
        return sum(num_bytes for storage, num_bytes in sizes if storage.kind == STEP_COUNTERS)

    def largest(self, num: int = 10, name: str | None = None) -> tuple[StorageInfo, ...]:
        """The `num` largest storages, largest first: at the mark `name`, or at the peak. ValueError for num below 1."""
        if num < 1:
            raise ValueError(f"largest({num}): expected 1 or more")
        found = [describe(*item) for item in self._sizes(name) if item[0].kind != STEP_COUNTERS]
        return tuple(sorted(found, key=lambda item: -item.num_bytes)[:num])

    def by_module(self, kind: str = "activations", name: str | None = None) -> dict[str, int]:
        """Path of a module -> its bytes of one kind, largest first: at the mark `name`, or at the peak.

        Raises ValueError for an unknown kind or name.
        """
        if kind not in MEMORY_KINDS:
            raise ValueError(f"by_module({kind!r}): the kinds are {', '.join(MEMORY_KINDS)}")
        sums: Counter[str] = Counter()
        for storage, num_bytes in self._sizes(name):
            if kind_of(storage) == kind:
                sums[storage.module] += num_bytes
        return dict(sums.most_common())

    def timeline(self, rank: int | None = None) -> Timeline:
        """The spans of `record_timeline`, and each storage with its lifetime, for the widget TimelineExplorer.

        rank: the number under which it appears; that of this rank if None. On CUDA a storage begins when the CPU asks
        for it, and a span when the GPU runs. Raises RuntimeError while the block still runs.
        """
        if self._tracker.running:
            raise RuntimeError("the block of record_memory still runs; read `timeline` after it")
        spans = self._spans.timeline
        number = rank if rank is not None else dist.get_rank() if dist.is_initialized() else 0
        lifetimes = tuple(holdings(self._events, number, self._end))
        return replace(spans, spans=tuple(replace(span, rank=number) for span in spans.spans), held=lifetimes)

    def _sizes(self, name: str | None = None) -> StorageSizes:
        """The storages and their bytes at a marked instant, or at the peak."""
        if name is not None and name not in self._marks:
            known = ", ".join(map(repr, self._marks)) or "none yet: call recorder.mark(name) inside the block"
            raise ValueError(f"no instant is called {name!r}; marked: {known}")
        num_events = num_events_at_peak(self._events) if name is None else self._marks[name][0]
        return sizes_after(self._events[:num_events])

    def _before_forward(self, module: nn.Module, inputs: object, is_outermost: bool) -> None:
        """Called before each module's forward; the outermost one is the model's own."""
        self._labels.label_weights_of(module)
        if is_outermost:
            tensors = (leaf for leaf in tree_iter(inputs) if isinstance(leaf, Tensor))
            self._tracker.keep_for_backward(tensors, self._labels.modules[module])

    def _finish(self) -> None:
        """Called when the block ends."""
        self._labels.label_all()
        self._tracker.settle()  # what the last forward made and is still there counts as activations
        self._end = time.perf_counter()
