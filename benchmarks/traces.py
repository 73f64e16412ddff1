"""Profiles live ranks with torch.profiler: one trace file per rank, to which the messages of `record_comms` are added.

The benchmark stragglers.py uses it. With messages on the course's wire, `explain` sees the emulated links, which the
events of gloo do not show.

    def train(folder):                       # on each rank
        with trace_steps(folder, wait=1, warmup=1, active=3) as profiler:
            for batch in loader:
                step(batch)
                profiler.step()
    ranks.run(train, "traces")
    explain(read("traces"))                  # helpers.commands.traces

`record_comms` records every operation of torch.distributed that a rank issues, with its bytes and times; in the trace
such an event is named "wire:" and the operation. The files are those of `tensorboard_trace_handler`. The TensorBoard
plugin no longer exists; Perfetto opens each of them.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from helpers.devices import accelerator, runs_later
from helpers.observe.comms import record_comms
from helpers.records import CommEvent

MICROSECONDS = 1e6  # in a second


@contextmanager
def trace_steps(
    folder: str | os.PathLike, *, wait: int = 1, warmup: int = 1, active: int = 3, repeat: int = 1, memory: bool = False
) -> Iterator[profile]:
    """Profile some of the steps of this rank. Call `.step()` on what it yields at the end of each step.

    It skips `wait` steps, warms the profiler up for `warmup` steps and records `active` steps, `repeat` times, with one
    file each time. memory: whether allocations are recorded. Every rank has to pass the same numbers. Outside a process
    group this is rank 0. torch raises ValueError for numbers that are no schedule.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    write = tensorboard_trace_handler(os.fspath(folder), worker_name=f"{socket.gethostname()}_{rank}")
    activities = [ProfilerActivity.CPU]
    if runs_later(accelerator() or "cpu"):  # a GPU, whose kernels run later than the calls that start them
        activities.append(ProfilerActivity.CUDA)
    window = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    with ExitStack() as stack:
        comms = stack.enter_context(record_comms()) if dist.is_initialized() else None

        def handle(profiler: profile) -> None:
            """Write a file, whose name torch chooses, and add the messages to it."""
            before = set(Path(folder).glob("*"))
            write(profiler)
            for path in set(Path(folder).glob(f"{socket.gethostname()}_{rank}.*")) - before:
                _add_messages(path, comms.log.events if comms else ())

        yield stack.enter_context(
            profile(
                schedule=window, activities=activities, on_trace_ready=handle, record_shapes=True, profile_memory=memory
            )
        )


def _add_messages(path: Path, events: Iterable[CommEvent]) -> None:
    """Add the recorded messages, in the fields of Kineto's NCCL events, because gloo's events have no group and bytes.

    Kineto is the library that writes torch's traces. A file without a recorded step stays as it is.
    """
    trace = json.loads(path.read_text(), strict=False)  # allows control characters inside strings
    steps = [one for one in trace["traceEvents"] if str(one.get("name")).startswith("ProfilerStep#")]
    if not steps:
        return
    # Events are on the clock of perf_counter, and the trace counts from its own base time. In nanoseconds:
    offset = time.time_ns() - time.perf_counter_ns() - trace.get("baseTimeNanoseconds", 0)
    first, last = min(one["ts"] for one in steps), max(one["ts"] + one["dur"] for one in steps)
    pid = steps[0]["pid"]
    converted = [_as_kineto(event, pid, offset / 1e3) for event in events]
    trace["traceEvents"] += [one for one in converted if first <= one["ts"] <= last]
    path.write_text(json.dumps(trace))


def _as_kineto(event: CommEvent, pid: int, offset: float) -> dict:
    """One message as an event of the trace. offset: microseconds from perf_counter to the trace's clock."""
    pair = {"send": (event.rank, event.peer), "recv": (event.peer, event.rank)}.get(event.op)  # source, destination
    args = {"Collective name": event.op, "In msg nelems": event.payload_bytes, "dtype": "byte"}
    args |= {"Group size": len(event.group_ranks), "Process Group Name": event.group, "caller": event.caller}
    args |= {"Process Group Ranks": str(list(event.group_ranks)), "Input Dims": [list(event.shape)]}
    args |= {"Src Rank": pair[0], "Dst Rank": pair[1]} if pair else {"Seq": event.sequence, "Root Rank": event.peer}
    times = {"ts": event.start * MICROSECONDS + offset, "dur": (event.end - event.start) * MICROSECONDS}
    where = {"pid": pid, "tid": "wire"}  # process and thread, by which a viewer sorts events into lanes
    return {
        "ph": "X",  # a span
        "cat": "user_annotation",
        "name": f"wire:{event.op}",
        **where,
        **times,
        "args": args,
    }
