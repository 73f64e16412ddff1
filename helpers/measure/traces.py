"""A Timeline to and from other tools: Chrome's trace format (Perfetto opens it) and torch.profiler.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"X" is a complete event with a start `ts` and a duration `dur`, in microseconds; "M" names processes and threads.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from helpers.records import Span, Timeline

_MICRO = 1e6


def to_chrome_trace(timeline: Timeline, path: str | os.PathLike | None = None) -> str:
    """JSON text that https://ui.perfetto.dev and chrome://tracing open: one process a rank, one thread a lane.

    The timeline starts at 0. With `path` the text is also written there.
    """
    shifted = timeline.shifted_to_zero()
    events = [*_names(shifted), *(_complete_event(span, shifted.lanes) for span in shifted.spans)]
    other = {"title": timeline.title, "source": timeline.source}
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})
    if path is not None:
        Path(path).write_text(text)
    return text


def _names(timeline: Timeline) -> Iterator[dict]:
    for rank in timeline.ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        for number, lane in enumerate(timeline.lanes):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": lane}}


def _complete_event(span: Span, lanes: Sequence[str]) -> dict:
    times = {"ts": span.start * _MICRO, "dur": span.duration * _MICRO}
    place = {"pid": span.rank, "tid": lanes.index(span.lane)}
    return {"ph": "X", "name": span.name, "cat": span.kind, **place, **times, "args": {"bytes": span.num_bytes}}


def from_torch_profiler(trace: object, rank: int) -> Timeline:
    """The Timeline of one rank from a finished `torch.profiler.profile`, or from the path of the JSON it exported.

    On CUDA the kernels become spans, otherwise the outermost operators of each thread; NCCL kernels and gloo's
    annotations become communication. Kinds are guessed from names. Times are the profiler's own clock, in seconds:
    `shifted_to_zero()` before you set it beside another timeline. ValueError when nothing was recorded.
    """
    events = [event for event in _load(trace)["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    roots = list(_with_outermost([event for event in events if event.get("cat") in ("cpu_op", "user_annotation")]))
    if kernels:
        launched_in = {event["args"].get("External id"): root["name"] for event, root in roots if "args" in event}
        spans = [_span(event, rank, _kind_of_kernel(event, launched_in)) for event in kernels]
    else:
        spans = [_span(event, rank, _kind(event["name"])) for event, root in roots if event is root]
    spans = [span for span in spans if not span.name.startswith("c10d::")]  # the call, which returns at once
    if not spans:
        raise ValueError("this trace holds no operator and no kernel; did the profiler's block run, and has it ended?")
    return Timeline(spans=tuple(spans), source="recorded", title="torch.profiler")


def _load(trace: object) -> dict:
    if isinstance(trace, (str, os.PathLike)):
        return json.loads(Path(trace).read_text())
    if not hasattr(trace, "export_chrome_trace"):
        raise ValueError(
            f"got a {type(trace).__name__}; give a torch.profiler.profile or the path of its exported JSON"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        return json.loads(path.read_text())


def _with_outermost(events: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Each event with the outermost event of its thread that contains it: itself, if it lies in no other."""
    roots: dict[object, dict] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        root = roots.get(event["tid"])
        if root is None or event["ts"] >= root["ts"] + root["dur"]:
            root = roots[event["tid"]] = event
        yield event, root


def _kind(name: str) -> str:
    lowered = name.lower()
    if lowered.startswith(("gloo:", "nccl:", "nccldevkernel", "ncclkernel")):
        return "communication"
    if lowered.startswith("optimizer."):
        return "optimizer"
    return "backward" if "backward" in lowered or "accumulategrad" in lowered else "forward"


def _kind_of_kernel(kernel: dict, launched_in: dict[object, str]) -> str:
    """A kernel belongs to the operator that launched it, and that to the outermost one around it."""
    own = _kind(kernel["name"])
    launcher = launched_in.get(kernel.get("args", {}).get("External id"))
    return own if own == "communication" or launcher is None else _kind(launcher)


def _span(event: dict, rank: int, kind: str) -> Span:
    lane = "communication" if kind == "communication" else "compute"
    name = event["name"].removeprefix("autograd::engine::evaluate_function: ")
    start = event["ts"] / _MICRO
    return Span(rank=rank, lane=lane, name=name, kind=kind, start=start, end=start + event["dur"] / _MICRO)
