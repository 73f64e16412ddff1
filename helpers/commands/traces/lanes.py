"""What one rank's file says it did: pieces of compute, data and host, and its messages.

Each thread is cut where its innermost event changes, and every piece has one owner. On a GPU the kernels compute, and
what the threads do is the host's. An operator that issued a message and does not return waits for it: such a piece is
the host's too, and what it waited for is decided where the ranks are brought together.
"""

from __future__ import annotations

import functools
import json
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from helpers.commands.traces.files import Event, File, whole
from helpers.commands.traces.messages import Message, complete, is_call, is_message, message_of
from helpers.records import Holding, Span

THREADS = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#(\d+)")
_DATA = re.compile(r"data ?load|enumerate\(|\b(?:data|load|loading|loader|fetch|(?:next|get) batch)\b", re.IGNORECASE)
_QUIET = (
    "autograd::engine::",
    "torch::autograd::AccumulateGrad",
    "RegisterPostBackward",
    "FSDP::",
)
_MICRO = 1e-6


@dataclass(frozen=True, kw_only=True)
class Step:
    """One turn of the training loop on one rank, from ProfilerStep#number. Seconds."""

    number: int
    start: float
    end: float


@dataclass(kw_only=True)
class Track:
    """What one rank did, in seconds from the trace's origin. operators: (name, shapes) -> [seconds, calls]."""

    rank: int
    host: str
    on_gpu: bool = False
    spans: list[Span] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    held: list[Holding] = field(default_factory=list)
    operators: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0]))


class _Place:
    """To whom the time belongs in which an event is the innermost. root: the outermost operator around it.

    label: lane, name and kind of its pieces. inner: what opened within it before, by name and category.
    """

    def __init__(self, lane: str, name: str, kind: str, root: str, on_gpu: bool, is_operator: bool = False) -> None:
        self.lane, self.name, self.kind, self.root = lane, name, kind, root
        self.on_gpu, self.is_operator, self.is_call = on_gpu, is_operator, is_operator and is_call(name)
        shown = name if lane == "host" and not on_gpu else root or name
        self.label = (lane, shown, "data" if lane == "data" else kind)
        self.inner: dict[tuple[str, str], _Place] = {}

    @functools.cached_property
    def waiting(self) -> _Place:
        """The same once it issued a message: it may wait for it before it returns."""
        lane = "host" if self.lane == "compute" else self.lane
        return _Place(lane, self.name, self.kind, self.root, self.on_gpu, self.is_operator)


def track_of(file: File, rank: int, origin: float) -> Track:
    """origin: microseconds of this file's own `ts` that become 0."""
    track = Track(rank=rank, host=file.host)
    timed = [event for event in file.events if event.ph == "X" and event.dur >= 0]
    kernels = [event for event in timed if event.cat in ON_GPU]
    track.on_gpu = bool(kernels)
    threads: dict[Any, list[Event]] = defaultdict(list)
    carriers = kernels if kernels else timed
    track.messages = [message_of(event, rank, origin) for event in carriers if is_message(event.name)]
    if any(message.name.startswith("wire:") for message in track.messages):  # it knows what gloo does, and more
        track.messages = [message for message in track.messages if not message.name.startswith("gloo:")]
    else:
        complete(track.messages, [event for event in timed if is_call(event.name)], file.groups, origin)
    main = _main_thread(timed)
    for event in timed:
        if event.cat in THREADS and (kernels or not is_message(event.name)):
            threads[event.tid].append(event)
    launched: dict[Any, tuple[str, str, str]] = {}
    for thread, events in threads.items():
        events.sort(key=lambda event: (event.ts, -event.dur))
        spans = _cut(events, track, origin, launched)
        track.spans += spans if thread == main else [span for span in spans if span.name and span.lane != "host"]
    track.spans += _kernel_spans(kernels, track, origin, launched)
    track.steps = sorted(set(_steps(timed, origin)), key=lambda step: step.start)
    starts = [step.start for step in track.steps]
    for one in track.messages:
        place = bisect_right(starts, one.ready) - 1
        one.step = track.steps[place].number if place >= 0 else None
    track.held = _held(file.events, track, origin)
    return track


def _main_thread(events: list[Event]) -> Any:
    """The one that trains: it names the steps, or has most to do."""
    named = (event.tid for event in events if event.cat == "user_annotation" and STEP.match(event.name))
    busy = Counter(event.tid for event in events if event.cat == "cpu_op")
    return next(named, busy.most_common(1)[0][0] if busy else None)


def _steps(events: list[Event], origin: float) -> Iterator[Step]:
    for event in events:
        if event.cat == "user_annotation" and (found := STEP.match(event.name)):
            start = (event.ts - origin) * _MICRO
            yield Step(number=int(found[1]), start=start, end=start + event.dur * _MICRO)


@functools.cache
def _is_quiet(name: str) -> bool:
    return is_call(name) or name.startswith(_QUIET)


def _opened(name: str, cat: str, above: _Place) -> _Place:
    """Within another one. All steps are one place, so that what opens within them is looked at once."""
    lane, kind, root = above.lane, above.kind, above.root
    if cat == "user_annotation":
        if name.startswith("Optimizer."):
            kind = "optimizer"
        lane = "data" if lane == "data" or _DATA.search(name.replace("_", " ")) else "host"
        name = "" if STEP.match(name) else name
    elif cat == "cpu_op":
        if not root:
            root = name.removeprefix("autograd::engine::evaluate_function: ")
            backward = name.startswith("autograd::") or "Backward" in name
            kind = kind if kind == "optimizer" else "backward" if backward else "forward"
        if lane != "data":
            lane = "host" if above.on_gpu or _is_quiet(name) else "compute"
    return above.inner.setdefault((name, cat), _Place(lane, name, kind, root, above.on_gpu, cat == "cpu_op"))


@functools.cache
def _shapes(text: bytes) -> str:
    return str(json.loads(text)) if text else ""


def _cut(events: list[Event], track: Track, origin: float, launched: dict[Any, tuple[str, str, tuple]]) -> list[Span]:
    """One thread's pieces, neighbours of a label joined. launched: external id -> kind, root, operator."""
    at = events[0].ts
    pieces: list[list] = [[at, at, ("host", "…", "")]]  # of no length: there is a last one always
    stack = [(math.inf, _Place("host", "", "other", "", track.on_gpu), None)]  # end, whose time, operator's sums

    def until(now: float) -> None:
        nonlocal at
        _, place, sums = stack[-1]
        if sums and place.lane == "compute":
            sums[0] += (now - at) * _MICRO
        last = pieces[-1]
        if last[2] == place.label:
            last[1] = now
        else:
            if place.label[1] and not last[2][1]:
                last[2] = (last[2][0], f"→ {place.label[1]}", last[2][2])  # between two operators: what came next
            pieces.append([at, now, place.label])
        at = now

    for event in [*events, Event("", math.inf)]:  # the last one closes what is open
        start = event.ts
        while (end := stack[-1][0]) <= start and len(stack) > 1:
            if end > at:
                until(end)
            stack.pop()
        if at < start < math.inf:
            until(start)
        above, named, sums = stack[-1][1], (event.name, event.cat), None
        place = above.inner.get(named) or above.inner.setdefault(named, _opened(*named, above))
        if place.is_call:
            stack = [(end, around.waiting, theirs) for end, around, theirs in stack]
        elif place.is_operator:
            sums = _sums(event, place, track, launched)
        stack.append((start + event.dur, place, sums))
    return [
        Span.unchecked(track.rank, *label[:2], label[2], (start - origin) * _MICRO, (end - origin) * _MICRO)
        for start, end, label in pieces[1:]
    ]


def _sums(event: Event, place: _Place, track: Track, launched: dict[Any, tuple[str, str, tuple]]) -> list[float]:
    """Where this operator's seconds and calls are added up."""
    own = event.own
    key = (event.name, _shapes(bytes(own.shapes)))
    sums = track.operators[key]
    sums[1] += not track.on_gpu
    if track.on_gpu and whole(own.external) is not None:
        launched[own.external] = (place.kind, place.root, key)
    return sums


def _kernel_spans(kernels: list[Event], track: Track, origin: float, launched: dict) -> Iterator[Span]:
    for event in kernels:
        if is_message(event.name):
            continue
        external = whole(event.own.external)
        kind, root, key = launched.get(external, ("other", event.name, (event.name, "")))
        start = (event.ts - origin) * _MICRO
        entry = track.operators[key]
        entry[0] += event.dur * _MICRO
        entry[1] += 1
        yield Span.unchecked(track.rank, "compute", root, kind, start, start + event.dur * _MICRO)


def _held(events: list[Event], track: Track, origin: float) -> list[Holding]:
    """What was allocated in the window and outlived its operator. Its kind is guessed from who made it.

    Kept by forward or the loader: activations, by backward: gradients, by the optimizer: its state; the rest are
    temporaries.
    """
    spans = sorted((span for span in track.spans if span.lane in ("compute", "data")), key=lambda span: span.start)
    starts, there = [span.start for span in spans], {}
    end = max((span.end for span in spans), default=0.0)
    kinds = {"data": "activations", "forward": "activations", "backward": "gradients", "optimizer": "optimizer"}

    found: list[Holding] = []

    def held(address: Any, until: float) -> None:
        at, num_bytes = there.pop(address)
        place = bisect_right(starts, at) - 1
        maker = spans[place] if place >= 0 else None
        if maker is None or until > maker.end:
            kind = kinds.get(maker.kind, "temporaries") if maker else "temporaries"
            name = maker.name if maker else ""
            when = {"start": at, "end": max(at, until)}
            found.append(Holding(rank=track.rank, name=name, kind=kind, num_bytes=num_bytes, **when))

    for event in sorted((one for one in events if one.name == "[memory]"), key=attrgetter("ts")):
        own, at = event.own, (event.ts - origin) * _MICRO
        address = (whole(own.device), whole(own.address))
        if num_bytes := whole(own.num_bytes):
            there[address] = (at, num_bytes)
        elif address in there:
            held(address, at)
    for address in list(there):
        held(address, max(end, there[address][0]))
    return found
