"""Records what one rank does when: compute by hooks on modules and the optimizer, messages by `record_comms`.

Chapters, the memory recorder and the emulations use `record_timeline`. A `Timeline` is a list of spans, each with a
rank, a lane ("compute" or "communication"), a name, a kind, a start and an end. `rename_like` gives the spans of a
recorded step of DDP the names that they have in a simulated step, so that a picture can show both.

Forward: hooks run before and after each part of the model. Backward: a hook is on each part's output, and the part's
backward runs from the arrival of that gradient to the arrival of the next part's. Such a hook returns None, so it
changes no gradient; full backward hooks would wrap the inputs. Optimizer: hooks run before and after `step`.

A part is a child of the model; wrappers with one child and module lists are looked through. What runs between the last
part's forward and the first part's backward is one span, "loss". A rank that waits for a message inside a part's
forward or backward counts as computing there. On CUDA the instants are events on the current stream, read at the end,
so that recording does not make the CPU wait for the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.utils._pytree import tree_iter

from helpers.devices import module_of, runs_later, synchronize
from helpers.observe.comms import record_comms
from helpers.records import CommEvent, Holding, Span, Timeline


def parts(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> module of the parts that get spans, such as "blocks.0"; the model itself if it has no children."""
    found: dict[str, nn.Module] = {}
    _collect(model, "", found)
    return found or {type(model).__name__: model}


def _collect(module: nn.Module, prefix: str, found: dict[str, nn.Module]) -> None:
    """Add the parts below `module` to `found`. prefix: the path of the module, with a dot at its end."""
    children = dict(module.named_children())
    for name, child in children.items():
        path = f"{prefix}{name}"
        is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        is_wrapped = len(children) == 1 and any(True for _ in child.children())
        if is_list or is_wrapped:
            _collect(child, "" if name == "module" else f"{path}.", found)  # DDP and others name their child "module"
        else:
            found[path] = child


class _Clock:
    """Instants as `time.perf_counter` seconds. On CPU they are read at once, on CUDA at the end of the recording.

    An instant is a float on the CPU and an event on CUDA, where kernels run later than the call that starts them.
    """

    def __init__(self, device: torch.device) -> None:
        self.later = runs_later(device)
        if self.later:
            self._module = module_of(device)
            synchronize(device)
            self._zero, self._zero_event = time.perf_counter(), self._event()

    def _event(self) -> torch.Event:
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def now(self) -> float | torch.Event:
        """This instant."""
        return self._event() if self.later else time.perf_counter()

    def seconds(self, instant: float | torch.Event) -> float:
        """An instant in seconds."""
        if not self.later:
            return instant
        instant.synchronize()
        return self._zero + self._zero_event.elapsed_time(instant) / 1e3  # milliseconds


class TimelineRecorder:
    """Turns marks into spans. One span is open at a time; a mark closes it and opens the next one."""

    def __init__(self, clock: _Clock, rank: int, source: str, title: str) -> None:
        self._clock, self._rank, self._source, self._title = clock, rank, source, title
        self._open: tuple[str, str, object] | None = None  # name, kind, start
        self._outer: list[tuple[str, str] | None] = []  # the span that a recomputation inside a backward interrupts
        self._closed: list[tuple[str, str, object, object]] = []  # name, kind, start, end
        self._events: list[CommEvent] = []
        self._callback_is_queued = False  # whether autograd will call `_backward_ends`, which is asked for once
        self._loss_starts: object = None  # the instant at which the last part's forward ended

    def mark(self, name: str | None, kind: str = "") -> None:
        """End the open span; with a name, start the next one at the same instant."""
        instant = self._clock.now()
        if self._open is not None:
            self._closed.append((*self._open, instant))
        self._open = None if name is None else (name, kind, instant)

    def enter(self, name: str, kind: str, *_: object) -> None:
        """A forward or an optimizer step starts; what it interrupts goes on after it."""
        self._loss_starts = None  # another part follows, so the loss has not begun yet
        self._outer.append(self._open[:2] if self._open else None)
        self.mark(name, kind)

    def leave(self, *_: object) -> None:
        """Return to what the forward or the optimizer step interrupted."""
        interrupted = self._outer.pop() if self._outer else None  # its name and kind
        self.mark(*(interrupted or (None,)))

    def leave_forward(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        """End the forward of a part. The arrival of its output's gradient will be the start of its backward."""
        self.leave()
        self._loss_starts = self._clock.now() if self._open is None else None  # None inside a recomputation
        for leaf in tree_iter(output):  # the tensors in an output, which may be nested in lists, tuples and dicts
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(partial(self._backward_starts, name))

    def _backward_starts(self, name: str, gradient: torch.Tensor) -> None:
        """The hook on a part's output: its gradient has arrived."""
        if not self._callback_is_queued:
            self._callback_is_queued = True
            Variable._execution_engine.queue_callback(self._backward_ends)
            self._open = ("loss", "other", self._loss_starts) if self._loss_starts else None
        self.mark(name, "backward")

    def _backward_ends(self) -> None:
        """Called by autograd when the whole backward has ended."""
        self._callback_is_queued = False
        self.mark(None)

    def finish(self, events: tuple[CommEvent, ...]) -> None:
        """Close the open span, and add the messages that `record_comms` recorded."""
        if self._open is not None:
            self.mark(None)
        self._events = list(events)

    @property
    def timeline(self) -> Timeline:
        """The spans of this rank, after the block. `Timeline.merge(ranks.run(step))` joins those of all ranks."""
        at = self._clock.seconds
        compute = [
            Span(rank=self._rank, lane="compute", name=name, kind=kind, start=at(start), end=at(end))
            for name, kind, start, end in self._closed
        ]
        spans = compute + [communication_span(event) for event in self._events]
        return Timeline(spans=tuple(sorted(spans, key=lambda s: s.start)), source=self._source, title=self._title)


def communication_span(event: CommEvent, name: str = "") -> Span:
    """The span of one recorded message, named by its operation if no name is given."""
    fields = {"rank": event.rank, "lane": "communication", "name": name or event.op, "kind": "communication"}
    return Span(**fields, start=event.start, end=event.end, num_bytes=event.payload_bytes)


@contextmanager
def record_timeline(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    source: str = "recorded",
    title: str = "",
    by_part: bool = True,
) -> Iterator[TimelineRecorder]:
    """Record the block: `with record_timeline(model, optimizer) as recorder: step()`, then read `recorder.timeline`.

    A part is a child of the model, as the module docstring says. Times are `time.perf_counter` seconds, one clock for
    all ranks of a Linux machine. source: "emulated" when the link or the compute is modelled. by_part: whether spans
    are made for the parts of the model; otherwise the code that runs it marks spans by `recorder.enter(name, kind)` and
    `.leave()`. Without a process group there is compute only, as rank 0. Raises ValueError when the optimizer has no
    step hooks or the model no parameters.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is None:
        raise ValueError(f"record_timeline got a {type(model).__name__} without parameters; give the model that trains")
    in_a_rank = dist.is_initialized()
    with ExitStack() as stack:
        comms = stack.enter_context(record_comms()) if in_a_rank else None
        recorder = TimelineRecorder(_Clock(device), dist.get_rank() if in_a_rank else 0, source, title)
        for handle in _hooks(recorder, model if by_part else None, optimizer):
            stack.callback(handle.remove)
        yield recorder
        recorder.finish(())  # ends the open span now; the messages are complete once the recording of comms has ended
    recorder.finish(comms.log.events if comms else ())


def _hooks(recorder: TimelineRecorder, model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> list:
    """Register the hooks on the parts of the model and on the optimizer; returns the handles to remove."""
    handles = []
    for name, part in (parts(model) if model else {}).items():
        handles.append(part.register_forward_pre_hook(partial(recorder.enter, name, "forward")))
        handles.append(part.register_forward_hook(partial(recorder.leave_forward, name)))
    if optimizer is None:
        return handles
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise ValueError(f"{type(optimizer).__name__} has no step hooks; give a torch.optim.Optimizer, or none")
    handles.append(optimizer.register_step_pre_hook(partial(recorder.enter, type(optimizer).__name__, "optimizer")))
    handles.append(optimizer.register_step_post_hook(recorder.leave))
    return handles


def rename_like(recorded: Timeline, predicted: Timeline) -> Timeline:
    """The recorded step of DDP with the names, spans and memory of `predicted`, so that both can be compared.

    predicted: what `simulate_ddp_step` returned for it. Forward becomes one span; backward spans get the prediction's
    names; a message begins when the one before it has arrived, not when it was passed to the link; gradients are held
    from the moment they are ready. Times stay as recorded. Raises ValueError where a rank has more or fewer backward
    spans than were predicted, because the names cannot be assigned then.
    """
    zeroed, first = recorded.shifted_to_zero(), predicted.for_rank(predicted.ranks[0])
    spans, holdings = [], []
    for rank in zeroed.ranks:
        renamed = list(_renamed_spans(zeroed.for_rank(rank).spans, first.spans))
        spans += renamed
        holdings += _holdings_of(rank, renamed, first.held, zeroed.duration)
    return replace(zeroed, spans=tuple(spans), held=tuple(holdings))


def _of_kind(spans: Sequence[Span], kind: str) -> list[Span]:
    """The spans of this kind, in the order of their starts."""
    return sorted((span for span in spans if span.kind == kind), key=lambda span: span.start)


def _renamed_spans(recorded: Sequence[Span], predicted: Sequence[Span]) -> Iterator[Span]:
    """A rank's spans: one forward, each backward with its predicted name, messages one by one, and the rest."""
    forward, backward, messages = (_of_kind(recorded, kind) for kind in ("forward", "backward", "communication"))
    names = [span.name for span in _of_kind(predicted, "backward")]
    if len(names) != len(backward):
        raise ValueError(
            f"the run has {len(backward)} backward spans on a rank and the prediction {len(names)}; "
            "give the prediction of this very step"
        )
    if forward:
        yield replace(forward[0], name="forward", end=forward[-1].end)
    yield from (replace(span, name=name) for span, name in zip(backward, names, strict=True))
    yield from _messages_on_the_link(messages)
    yield from (span for span in recorded if span.kind not in ("forward", "backward", "communication"))


def _messages_on_the_link(messages: Sequence[Span]) -> Iterator[Span]:
    """A message is recorded from when its bucket was sent; here it starts when the one before it has arrived."""
    free = 0.0  # when the link has carried the message before
    for number, span in enumerate(messages):
        # `min`, because no span may start after its own end, and clocks differ a little.
        yield replace(span, name=f"all_reduce {number}", start=min(max(span.start, free), span.end))
        free = span.end


def _holdings_of(rank: int, spans: Sequence[Span], predicted: Sequence[Holding], end: float) -> Iterator[Holding]:
    """The predicted bytes at the recorded times: parameters always, each gradient from the end of its backward on.

    A Holding is a number of bytes that a rank stores from a start to an end. A gradient's has the name of the backward
    span that makes it; those with other names begin at 0.
    """
    ready = {span.name: span.end for span in spans if span.kind == "backward"}
    for one in predicted:
        yield replace(one, rank=rank, start=ready.get(one.name, 0.0), end=end)
