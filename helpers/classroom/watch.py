"""Watches the processes of a sandbox from outside: how many, how much memory, how much processor time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from helpers.ranks.limits import crowd

INTERVAL = 0.15  # seconds


@dataclass(frozen=True, kw_only=True)
class Limits:
    """For one notebook. Seconds of wall time stretch where others keep the processors busy.

    cell_seconds: processor time of one cell. world_seconds: for one task on some ranks. grace_seconds: more, until it
    is ended from outside.
    """

    cell_seconds: float = 10.0
    world_seconds: float = 30.0
    grace_seconds: float = 30.0
    total_seconds: float = 420.0
    cpu_seconds: float = 400.0
    memory_bytes: int = 2_000_000_000
    processes: int = 64
    file_bytes: int = 200_000_000

    def stretched(self, seconds: float) -> float:
        return seconds * min(4.0, max(1.0, crowd() / 4))


class Watch(threading.Thread):
    """Calls `end(reason)` once, when the processes below `pid` go beyond `limits`. peak: bytes, as far as it saw."""

    def __init__(self, pid: int, limits: Limits, end: Callable[[str], None]):
        super().__init__(daemon=True, name=f"watch-{pid}")
        self.pid, self.limits, self.end = pid, limits, end
        self.over = threading.Event()
        self.peak, self.looked_closely = 0, 0
        self.cpu: dict[tuple[int, float], float] = {}

    def run(self) -> None:
        while not self.over.wait(INTERVAL):
            try:
                reason = self.look()
            except psutil.NoSuchProcess:
                return
            if reason:
                self.end(reason)
                return

    def look(self) -> str | None:
        processes = psutil.Process(self.pid).children(recursive=True)
        if len(processes) > self.limits.processes:
            return f"it started more than {self.limits.processes} processes"
        for process in processes:
            try:
                times = process.cpu_times()
                self.cpu[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                continue
        if sum(self.cpu.values()) > self.limits.cpu_seconds:
            return f"it used more than {self.limits.cpu_seconds:g} s of processor time"
        pids = [process.pid for process in processes]
        used = sum(map(_private_bytes, pids))  # counts what forked processes share more than once
        if used > 1.1 * self.looked_closely or used > self.limits.memory_bytes:
            self.looked_closely = used
            used = sum(map(_proportional_bytes, pids))
            self.peak = max(self.peak, used)
        if self.peak > self.limits.memory_bytes:
            return f"it used more than {self.limits.memory_bytes / 1e9:.1f} GB of memory"
        return None


def _private_bytes(pid: int) -> int:
    """Resident bytes that no file backs; where the system does not tell them apart, all resident bytes."""
    if not os.path.isdir("/proc/self"):
        with suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss
    return sum(_fields(f"/proc/{pid}/status", ("RssAnon", "RssShmem")))


def _proportional_bytes(pid: int) -> int:
    """Resident bytes, each shared page divided by the processes that share it; of the system's own counting."""
    return sum(_fields(f"/proc/{pid}/smaps_rollup", ("Pss",))) or _private_bytes(pid)


def _fields(path: str, names: tuple[str, ...]) -> list[int]:
    try:
        with open(path) as file:
            return [int(line.split()[1]) * 1024 for line in file if line.partition(":")[0] in names]
    except (OSError, ValueError, IndexError):
        return []
