"""Turns one rank's trace file into spans of compute, data loading and host time, messages, steps and allocations.

A trace has events: operators, annotations, kernels and allocations, each with a start `ts` and a duration `dur` in
microseconds. A span is a stretch of time in seconds, in one of the lanes "compute", "data" (loading) and "host" (all
else). Its kind is "forward", "backward", "optimizer", "data" or "other". A track is all of this for one rank.

Each thread is cut wherever its innermost event changes, and every piece belongs to the event that is innermost there.
On a GPU the kernels are the compute, and what the threads do is host time. An operator that has issued a message may
wait for it before it returns, so the rest of it counts as host time. `waterfall.py` decides later what was waiting.
"""

from __future__ import annotations

import functools
import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from helpers.commands.traces.files import STEP, TraceFile, whole_number
from helpers.commands.traces.messages import TracedMessage, add_gloo_calls, is_call, is_message, message_of
from helpers.records import Holding, Span

if TYPE_CHECKING:
    from helpers.commands.traces.events import Event

THREAD_CATEGORIES = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
# Kinds that say again what others say, or when a thread or a stream waited: their time is in the parts already.
_REPEATED = ("gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "Trace", "cpu_instant_event", None, "")
# What a label says if data is loaded in it, in lower case and with one space between its words; see `is_loading`.
_ACTS = r"(?:(?:pre)?(?:load|fetch)(?:ing|er)?|read|get|next|prepare|collate|copy|move|wait)"
_THINGS = r"(?:data|(?:micro|mini)?batch(?:es)?|inputs|samples?|examples?|dataset|loader|iter|iterator)"
_PATTERNS = (
    r"\bdata ?load|加载数据|数据加载|读取数据",
    rf"\b{_ACTS} (?:\w+ ){{0,2}}{_THINGS}\b",  # "get_next_batch", "wait for the data"
    r"\b(?:load|fetch|get|next)(?:data|batch)\b",
    r"\b(?:data|batch|inputs?|samples?) (?:load|fetch|read|copy|transfer|wait|time|prefetch|pipeline|generator)",
    r"\bdataset (?:getitem|next|iter)\b",
    r"\b(?:h ?2 ?d|h ?to ?d)\b|\bhost to device\b|\b(?:data|batch|inputs?) (?:\w+ )?to (?:gpu|cuda|device)\b",
    r"^(?:data|dataset|load|loading|loader|fetch|prefetch|collate|to device|to gpu)$",
)
_LOADING = re.compile("|".join(_PATTERNS))
# What it says if something else is moved, although it names data or loading.
_NOT_LOADING = re.compile(
    r"data parallel|\bdist\b|all ?(?:2|to) ?all|reduce|gather|scatter|broadcast|checkpoint|state|weight|param|model"
    r"|optimizer|\bgrad|\bloss|balanc|forward|backward|\b(?:ptr|size|norm)\b"
)
_WORD_ENDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W_]+")  # also those in "DataLoader"
# Operators and labels of a model at work. A label around one of them is no loading, whatever it says.
_MODEL = re.compile(
    r"aten::(?:linear|matmul|mm|addmm|bmm|baddbmm|embedding|layer_norm|batch_norm|group_norm|scaled_dot_product_attention"
    r"|cross_entropy_loss|nll_loss)\b|autograd::|DistributedDataParallel\.forward|Optimizer\.step"
)
# Names of calls that give work to a device, and torch's labels around the calls of a GPU's collectives.
_LAUNCH = re.compile(r"(?:cuda|hip|cu|xpu|ur|ze)\w*(?:Launch|Memcpy)\w*|runFunction|enqueue|nccl:")
# Beginnings of the names of operators that do not compute themselves.
_BOOKKEEPING = ("autograd::engine::", "torch::autograd::AccumulateGrad", "RegisterPostBackward", "FSDP::")
_MICROSECOND = 1e-6  # seconds
# The operators that launched kernels: external id, by which a kernel names its operator -> the operator's kind, root
# (the outermost operator around it) and (name, shapes).
Launches = dict[Any, tuple[str, str, tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the training loop on one rank, from the event ProfilerStep#number. Times are in seconds."""

    number: int
    start: float
    end: float


@dataclass(kw_only=True)
class RankTrack:
    """What one rank did, in seconds from the trace's origin.

    host: the name of the machine, while the lane "host" is host time. on_gpu: whether the trace has kernels.
    allocations: what was allocated, when. operators: (name, shapes) -> [seconds, calls].
    unknown: category -> how many events of this kind were left out, since this file does not know it.
    lacks_kernels: whether the threads gave work to a device, of which the trace has no kernel.
    behind: by how many seconds the GPU fell behind the CPU from the first step to the end of the last one.
    """

    rank: int
    host: str
    on_gpu: bool = False
    spans: list[Span] = field(default_factory=list)
    messages: list[TracedMessage] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    allocations: list[Holding] = field(default_factory=list)
    operators: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0]))
    unknown: Counter[str] = field(default_factory=Counter)
    lacks_kernels: bool = False
    behind: float = 0.0


@functools.cache
def is_loading(label: str) -> bool:
    """Whether a label says that data is loaded: "load_batch" does, "data_parallel_step" and "sparse_data_dist" do not.

    torch itself writes "enumerate(DataLoader)#…" around each batch that a DataLoader gives.
    """
    plain = _WORD_ENDS.sub(" ", label).strip().lower()
    return is_loader(label) or bool(_LOADING.search(plain) and not _NOT_LOADING.search(plain))


def is_loader(label: str) -> bool:
    """Whether torch wrote this label around a DataLoader, so that all inside it is loading."""
    return label.startswith("enumerate(DataLoader)")


@functools.cache
def _is_of_model(name: str) -> bool:
    return _MODEL.match(name) is not None


def _unlabel_model(events: list[Event]) -> None:
    """Makes plain frames of the labels that say that they load but enclose an operator of the model.

    events: of one thread, in order of their start.
    """
    labels = [event for event in events if event.cat == "user_annotation" and is_loading(event.name)]
    works = [event.ts for event in events if labels and _is_of_model(event.name)]
    of_model = {
        label.name for label in labels if bisect_left(works, label.ts) < bisect_left(works, label.ts + label.dur)
    }
    for label in labels:
        if label.name in of_model and not is_loader(label.name):
            label.cat = "python_function"


class _Context:
    """What a piece of time belongs to while one event is the innermost.

    Events with the same name inside the same outer events share one context, so that each is classified once.
    name: of the event. root: the outermost operator around it. is_call: whether it issues or awaits a message.
    label: lane, name and kind of the spans that are made of its pieces.
    inner: the contexts that opened inside this one before, by name and category.
    """

    def __init__(self, lane: str, name: str, kind: str, root: str, on_gpu: bool, is_operator: bool = False) -> None:
        self.lane, self.name, self.kind, self.root = lane, name, kind, root
        self.on_gpu, self.is_operator, self.is_call = on_gpu, is_operator, is_operator and is_call(name)
        # Host time on a CPU shows what the thread did just then; all else shows the operator that the user called.
        shown = name if lane == "host" and not on_gpu else root or name
        self.label = (lane, shown, "data" if lane == "data" else kind)
        self.inner: dict[tuple[str, str], _Context] = {}

    @functools.cached_property
    def after_call(self) -> _Context:
        """The same context after a message was issued in it: what follows may be waiting, so it is not compute."""
        lane = "host" if self.lane == "compute" else self.lane
        return _Context(lane, self.name, self.kind, self.root, self.on_gpu, self.is_operator)


def track_of(file: TraceFile, rank: int, origin: float) -> RankTrack:
    """The track of a file. origin: the `ts` of this file, in microseconds, that becomes 0."""
    track = RankTrack(rank=rank, host=file.host)
    timed = [event for event in file.events if event.ph == "X" and event.dur >= 0]
    kernels = [event for event in timed if event.cat in GPU_CATEGORIES]
    track.on_gpu = bool(kernels)
    track.unknown = Counter(str(event.cat) for event in timed if not _is_known(event))
    track.lacks_kernels = not kernels and any(_is_of_thread(event) and _LAUNCH.match(event.name) for event in timed)
    track.messages = _messages(kernels or timed, timed, file, rank, origin)
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in timed:  # without kernels, an event of a message is no work of the thread
        if _is_of_thread(event) and (kernels or not is_message(event.name)):
            threads[event.tid].append(event)
    main, launches = _main_thread(timed), {}
    for thread, events in threads.items():
        events.sort(key=lambda event: (event.ts, -event.dur))  # an outer event before those inside it
        _unlabel_model(events)
        spans = _cut(events, track, origin, launches)
        # Of other threads, such as autograd's, only their work counts: their host time is mostly waiting.
        track.spans += spans if thread == main else [span for span in spans if span.name and span.lane != "host"]
    track.spans += _kernel_spans(kernels, track, origin, launches)
    track.steps = sorted(set(_steps(timed, origin)), key=lambda step: step.start)  # set: equal events count once
    track.behind = _fell_behind(kernels, timed, track.steps, origin)
    starts = [step.start for step in track.steps]
    for message in track.messages:
        index = bisect_right(starts, message.ready) - 1
        message.step = track.steps[index].number if index >= 0 else None
    track.allocations = _allocations(file.events, track, origin)
    return track


def _is_of_thread(event: Event) -> bool:
    """Whether a thread of the CPU did this. Other devices' calls are in categories such as "xpu_runtime"."""
    return event.cat in THREAD_CATEGORIES or str(event.cat).endswith(("_runtime", "_driver"))


def _is_known(event: Event) -> bool:
    return event.cat in _REPEATED or event.cat in GPU_CATEGORIES or _is_of_thread(event) or is_message(event.name)


def _messages(
    carriers: list[Event], timed: list[Event], file: TraceFile, rank: int, origin: float
) -> list[TracedMessage]:
    """The messages of this rank. carriers: the events that may move bytes, kernels on a GPU and all events on a CPU."""
    messages = [message_of(event, rank, origin) for event in carriers if is_message(event.name)]
    # The wire, this course's backend, sends through gloo and records more, so its events replace those of gloo.
    if any(message.name.startswith("wire:") for message in messages):
        return [message for message in messages if not message.name.startswith("gloo:")]
    add_gloo_calls(messages, [event for event in timed if is_call(event.name)], file.groups, origin)
    return messages


def _main_thread(events: list[Event]) -> Any:
    """The thread that trains: the one that names the steps, or the one with most operators."""
    naming = (event.tid for event in events if event.cat == "user_annotation" and STEP.match(event.name))
    operators = Counter(event.tid for event in events if event.cat == "cpu_op")
    return next(naming, operators.most_common(1)[0][0] if operators else None)


def _steps(events: list[Event], origin: float) -> Iterator[Step]:
    """The steps that the trace names."""
    for event in events:
        if event.cat == "user_annotation" and (found := STEP.match(event.name)):
            start = (event.ts - origin) * _MICROSECOND
            yield Step(number=int(found[1]), start=start, end=start + event.dur * _MICROSECOND)


@functools.cache
def _is_bookkeeping(name: str) -> bool:
    return is_call(name) or name.startswith(_BOOKKEEPING)


def _opened(name: str, category: str, outer: _Context) -> _Context:
    """The context of an event inside `outer`, which stores it in `outer.inner`.

    The name of a step is left out, so that what opens in all steps is classified once.
    """
    lane, kind, root = outer.lane, outer.kind, outer.root
    if category == "user_annotation":
        if name.startswith("Optimizer."):
            kind = "optimizer"
        lane = "data" if lane == "data" or is_loading(name) else "host"
        name = "" if STEP.match(name) else name
    elif category == "cpu_op":
        if not root:
            root = name.removeprefix("autograd::engine::evaluate_function: ")
            is_backward = name.startswith("autograd::") or "Backward" in name
            kind = kind if kind == "optimizer" else "backward" if is_backward else "forward"
        if lane != "data":
            lane = "host" if outer.on_gpu or _is_bookkeeping(name) else "compute"
    context = _Context(lane, name, kind, root, outer.on_gpu, category == "cpu_op")
    return outer.inner.setdefault((name, category), context)


@functools.cache
def _shapes(text: bytes) -> str:
    """The shapes of an operator's inputs, with one form of white space for all traces."""
    return str(json.loads(text)) if text else ""


@dataclass(slots=True)
class _Piece:
    """A stretch of one thread's time in microseconds. label: the lane, name and kind of its span."""

    start: float
    end: float
    label: tuple[str, str, str]


def _cut(events: list[Event], track: RankTrack, origin: float, launches: Launches) -> list[Span]:
    """One thread's pieces as spans; neighbours with the same label are joined. It fills `launches`."""
    at = events[0].ts  # up to which time pieces are made
    pieces = [_Piece(at, at, ("host", "…", ""))]  # this first one is dropped at the end
    # (end, context, the operator's [seconds, calls] or None) of all events that are open, the innermost last. The first
    # entry is no event and never ends: it takes the time in which no event is open.
    stack = [(math.inf, _Context("host", "", "other", "", track.on_gpu), None)]

    def give_time_to_innermost(until: float) -> None:
        nonlocal at
        _, context, sums = stack[-1]
        if sums and context.lane == "compute":
            sums[0] += (until - at) * _MICROSECOND
        last = pieces[-1]
        if last.label == context.label:
            last.end = until
        else:
            (lane, name, kind), next_name = last.label, context.label[1]
            if next_name and not name:  # time between two operators is named by what comes next
                last.label = (lane, f"→ {next_name}", kind)
            pieces.append(_Piece(at, until, context.label))
        at = until

    for event in [*events, type(events[0])("", math.inf)]:  # the added Event closes all that are open
        start = event.ts
        while (end := stack[-1][0]) <= start and len(stack) > 1:
            if end > at:
                give_time_to_innermost(end)
            stack.pop()
        if at < start < math.inf:
            give_time_to_innermost(start)
        outer, key, sums = stack[-1][1], (event.name, event.cat), None
        context = outer.inner.get(key) or _opened(*key, outer)
        if context.is_call:  # from now on all outer events may be waiting for the message
            stack = [(end, one.after_call, of_operator) for end, one, of_operator in stack]
        elif context.is_operator:
            sums = _operator_sums(event, context, track, launches)
        stack.append((start + event.dur, context, sums))
    times = (((one.start - origin) * _MICROSECOND, (one.end - origin) * _MICROSECOND, one) for one in pieces[1:])
    return [Span.unchecked(track.rank, *one.label, start, end) for start, end, one in times]  # unchecked: it is faster


def _operator_sums(event: Event, context: _Context, track: RankTrack, launches: Launches) -> list[float]:
    """The [seconds, calls] of this operator. On a GPU its kernels add to them, by way of `launches`."""
    fields = event.fields
    key = (event.name, _shapes(bytes(fields.shapes)))
    sums = track.operators[key]
    if not track.on_gpu:
        sums[1] += 1  # on a GPU, its kernels are counted
    elif whole_number(fields.external) is not None:
        launches[fields.external] = (context.kind, context.root, key)
    return sums


def _kernel_spans(kernels: list[Event], track: RankTrack, origin: float, launches: Launches) -> Iterator[Span]:
    """The kernels as compute spans with the names and kinds of the operators that launched them."""
    for event in kernels:
        if is_message(event.name):
            continue
        external = whole_number(event.fields.external or event.fields.old_external)
        kind, root, key = launches.get(external, ("other", event.name, (event.name, "")))
        start = (event.ts - origin) * _MICROSECOND
        sums = track.operators[key]
        sums[0] += event.dur * _MICROSECOND
        sums[1] += 1
        yield Span.unchecked(track.rank, "compute", root, kind, start, start + event.dur * _MICROSECOND)


def _fell_behind(kernels: list[Event], timed: list[Event], steps: list[Step], origin: float) -> float:
    """How much longer the GPU lags at the end of the last step than at the start of the first one, in seconds.

    Its lag is the time that what was launched at that moment still waits for its turn. Where the lag grows, the steps
    on the CPU are shorter than the GPU's, and what the GPU does later is in none of them.
    """
    if not kernels or not steps:
        return 0.0
    first, last = (origin + at / _MICROSECOND for at in (steps[0].start, steps[-1].end))
    calls = (event for event in timed if first <= event.ts < last and _is_of_thread(event) and "_" in str(event.cat))
    launches = {event.fields.correlation: event.ts for event in calls if event.cat not in ("cpu_op", "user_annotation")}
    launched = [(launches[key], event) for event in kernels if (key := event.fields.correlation) in launches and key]
    if not launched:
        return 0.0
    _, final = max(launched, key=lambda pair: pair[1].ts + pair[1].dur)
    at, begun = min((pair for pair in launched if pair[1].tid == final.tid), key=lambda pair: pair[0])  # on its stream
    return max(0.0, final.ts + final.dur - last - (begun.ts - at)) * _MICROSECOND


def _allocations(events: list[Event], track: RankTrack, origin: float) -> list[Holding]:
    """What was allocated in the window and outlived its operator. Its kind is guessed from who allocated it.

    What forward and the data loader keep are activations, what backward keeps are gradients, what the optimizer keeps
    is its state; the rest are temporaries.
    """
    spans = sorted((span for span in track.spans if span.lane in ("compute", "data")), key=lambda span: span.start)
    starts, live = [span.start for span in spans], {}  # live: (device, address) -> (since when, bytes)
    last_end = max((span.end for span in spans), default=0.0)
    kinds = {"data": "activations", "forward": "activations", "backward": "gradients", "optimizer": "optimizer"}
    found: list[Holding] = []

    def end_allocation(address: Any, end: float) -> None:
        """Adds the allocation at this address to `found`, unless it was freed before its operator ended."""
        start, num_bytes = live.pop(address)
        index = bisect_right(starts, start) - 1
        allocator = spans[index] if index >= 0 else None  # the last span that had begun; None before the first one
        if allocator is None or end > allocator.end:
            name, kind = (allocator.name, kinds.get(allocator.kind)) if allocator else ("", None)
            fields = {"name": name, "kind": kind or "temporaries", "num_bytes": num_bytes}
            found.append(Holding(rank=track.rank, **fields, start=start, end=max(start, end)))

    for event in sorted((event for event in events if event.name == "[memory]"), key=attrgetter("ts")):
        fields, at = event.fields, (event.ts - origin) * _MICROSECOND
        address = (whole_number(fields.device), whole_number(fields.address))
        if num_bytes := whole_number(fields.num_bytes):
            live[address] = (at, num_bytes)
        elif address in live:  # a negative number of bytes: it is freed
            end_allocation(address, at)
    for address in list(live):  # what was not freed in the window is held until its end
        end_allocation(address, max(last_end, live[address][0]))
    return found
