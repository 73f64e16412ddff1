"""Implements a practice card's streams and events, which record with clocks what comes after what.

A practice card is a simulated GPU. Everything is done when a call returns, so streams and events order nothing here.
They only record what would be in order on a GPU, so that races.py can find what is not. Each stream has a clock,
{number of a stream: how many pieces of its work this one comes after}. The number of a piece of work is its "tick". An
event stores a clock, and a stream that waits for the event comes after all that is in it. The "host" is the Python
program, with a clock of its own. A "queue" is the stream on which NCCL would run a group's messages. Nothing is counted
before a second stream exists.

The names are those of torch.cuda: CardStream is torch.card.Stream, CardEvent is torch.card.Event.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from helpers.devices.call_site import Frame, call_site

is_watching = False  # whether clocks count: there is a side stream, a message in flight, or a copy in the background
epoch = 0  # counts the times that is_watching became True; work of an earlier epoch is done
# Called with what happened ("sync", "record", "wait_event" or "wait_for_event") and details. A rank writes them into
# its journal, by which helpers/ranks/nccl finds out what NCCL would have done.
on_note: Callable | None = None
before_host_goes_on: list[Callable[[], None]] = []  # called when the host has waited for something
host: dict[int, int] = {}  # the host's clock: the work for which it has waited
_numbers, _events = itertools.count(), itertools.count(1)  # of streams and of recordings of events
_all: weakref.WeakSet[CardStream] = weakref.WeakSet()  # every stream
_local = threading.local()  # .stream: the stream that this thread has set
_backwards: list[CardStream] = []  # the streams of the backwards that run, the innermost last
_lock = threading.RLock()  # held while a clock changes


class CardStream:
    """A stream, whose work is in order. It is also a context, as torch.cuda.stream(stream) is.

    device, priority: as torch.cuda.Stream has them, without effect. key: by which a stream is told apart for the user;
    a backward has the key of the stream that called it. is_queue: whether it is not the user's (a queue or a backward).
    """

    device = property(lambda self: torch.device("card", 0))

    # ids: stream_id and the like, which torch.cuda.Stream accepts, without effect.
    def __init__(
        self, device=None, priority: int = 0, *, key: int | None = None, is_queue: bool = False, **ids
    ) -> None:
        self.priority, self.is_queue = priority, is_queue
        self.number = next(_numbers)
        self.key = self.cuda_stream = self.stream_id = self.number if key is None else key
        self.clock = dict(host)  # its work comes after all for which the program has waited so far
        self.has_graph = False  # whether operations on it took part in a graph of autograd
        self.backward: CardStream | None = None  # the stream of the backwards that were called on this one
        self.site: Frame | None = None  # the line that called the backward, if it is the stream of one
        self._before: list[CardStream | None] = []  # this thread's streams before each `with` of this one
        _all.add(self)
        if self.number and not is_queue:  # number 0 is the default stream
            watch()

    def step(self) -> int:
        """Count one more piece of work; returns its number."""
        self.clock[self.number] = tick = self.clock.get(self.number, 0) + 1
        return tick

    def comes_after(self, clock: dict[int, int]) -> None:
        """From now on, the work of this stream comes after the work in this clock."""
        with _lock:
            for number, tick in clock.items():
                if self.clock.get(number, 0) < tick:
                    self.clock[number] = tick

    def wait_stream(self, other: CardStream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: CardEvent) -> None:
        self.comes_after(event.clock)
        _note("wait_event", event=event.number, stream=self.key)

    def record_event(self, event: CardEvent | None = None) -> CardEvent:
        event = event or CardEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        host_waits("synchronize", self)

    def query(self) -> bool:
        # Always True, since all is done. A program that hears True has waited, as after `synchronize`.
        host_waits("synchronize", self)
        return True

    def __enter__(self) -> CardStream:
        self._before.append(set_stream(self))
        return self

    def __exit__(self, *error) -> None:
        _local.stream = self._before.pop()


class CardEvent:
    """An event, which is recorded at once. It has the methods of torch.cuda.Event, and raises the same errors."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        # seconds: when it was recorded. number: of this recording, in the journal of NCCL's rules.
        self.timing, self.seconds, self.clock, self.number = enable_timing, None, {}, next(_events)

    def record(self, stream: CardStream | None = None) -> None:
        stream = stream or current()
        self.seconds, self.clock, self.number = time.perf_counter(), dict(stream.clock), next(_events)
        _note("record", event=self.number, stream=stream.key)

    def wait(self, stream: CardStream | None = None) -> None:
        (stream or current()).wait_event(self)

    def synchronize(self) -> None:
        _host_comes_after(self.clock)
        _note("wait_for_event", event=self.number)

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, end: CardEvent) -> float:
        """Milliseconds from this event to the other. Raises RuntimeError, as CUDA's does, for events without timing."""
        if not (self.timing and end.timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.seconds - self.seconds) * 1e3


DEFAULT = CardStream()  # the default stream, which gets number 0


def current() -> CardStream:
    """This thread's stream; inside a backward, which has threads of its own, the backward's."""
    return getattr(_local, "stream", None) or (_backwards[-1] if _backwards else DEFAULT)


def set_stream(stream: CardStream | None) -> CardStream | None:
    """Set this thread's stream; None changes nothing. Returns the stream that was set before."""
    before = getattr(_local, "stream", None)
    if stream is not None:
        _local.stream = stream
        if stream is not DEFAULT:
            watch()
    return before


@contextmanager
def on(stream: CardStream | None) -> Iterator[CardStream | None]:
    """torch.cuda.stream(stream), where None changes nothing."""
    before = set_stream(stream)
    try:
        yield stream
    finally:
        _local.stream = before


def watch() -> None:
    """Begin to count, because work can now be on more than one stream."""
    global is_watching, epoch
    if not is_watching:
        is_watching, epoch = True, epoch + 1


def stop_watching_if_idle() -> None:
    """Stop counting if the user has no side stream. Call it when no message and no copy is in flight."""
    global is_watching
    is_watching = any(one.number and not one.is_queue for one in list(_all))


def finish_all() -> None:
    """The default stream and those that scripts made have done all their work."""
    for one in list(_all):
        if not one.is_queue:
            _host_comes_after(one.clock)


def host_waits(what: str, stream: CardStream | None = None, *, whole_card: bool = False) -> None:
    """The host waits for a stream, by default this thread's, or for all that the card does. what: name of the call."""
    for one in list(_all) if whole_card else [stream or current()]:
        _host_comes_after(one.clock)
    _note("sync", what=what, stream="all" if whole_card else (stream or current()).key)


def _host_comes_after(clock: dict[int, int]) -> None:
    """The host has waited for the work in this clock, so all that it calls from now on comes after, on any stream."""
    if is_watching:
        for number, tick in clock.items():
            host[number] = max(tick, host.get(number, 0))
        for one in list(_all):
            one.comes_after(host)
        for done in before_host_goes_on:
            done()


def _note(kind: str, **what) -> None:
    if on_note is not None:
        on_note(kind, **what)


@contextmanager
def backward() -> Iterator[None]:
    """Inside this context a backward runs, with a stream of its own.

    On a GPU, autograd runs each part of a backward on the stream of its forward, and lets these streams wait for each
    other. Here one stream stands for all of them. It comes after every stream with a forward, and the caller's stream
    comes after it.
    """
    if not is_watching:
        yield
        return
    caller, before = current(), getattr(_local, "stream", None)
    stream = caller.backward = caller.backward or CardStream(key=caller.key, is_queue=True)
    stream.site = call_site()
    for one in list(_all):
        if one is caller or one.has_graph:
            stream.comes_after(one.clock)
    _local.stream = None  # then `current` returns the backward's stream in this thread, too
    _backwards.append(stream)
    try:
        yield
    finally:
        _backwards.pop()
        _local.stream = before
        caller.comes_after(stream.clock)
