"""Starts a sandboxed process for one submission, asks it to read or run it, and ends it with all it started.

This file runs in the grader's process; reader.py or sandbox_worker.py is what runs inside. One sandbox consists of a
launcher, which sets up the isolation and ends everything at the end (launcher.py), and of the worker below it, which
reads the learner's files or runs the learner's code. The grader sends requests to the worker over a socket. On Linux
the launcher is forked from a process that has torch imported (fork_server.py), elsewhere (FORKS is False) it is a new
interpreter.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from helpers.classroom import isolation, messages
from helpers.classroom.fork_server import ENVIRONMENT, START_SECONDS, ForkedLauncher, end_fork_server, fork_server
from helpers.classroom.isolation import Limits, LimitWatch
from helpers.ranks.processes.zygote import FORKS

RUNNER, READER = "helpers.classroom.sandbox_worker", "helpers.classroom.reader"  # what runs in a sandbox
MAX_OUTPUT = 4_000  # characters of a sandbox's output that are kept; the rest is read and dropped
HOME_INSIDE = "/tmp/learner"  # the sandbox's folder, if it has a file system of its own
END_SECONDS = 20.0  # that the launcher gets to end all processes, before it is killed
OUT_OF_TIME = "the time for the whole notebook is used up"

_sandboxes: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_uids = itertools.count()  # numbers of sandboxes, from which their user ids are made
_is_leaving = threading.Event()  # set when the grader ends, so that no sandbox starts any more


def end_all_sandboxes() -> None:
    """End every sandbox of this process, and let no other start, because the grader is leaving."""
    _is_leaving.set()
    for sandbox in list(_sandboxes):
        sandbox._kill("the grader was interrupted")
    end_fork_server()


class SandboxEnded(Exception):
    """The sandbox ended or was ended. The message says why, as in "it used more than 2.0 GB of memory"."""


class Sandbox:
    """One process that runs a learner's code, with what it starts.

    worker: the module that runs inside, RUNNER or READER.
    setup: the first message to it, with the keys "lab" and "checks" (folder of private checks or ""), and those that
    the worker needs besides. isolation_level: "namespaces", "uid" or "plain" (isolation.py).
    hide: paths that do not exist in the sandbox.
    process: the launcher, None while the sandbox is down. printed: the beginning of the output.
    peak_bytes: the most memory that it has used so far.
    reason: why the sandbox was ended, None while it runs. deadline: of the whole notebook, as time.monotonic().
    lifeline: the write end of a pipe, -1 if it is closed; when it closes, the launcher ends everything.
    lock: for `_kill`, which the watching thread calls, too.
    """

    def __init__(
        self,
        setup: dict[str, Any],
        *,
        isolation_level: str,
        limits: Limits,
        hide: list[str] | None = None,
        worker: str = RUNNER,
    ):
        self.worker = worker
        self.setup, self.isolation_level, self.limits, self.hide = setup, isolation_level, limits, hide or []
        self.process: subprocess.Popen | ForkedLauncher | None = None
        self.reason: str | None = None
        self.printed = ""
        self.peak_bytes = 0
        self.deadline = time.monotonic() + limits.scaled_for_load(limits.total_seconds)
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None
        self.lifeline = -1
        _sandboxes.add(self)

    # -- life ------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process and send it the setup. Raises SandboxEnded if it does not come up."""
        self.home = tempfile.mkdtemp(prefix="rank-by-rank-")
        inside = HOME_INSIDE if self.isolation_level == "namespaces" else self.home
        uid = isolation.SPARE_UID + next(_uids) % 1000  # a user id of its own, so that no sandbox can touch another
        if self.isolation_level == "uid":
            os.chown(self.home, uid, uid)
        worker_socket, lifeline = self._open()
        command = [sys.executable, "-B", "-m", self.worker, str(worker_socket.fileno())]
        environment = {**ENVIRONMENT, "HOME": inside, "TMPDIR": inside}  # nothing comes from the grader's own
        more = {"control": worker_socket.fileno(), "env": environment, "hide": self.hide, "limits": self._limits()}
        # The fork server needs the lab and its private checks before the fork, to remove all answers from the process.
        more |= {"worker": self.worker, "uid": uid, "lab": self.setup["lab"], "checks": self.setup["checks"]}
        keep = (self.setup["checks"],) if self.setup["checks"] and not FORKS else ()  # a fork has read them already
        paths = {"home": inside, "keep": keep}
        argument = isolation.launcher_config(self.isolation_level, command, lifeline=lifeline, **paths, **more)
        try:
            self.process = (_fork_launcher if FORKS else _start_launcher)(argument, worker_socket.fileno(), lifeline)
        finally:
            worker_socket.close()
            os.close(lifeline)
        threading.Thread(target=self._read_output, args=(self.process.stdout,), daemon=True).start()
        self.watch = LimitWatch(self.process.pid, self.limits, self._kill)
        self.watch.start()
        self.ask(self.setup | {"folder": inside, "isolation_level": self.isolation_level}, START_SECONDS)

    def _open(self) -> tuple[socket.socket, int]:
        """Open the socket and the lifeline. Returns the ends that the sandbox gets."""
        with self.lock:
            self.reason = None
            if _is_leaving.is_set():
                self.deadline = 0.0  # the notebook has no time left, so nobody tries to start the sandbox again
                shutil.rmtree(self.home, ignore_errors=True)
                raise SandboxEnded("the grader was interrupted")
            self.socket, worker_socket = socket.socketpair()
            lifeline, self.lifeline = os.pipe()
            return worker_socket, lifeline

    def _limits(self) -> dict[str, int]:
        """The limits that the kernel keeps, by their names in the module `resource`."""
        limits = {"RLIMIT_FSIZE": self.limits.file_bytes, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
        limits["RLIMIT_CPU"] = int(self.limits.cpu_seconds)
        if self.isolation_level == "uid":
            limits["RLIMIT_NPROC"] = 400  # it counts the threads of the user id as well
        return limits

    def _read_output(self, pipe: Any) -> None:
        """Read all output, so that the process never waits for a reader, and keep the beginning."""
        with pipe:
            while data := pipe.read1(1 << 16):
                if len(self.printed) < MAX_OUTPUT:
                    self.printed = (self.printed + data.decode(errors="replace"))[:MAX_OUTPUT]

    def _kill(self, reason: str) -> None:
        """Close the lifeline, upon which the launcher ends all processes below it. The first reason counts."""
        with self.lock:
            self.reason = self.reason or reason
            if self.lifeline < 0:
                return
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer wakes up
            os.close(self.lifeline)
            self.lifeline = -1

    def end(self) -> None:
        """End the sandbox, wait until no process of it is left, and remove its folder."""
        if self.process is None:
            return
        self._kill("it was ended")
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.watch.is_over.set()
        self.peak_bytes = max(self.peak_bytes, self.watch.peak_bytes)
        self.socket.close()
        shutil.rmtree(self.home, ignore_errors=True)
        self.process = None

    # -- requests --------------------------------------------------------------------------------------------------
    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return the answer; start the sandbox first if need be.

        request: such as {"do": "cell", "source": …} or {"do": "run", "key": "03.average", …}; sandbox_worker.py lists
        the keys. seconds: that the request may take on an idle machine.
        Raises SandboxEnded if no answer comes. The sandbox is then down, and the next request starts it again.
        """
        if self.process is None:
            self.start()
        left = min(self.limits.scaled_for_load(seconds + self.limits.grace_seconds), self.deadline - time.monotonic())
        try:
            if left <= 0:  # the time for the whole notebook is used up
                raise TimeoutError
            messages.send(self.socket, request, left)
            answer = messages.receive(self.socket, left)
            if not isinstance(answer, dict):
                raise messages.InvalidMessage("an answer that is no dictionary")
            return answer
        except TimeoutError:
            reason = f"it gave no answer in {max(left, 0):.0f} s" if left > 0 else OUT_OF_TIME
        except messages.InvalidMessage as error:
            reason = f"it sent {error}"
        except (EOFError, OSError):
            reason = self.reason or self._how_it_ended()
        self.end()
        raise SandboxEnded(reason)

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time for the whole notebook is used up."""
        return time.monotonic() >= self.deadline

    def _how_it_ended(self) -> str:
        """Why the connection closed, if nobody here has ended the sandbox."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its connection to the grader"
        if code in (125, 126):  # the launcher's codes for this
            return f"the sandbox did not start ({self.printed.strip()[-300:]})"
        return f"it ended its process (exit code {code})"


def _fork_launcher(argument: str, control: int, lifeline: int) -> ForkedLauncher:
    """Fork the launcher from the fork server, with the configuration `argument` in JSON."""
    try:
        return fork_server().fork(json.loads(argument), control, lifeline)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SandboxEnded(f"the sandbox did not start ({error})") from None


def _start_launcher(argument: str, control: int, lifeline: int) -> subprocess.Popen:
    """Start the launcher as a new interpreter, on systems where fork is not safe."""
    return subprocess.Popen(
        [sys.executable, "-I", str(isolation.LAUNCHER), argument],
        pass_fds=[control, lifeline],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
