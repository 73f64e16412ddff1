"""What one rank's file says it did: pieces of compute, data and host, and its messages.

Each thread is cut where its innermost event changes, and every piece has one owner. On a GPU the kernels compute, and
what the threads do is the host's. An operator that issued a message and does not return waits for it: such a piece is
the host's too, and what it waited for is decided where the ranks are brought together.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from helpers.records import Holding, Span
from helpers.traces.files import File, number
from helpers.traces.messages import Message, complete, is_call, is_message, message_of

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


class _Open:
    """An event whose end has not come yet. root: the outermost operator around it."""

    __slots__ = ("end", "lane", "name", "kind", "root", "key")

    def __init__(self, end: float, lane: str, name: str, kind: str, root: str, key: tuple[str, str] | None) -> None:
        self.end, self.lane, self.name, self.kind, self.root, self.key = end, lane, name, kind, root, key


def track_of(file: File, rank: int, origin: float) -> Track:
    """origin: microseconds of this file's own `ts` that become 0."""
    track = Track(rank=rank, host=file.host)
    whole = [event for event in file.events if event.get("ph") == "X" and "dur" in event]
    kernels = [event for event in whole if event.get("cat") in ON_GPU]
    track.on_gpu = bool(kernels)
    threads: dict[Any, list[dict]] = defaultdict(list)
    carriers = kernels if kernels else whole
    track.messages = [found for event in carriers if (found := message_of(event, rank, origin))]
    if any(message.name.startswith("wire:") for message in track.messages):  # it knows what gloo does, and more
        track.messages = [message for message in track.messages if not message.name.startswith("gloo:")]
    else:
        complete(track.messages, [event for event in whole if is_call(event["name"])], file.groups, origin)
    main = _main_thread(whole)
    for event in whole:
        if event.get("cat") in THREADS and (kernels or not is_message(event["name"])):
            threads[event.get("tid")].append(event)
    launched: dict[Any, tuple[str, str, str]] = {}
    for thread, events in threads.items():
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        spans = _cut(events, track, origin, launched)
        track.spans += spans if thread == main else [span for span in spans if span.name and span.lane != "host"]
    track.spans += _kernel_spans(kernels, track, origin, launched)
    track.steps = sorted(set(_steps(whole, origin)), key=lambda step: step.start)
    starts = [step.start for step in track.steps]
    for one in track.messages:
        place = bisect_right(starts, one.ready) - 1
        one.step = track.steps[place].number if place >= 0 else None
    track.held = list(_held(file.events, track, origin))
    return track


def _main_thread(events: list[dict]) -> Any:
    """The one that trains: it names the steps, or has most to do."""
    named = (event["tid"] for event in events if event.get("cat") == "user_annotation" and STEP.match(event["name"]))
    busy = Counter(event.get("tid") for event in events if event.get("cat") == "cpu_op")
    return next(named, busy.most_common(1)[0][0] if busy else None)


def _steps(events: list[dict], origin: float) -> Iterator[Step]:
    for event in events:
        if event.get("cat") == "user_annotation" and (found := STEP.match(event["name"])):
            start = (event["ts"] - origin) * _MICRO
            yield Step(number=int(found[1]), start=start, end=start + event["dur"] * _MICRO)


@functools.cache
def _is_quiet(name: str) -> bool:
    return is_call(name) or name.startswith(_QUIET)


def _opened(event: dict, above: _Open | None, on_gpu: bool) -> _Open:
    """To whom the time belongs in which this event is the innermost."""
    name, cat, end = event["name"], event["cat"], event["ts"] + event["dur"]
    lane, kind, root = (above.lane, above.kind, above.root) if above else ("host", "other", "")
    key = None
    if cat == "user_annotation":
        if name.startswith("Optimizer."):
            kind = "optimizer"
        lane = "data" if lane == "data" or _DATA.search(name.replace("_", " ")) else "host"
        name = "" if STEP.match(name) else name
    elif cat == "cpu_op":
        key = (name, str(event["args"].get("Input Dims", "")))
        if not root:
            root = name.removeprefix("autograd::engine::evaluate_function: ")
            backward = name.startswith("autograd::") or "Backward" in name
            kind = kind if kind == "optimizer" else "backward" if backward else "forward"
        if lane != "data":
            lane = "host" if on_gpu or _is_quiet(name) else "compute"
    return _Open(end, lane, name, kind, root, key)


def _cut(events: list[dict], track: Track, origin: float, launched: dict[Any, tuple[str, str, tuple]]) -> list[Span]:
    """One thread's pieces, neighbours of a lane and name joined. launched: external id -> kind, root, operator."""
    pieces: list[list] = []
    stack: list[_Open] = []
    at = events[0]["ts"]

    def until(now: float) -> None:
        nonlocal at
        if now > at:
            _add(pieces, at, now, stack[-1] if stack else None, track)
            at = now

    for event in events:
        while stack and stack[-1].end <= event["ts"]:
            until(stack[-1].end)
            stack.pop()
        until(event["ts"])
        opened = _opened(event, stack[-1] if stack else None, track.on_gpu)
        if opened.key and is_call(opened.name):
            for around in stack:  # what issues a message may wait for it before it returns
                around.lane = "host" if around.lane == "compute" else around.lane
        elif opened.key:
            track.operators[opened.key][1] += not track.on_gpu
            if track.on_gpu and (external := number(event["args"], "External id")) is not None:
                launched[external] = (opened.kind, opened.root, opened.key)
        stack.append(opened)
    while stack:
        until(stack[-1].end)
        stack.pop()
    return [
        Span.unchecked(track.rank, lane, name, kind, (start - origin) * _MICRO, (end - origin) * _MICRO)
        for start, end, lane, name, kind in pieces
    ]


def _add(pieces: list[list], start: float, end: float, owner: _Open | None, track: Track) -> None:
    lane, kind = (owner.lane, owner.kind) if owner else ("host", "other")
    kind = "data" if lane == "data" else kind
    name = (owner.name if lane == "host" and not track.on_gpu else owner.root or owner.name) if owner else ""
    if lane == "compute" and owner.key:
        track.operators[owner.key][0] += (end - start) * _MICRO
    last = pieces[-1] if pieces else None
    if last and last[1] == start and last[2:] == [lane, name, kind]:
        last[1] = end
        return
    if last and not last[3] and name:
        last[3] = f"→ {name}"  # between two operators: what came next
    pieces.append([start, end, lane, name, kind])


def _kernel_spans(kernels: list[dict], track: Track, origin: float, launched: dict) -> Iterator[Span]:
    for event in kernels:
        if is_message(event["name"]):
            continue
        external = number(event["args"], "External id")
        kind, root, key = launched.get(external, ("other", event["name"], (event["name"], "")))
        start = (event["ts"] - origin) * _MICRO
        entry = track.operators[key]
        entry[0] += event["dur"] * _MICRO
        entry[1] += 1
        yield Span.unchecked(track.rank, "compute", root, kind, start, start + event["dur"] * _MICRO)


def _held(events: list[dict], track: Track, origin: float) -> Iterator[Holding]:
    """What was allocated in the window and outlived its operator. Its kind is guessed from who made it.

    Kept by forward or the loader: activations, by backward: gradients, by the optimizer: its state; the rest are
    temporaries.
    """
    spans = sorted((span for span in track.spans if span.lane in ("compute", "data")), key=lambda span: span.start)
    starts, there = [span.start for span in spans], {}
    end = max((span.end for span in spans), default=0.0)
    kinds = {"data": "activations", "forward": "activations", "backward": "gradients", "optimizer": "optimizer"}

    def held(address: Any, until: float) -> Iterator[Holding]:
        at, num_bytes = there.pop(address)
        place = bisect_right(starts, at) - 1
        maker = spans[place] if place >= 0 else None
        if maker is None or until > maker.end:
            kind = kinds.get(maker.kind, "temporaries") if maker else "temporaries"
            name = maker.name if maker else ""
            yield Holding(rank=track.rank, name=name, kind=kind, num_bytes=num_bytes, start=at, end=max(at, until))

    for event in sorted((one for one in events if one.get("name") == "[memory]"), key=lambda one: one["ts"]):
        args, at = event["args"], (event["ts"] - origin) * _MICRO
        address = (number(args, "Device Type"), number(args, "Addr"))
        if num_bytes := number(args, "Bytes"):
            there[address] = (at, num_bytes)
        elif address in there:
            yield from held(address, at)
    for address in list(there):
        yield from held(address, max(end, there[address][0]))
