"""Reads what torch.profiler writes, in plain Python: waiting or moving, exposed communication, and launch delays.

`split(on_one_clock(calls))` divides every message of every rank. The other functions read one rank, on a CPU or a GPU.
This file imports nothing of this course, so it can be copied into any job.
"""

import gzip
import json
from collections import Counter
from pathlib import Path
from statistics import median

GPU = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of events that run on a GPU
LAUNCHES = ("cuda_runtime", "cuda_driver")  # categories of calls that start them; Triton kernels use the driver


def load_events(path):
    """The events of a trace file that have a duration, in order of their start, with times in seconds."""
    data = Path(path).read_bytes()
    trace = json.loads(gzip.decompress(data) if Path(path).suffix == ".gz" else data)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    for event in events:
        event["start"], event["end"] = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
    return sorted(events, key=lambda event: event["start"])


def is_message(event):
    """Whether the event moves bytes between ranks: gloo's, or a kernel of NCCL."""
    return event["name"].startswith("gloo:") or event["cat"] == "kernel" and event["name"].startswith("nccl")


def message_calls(events):
    """Name -> (called, returned) on one rank. The n-th call of a kind meets the n-th call of the other ranks.

    This counting fits a job with one group. With several groups, pass the events of one group at a time.
    """
    calls, count = {}, Counter()
    for event in filter(is_message, events):
        kind = event["name"].partition("(")[0]
        calls[f"{kind} {count[kind]}"] = (event["start"], event["end"])
        count[kind] += 1
    return calls


def on_one_clock(calls):
    """Shifts each rank's clock so that its messages end when rank 0's do: all leave an all-reduce together."""
    shifted = []
    for messages in calls:
        shift = median(messages[name][1] - calls[0][name][1] for name in messages if name in calls[0])
        shifted.append({name: (called - shift, returned - shift) for name, (called, returned) in messages.items()})
    return shifted


def split(calls):
    """Name -> seconds (waiting, moving) on each rank. The time until the last rank has called counts as waiting."""
    last_call = {}
    for messages in calls:
        for name, (called, _) in messages.items():
            last_call[name] = max(called, last_call.get(name, called))
    parts = [{} for _ in calls]
    for own, messages in zip(parts, calls, strict=True):
        for name, (called, returned) in messages.items():
            ready = min(last_call[name], returned)  # a rank may return before the last rank has called
            own[name] = (ready - called, returned - ready)
    return parts


def exposed(communication, compute):
    """Seconds in which some span of `communication` runs and none of `compute`, each instant counted once."""
    edges = [(at, "sends", change) for span in communication for at, change in zip(span, (1, -1), strict=True)]
    edges += [(at, "computes", change) for span in compute for at, change in zip(span, (1, -1), strict=True)]
    running, seconds, before = Counter(), 0.0, 0.0  # how many spans of each kind are running
    for at, kind, change in sorted(edges):
        if running["sends"] and not running["computes"]:
            seconds += at - before
        running[kind] += change
        before = at
    return seconds


def launch_delays(events):
    """(when the CPU launched a kernel, seconds until it started on the GPU), in order of the launches."""
    launched = {e["args"].get("correlation"): e["start"] for e in events if e["cat"] in LAUNCHES}
    kernels = [e for e in events if e["cat"] in GPU and e["args"].get("correlation") in launched]
    times = [(launched[kernel["args"]["correlation"]], kernel["start"]) for kernel in kernels]
    return [(launch, start - launch) for launch, start in sorted(times)]


def gpu_seconds(events):
    """Of a traced step: its seconds, those of compute and of exposed messages, and the median launch delay."""
    step = next(event for event in events if event["name"].startswith("ProfilerStep"))
    messages, compute = [], []
    for event in events:
        if event["cat"] in GPU:
            spans = messages if is_message(event) else compute
            spans.append((max(event["start"], step["start"]), min(event["end"], step["end"])))
    seconds = {"step": step["end"] - step["start"], "compute": exposed(compute, [])}
    seconds["exposed messages"] = exposed(messages, compute)
    return seconds | {"launch delay": median(delay for _, delay in launch_delays(events))}
