"""Finds the strictest isolation that this system allows for learners' code, and watches the limits of a sandbox.

There are three levels: Linux namespaces, another user id, or no isolation but limits. launcher.py is the program that
sets them up; `launcher_config` writes its configuration. `Limits` says what a sandbox may use, and a `LimitWatch` looks
at the processes of a sandbox from outside: how many there are, their memory, their processor time.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from helpers.ranks.processes.limits import load_per_core

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = Path(__file__).with_name("launcher.py")
ISOLATION_LEVELS = ("namespaces", "uid", "plain")  # the strictest first
# Level -> a sentence for the teacher that says how learners' code was isolated.
ISOLATION_TEXTS = yaml.safe_load(Path(__file__).with_name("isolation.yaml").read_text(encoding="utf-8"))
SPARE_UID = 61_000  # the first of 1,000 user ids that no person has


def launcher_config(
    isolation_level: str, command: list[str], *, lifeline: int, home: str, keep: tuple[str, ...] = (), **more
) -> str:
    """The argument of launcher.py, in JSON.

    command: the command line to run in the sandbox.
    lifeline: file descriptor of the read end of a pipe. When the other end closes, the launcher ends the sandbox.
    home: the writable folder. keep: paths that must stay visible, besides Python and this repository.
    more: other fields. control: file descriptor of the socket to the grader, -1 for none. env: environment variables.
    limits: resource limits, such as {"RLIMIT_CPU": 400}. hide: paths to hide. uid: the user id for the level "uid".
    tmpfs_bytes: the size of /tmp.
    """
    needed = {str(ROOT), str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve()), *keep}
    outer_first = sorted(needed, key=len)  # a path comes before the paths below it, so that these are mounted over it
    defaults = {"control": -1, "env": {}, "limits": {}, "hide": [], "uid": SPARE_UID, "tmpfs_bytes": 512_000_000}
    values = {"isolation_level": isolation_level, "command": command, "lifeline": lifeline, "home": home}
    return json.dumps(defaults | values | {"keep": outer_first} | more)


@functools.cache
def is_available(isolation_level: str) -> bool:
    """Whether a Python with this course's packages starts at this level on this machine. Takes about 0.1 s."""
    if isolation_level == "uid" and os.geteuid() != 0:
        return False
    lifeline, write_end = os.pipe()  # the lifeline closes below, when the probe has ended
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)  # another user id must be able to use it
        inside = "/tmp/home" if isolation_level == "namespaces" else home  # there /tmp is a file system of its own
        imports = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import psutil, helpers.quantities.units"
        probe = [sys.executable, "-B", "-c", f"{imports}; print('holds')"]  # printed only if all imports worked
        argument = launcher_config(isolation_level, probe, lifeline=lifeline, home=inside)
        command = [sys.executable, "-I", str(LAUNCHER), argument]
        try:
            done = subprocess.run(command, pass_fds=[lifeline], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return False
        finally:
            os.close(lifeline)
            os.close(write_end)
    return done.stdout.strip() == "holds"


def strictest_available() -> str:
    """The strictest level that this machine allows."""
    return next(level for level in ISOLATION_LEVELS if level == "plain" or is_available(level))


# -- limits ------------------------------------------------------------------------------------------------------------
WATCH_INTERVAL = 0.15  # seconds
USUAL_LOAD = 4.0  # processes per core that want to run at one time, up to which the limits are not lengthened
MAX_SLOWDOWN = 4.0  # times by which a busy machine may lengthen a limit


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one notebook. Seconds of wall time grow with the load of the machine (`scaled_for_load`).

    cell_seconds: processor time of one cell. world_seconds: wall time of one task on one number of ranks.
    grace_seconds: how much longer the grader waits before it ends the sandbox. total_seconds: wall time of the whole
    notebook. cpu_seconds: processor time of all processes of the notebook together, also of those that have ended.
    memory_bytes, processes: what they may use at one time. file_bytes: the size of one file that they write.
    """

    cell_seconds: float = 10.0
    world_seconds: float = 30.0
    grace_seconds: float = 30.0
    total_seconds: float = 420.0
    cpu_seconds: float = 400.0
    memory_bytes: int = 2_000_000_000
    processes: int = 64
    file_bytes: int = 200_000_000

    def scaled_for_load(self, seconds: float) -> float:
        """These seconds of an idle machine as seconds of this machine now: up to four times as many."""
        return seconds * min(MAX_SLOWDOWN, max(1.0, load_per_core() / USUAL_LOAD))


class LimitWatch(threading.Thread):
    """A thread that calls `end(reason)` once when the processes below `pid` exceed `limits`.

    peak_bytes: the most memory that it saw in use. is_over: set it to stop watching.
    private_bytes_measured: the quick count of bytes at the time of the last exact measurement.
    cpu: (process id, its start time) -> seconds of processor time; it keeps processes that have ended.
    """

    def __init__(self, pid: int, limits: Limits, end: Callable[[str], None]):
        super().__init__(daemon=True, name=f"watch-{pid}")
        self.pid, self.limits, self.end = pid, limits, end
        self.is_over = threading.Event()
        self.peak_bytes = self.private_bytes_measured = 0
        self.cpu: dict[tuple[int, float], float] = {}

    def run(self) -> None:
        """Look at the processes until they are gone, exceed a limit, or the watch is over."""
        while not self.is_over.wait(WATCH_INTERVAL):
            try:
                reason = self.exceeded_limit()
            except psutil.NoSuchProcess:
                return
            if reason:
                self.end(reason)
                return

    def exceeded_limit(self) -> str | None:
        """What the processes have exceeded, as in "it used more than …"; None if they keep all limits."""
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
        # Private bytes are quick to read but count pages that forked processes share once per process. The exact number
        # is slow to read, so it is read only when the quick one has grown by a tenth or is beyond the limit.
        private_bytes = sum(map(_private_bytes, pids))
        if private_bytes > 1.1 * self.private_bytes_measured or private_bytes > self.limits.memory_bytes:
            self.private_bytes_measured = private_bytes
            self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, pids)))
        if self.peak_bytes > self.limits.memory_bytes:
            return f"it used more than {self.limits.memory_bytes / 1e9:.1f} GB of memory"
        return None


def _private_bytes(pid: int) -> int:
    """Resident bytes that no file backs, or all resident bytes if the system does not tell them apart."""
    if not os.path.isdir("/proc/self"):
        with suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss
    return sum(_fields(f"/proc/{pid}/status", ("RssAnon", "RssShmem")))


def _proportional_bytes(pid: int) -> int:
    """Resident bytes as the system counts them, each shared page divided by the number of processes that share it."""
    return sum(_fields(f"/proc/{pid}/smaps_rollup", ("Pss",))) or _private_bytes(pid)


def _fields(path: str, names: tuple[str, ...]) -> list[int]:
    """The values of these fields in a file of /proc such as "Pss:  12 kB", in bytes; empty if it cannot be read."""
    try:
        with open(path) as file:
            return [int(line.split()[1]) * 1024 for line in file if line.partition(":")[0] in names]
    except (OSError, ValueError, IndexError):
        return []
