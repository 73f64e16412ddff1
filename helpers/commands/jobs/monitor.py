"""Reads the reports that the probes in a job's processes write, and decides when the job hangs.

A job hangs when, for `limit` seconds of its own life, no rank has issued a collective or entered another function of
torch.distributed, and at least one rank slept at one line all that time. A rank that computes meanwhile gets
BUSY_FACTOR times as long, because it may only be slow. Seconds of its own life leave out the time in which a process
wanted a core and got none, so a busy machine does not look like a hang. probe.py writes the reports and lists their
fields. A `Frame` is (file, line, function).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.commands.jobs import probe
from helpers.learner.words import Words
from helpers.ranks.board.errors import Failure
from helpers.ranks.board.report import crash_frames
from helpers.ranks.board.sites import Frame, learner_frame

BUSY_FACTOR = 4.0
MAX_CPU_SHARE = 0.3  # a process that uses more CPU time than this share of the time at one line does not sleep there
DETAILS_TIMEOUT = 120.0  # seconds that the processes get to add details; under load the probe's thread is slow


@dataclass
class ProcessState:
    """The last report of one process.

    report: the fields that probe.py lists, such as "stack_age" (seconds for which the main thread has been at one
    line), "cpu_seconds" and "main_seconds" (the CPU time of the process and of this thread in these seconds),
    "call_age" (seconds since the process issued a collective or entered another function of torch.distributed),
    "parent" (a process id) and "world" (the world size).
    updated: the time.time() at which it was written.
    gone: the time.time() at which the process was seen to be gone, 0.0 before.
    exit_code: None where the process is not our child. crash: the frames that faulthandler wrote.
    """

    report: Mapping[str, Any]
    updated: float = 0.0
    gone: float = 0.0
    exit_code: int | None = None
    crash: list[Frame] = field(default_factory=list)

    @property
    def rank(self) -> int | None:
        return self.report["rank"]

    @property
    def frames(self) -> list[Frame]:
        """The main thread's stack, outermost call first: where it raised, where it crashed, or where it is."""
        failure = self.report.get("failure")
        return [tuple(frame) for frame in (failure["frames"] if failure else self.crash or self.report["frames"])]

    @property
    def line(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return learner_frame(self.frames)

    @property
    def has_ended(self) -> bool:
        return bool(self.gone) or "ended" in self.report

    @property
    def has_finished(self) -> bool:
        """Whether the process ended by itself and without an exception."""
        return "ended" in self.report and not self.report["failure"]

    @property
    def has_died(self) -> bool:
        """Whether the process ended without a last report: it was killed, crashed, or called os._exit."""
        return bool(self.gone) and "ended" not in self.report

    def is_asleep(self, seconds: float = 0.0) -> bool:
        """Whether it has been at its line for at least so many seconds and hardly computed."""
        age = self.report["stack_age"]
        return age >= seconds and self.report["cpu_seconds"] <= MAX_CPU_SHARE * age

    def is_blocked(self) -> bool:
        """Whether the main thread has hardly computed at its line, whatever the other threads of the process do."""
        age = self.report["stack_age"]
        return self.is_asleep() or self.report.get("main_seconds", age) <= MAX_CPU_SHARE * age

    def waits_for_thread(self) -> bool:
        """Whether the main thread waits for another thread, which is in a function of torch.distributed."""
        stacks = self.report.get("threads", {}).values()
        is_called = any("torch/distributed/" in frame[0] for stack in stacks for frame in stack[-probe.INNERMOST :])
        return is_called and self.frames[-1:] != [] and self.frames[-1][0].endswith(("threading.py", "queue.py"))

    def is_silent(self, limit: float) -> bool:
        """Whether its probe has stopped reporting, because native code holds the GIL or the process was stopped.

        A probe gets twice the time of a rank that computes, because under load its thread is slow.
        """
        return time.time() - self.updated > limit * BUSY_FACTOR * 2

    @property
    def failure(self) -> Failure | None:
        """The exception that ended it."""
        raised = self.report.get("failure")
        if not raised:
            return None
        text = {"type_name": raised["type"], "message": raised["message"], "words": Words.of(raised["message"])}
        return Failure(**text, frames=self.frames, time=self.report["ended"], traceback="")

    @property
    def handled(self) -> tuple[str, Frame | None] | None:
        """The exception that the main thread handles, as text, and the user's line that raised it; None without one."""
        error = None if self.has_ended else self.report.get("handled")
        return error and (f"{error['type']}: {error['message']}", learner_frame([tuple(f) for f in error["frames"]]))

    @property
    def op(self) -> str | None:
        """The function of torch.distributed that the user's code has called and that has not returned."""
        start = self.frames.index(self.line) + 1 if self.line in self.frames else 0
        # c10d_logger wraps every function of torch.distributed, to log its calls.
        calls = [f for f in self.frames[start:] if "torch/distributed/" in f[0] and "c10d_logger" not in f[0]]
        return calls[0][2] if calls else None


class JobMonitor:
    """Reads the folder of a job.

    by_pid: process id -> process. ranks: rank -> its newest process.
    children: rank -> the live processes that it started, such as loader workers, which have the same rank.
    """

    def __init__(self, folder: Path):
        self.folder, self.by_pid = folder, {}
        self.ranks: dict[int, ProcessState] = {}
        self.children: dict[int, list[ProcessState]] = {}

    def read(self, exit_codes: Mapping[int, int]) -> None:
        """Reads all reports. exit_codes: process id -> exit code of our own child processes that have ended."""
        for path in self.folder.glob("*.json"):
            report = json.loads(path.read_text())
            pid = report["pid"]
            process = self.by_pid.setdefault(pid, ProcessState(report))
            process.report, process.updated = report, path.stat().st_mtime
            if not process.gone and (pid in exit_codes or not probe.is_alive(pid)):
                process.gone, process.exit_code, fault = time.time(), exit_codes.get(pid), self.folder / f"{pid}.fault"
                process.crash = crash_frames(fault.read_text(errors="replace")) if fault.exists() else []
        # In the order of process ids, so that of two processes with one rank (after a restart) the newer one counts.
        with_rank = {pid: process for pid, process in sorted(self.by_pid.items()) if process.rank is not None}
        self.ranks = {p.rank: p for p in with_rank.values() if p.report["parent"] not in with_rank}
        self.children = {rank: [] for rank in self.ranks}
        for process in with_rank.values():
            if process.report["parent"] in with_rank and not process.has_ended:
                self.children.setdefault(process.rank, []).append(process)

    def unfinished(self) -> dict[int, ProcessState]:
        return {rank: process for rank, process in self.ranks.items() if not process.has_ended}

    def is_hanging(self, limit: float) -> bool:
        """Whether the job has hung for `limit` seconds. False until all ranks have reported."""
        live = self.unfinished()
        if not live or len(self.ranks) < max(process.report["world"] or 1 for process in live.values()):
            return False
        overdue = {r for r, p in live.items() if p.report["call_age"] >= limit * BUSY_FACTOR or p.is_silent(limit)}
        asleep = {r for r, p in live.items() if p.report["call_age"] >= limit and p.is_asleep(limit)}
        # A rank that sleeps may wait for a loader worker that computes.
        idle = {rank for rank in asleep if all(child.is_asleep(limit) for child in self.children[rank])}
        return bool(asleep) and idle | overdue == live.keys()

    def request_details(self, exit_codes: Mapping[int, int]) -> None:
        """Makes every live rank add details to its report, and waits for them. A rank that cannot answer has none."""
        (self.folder / probe.DETAILS_REQUEST).touch()
        end = time.monotonic() + DETAILS_TIMEOUT
        while time.monotonic() < end and not all(p.report.get("has_details") for p in self.unfinished().values()):
            time.sleep(probe.INTERVAL)
            self.read(exit_codes)
