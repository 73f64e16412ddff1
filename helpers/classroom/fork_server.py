"""Forks sandboxes from one process that has imported torch already, so that no submission waits for that import.

    grader ──socket──> fork server ──fork──> launcher ──fork──> sandbox worker ──fork──> the zygote of its ranks

launcher         sets up the isolation of one sandbox and waits for its end (launcher.py)
sandbox worker   runs the learner's cells (sandbox_worker.py), or reads the learner's files (reader.py)
zygote           a process with torch imported, from which the ranks of a task are forked (helpers/ranks/processes)
control          the socket between the grader and the worker
lifeline         the read end of a pipe; when the grader's end closes, the launcher ends the sandbox

The first half of this file is the grader's side: `fork_server()` starts the process once, and its method `fork` asks it
for a launcher. The second half is the fork server itself, which never runs a learner's code. On systems where fork is
not safe (macOS), sandbox.py starts new interpreters instead.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from helpers.classroom import isolation, launcher, reader, sandbox_worker
from helpers.grading import labs, tasks_of
from helpers.ranks.processes import process, zygote

START_SECONDS = 90.0  # for the fork server to import torch from a slow disk
ENVIRONMENT = {  # the environment of the fork server; nothing comes from the grader's own
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(isolation.ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class ForkServerClient:
    """Starts the fork server and asks it for launchers."""

    def __init__(self) -> None:
        # SEQPACKET: a request arrives as one packet, so the server needs no marks between requests.
        self.socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_socket:
            self.process = subprocess.Popen(
                [sys.executable, "-B", "-m", "helpers.classroom.fork_server", str(server_socket.fileno())],
                pass_fds=[server_socket.fileno()],
                stdin=subprocess.DEVNULL,
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )

    def fork(self, config: dict[str, Any], control: int, lifeline: int) -> ForkedLauncher:
        """Fork a launcher with this configuration, whose keys launcher.py lists. control, lifeline: file descriptors.

        Raises OSError if the fork server is gone.
        """
        output, launcher_output = os.pipe()
        status, launcher_status = os.pipe()
        descriptors = [control, lifeline, launcher_output, launcher_status]
        try:
            socket.send_fds(self.socket, [json.dumps(config).encode()], descriptors)
        finally:  # before the wait for the launcher, which ends if the fork server and with it the other ends are gone
            os.close(launcher_output)
            os.close(launcher_status)
        return ForkedLauncher(output, status)

    def close(self) -> None:
        """Close the socket, upon which the fork server ends; the launchers end by themselves."""
        self.socket.close()
        self.process.wait()


class ForkedLauncher:
    """A forked launcher with the part of subprocess.Popen's interface that sandbox.py uses.

    output, status: file descriptors of pipes. `output` has what the launcher and the sandbox print. On `status` the
    launcher writes two lines, its process id at the start and its exit code at the end.
    """

    def __init__(self, output: int, status: int):
        self.stdout, self.status, self.buffer = open(output, "rb"), status, b""
        self.returncode: int | None = None
        self.pid = int(self._next_line(START_SECONDS))

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or -9 if the launcher was killed. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = int(self._next_line(timeout) or -9)
            os.close(self.status)
        return self.returncode

    def _next_line(self, timeout: float | None) -> bytes:
        """The next line that the launcher writes; b"" if it is gone."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self.buffer:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.status], [], [], left)[0]:
                raise subprocess.TimeoutExpired("the sandbox", timeout)
            data = os.read(self.status, 100)
            if not data:
                return b""
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line


_fork_server: ForkServerClient | None = None  # set by the first call of `fork_server`
_lock = threading.Lock()


def fork_server() -> ForkServerClient:
    """The fork server of this process; a new one if it has ended."""
    global _fork_server
    with _lock:
        if _fork_server is None or _fork_server.process.poll() is not None:
            _fork_server = ForkServerClient()
            atexit.register(_fork_server.close)
        return _fork_server


def end_fork_server() -> None:
    """Kill the fork server of this process, if there is one, also while it still imports.

    A thread that waits for a launcher of it gets none. The launchers that it has forked end by themselves.
    """
    if _fork_server is not None:
        _fork_server.process.kill()


# -- the fork server itself --------------------------------------------------------------------------------------------
MAX_CONFIG_BYTES = 200_000


def main(descriptor: int) -> None:
    """Serve requests from the socket with this file descriptor until the grader closes it."""
    # No sandbox may import a file only because it lies in the folder in which this process was started.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # each launcher reports its own end
    control = socket.socket(fileno=descriptor)
    while True:
        # With the configuration come four file descriptors: control, lifeline, output and status.
        body, descriptors, _, _ = socket.recv_fds(control, MAX_CONFIG_BYTES, 4)
        if not body:
            return
        if os.fork() == 0:
            _run_launcher(json.loads(body), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def preload() -> None:
    """Import what the notebooks of all labs need. strip_answers.py removes the answers from each forked process."""
    for number in labs():
        tasks_of(number)  # imports the modules of the lab's tasks
    zygote._preload()
    gc.freeze()  # the collector of a forked process then leaves these objects alone, so their memory stays shared


def _run_launcher(config: dict[str, Any], control: int, lifeline: int, output: int, status: int) -> None:
    """Run as the launcher of one sandbox. Writes its process id to `status`, and at its end the exit code."""
    code = 126  # the exit code for a sandbox that did not start
    try:
        for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGCHLD, signal.SIG_DFL)):
            signal.signal(number, action)
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        is_reader = config["worker"] == reader.__name__
        if is_reader:  # it runs nothing of a learner's, and it needs to know the tasks
            reader.load_checks(config["checks"])
        else:
            # Strip here, so that no process with a learner's code ever had the answers or saw the private checks.
            sandbox_worker.load_and_strip(config)
        run = reader.main if is_reader else _serve_runs
        launcher.close_all_but(control, lifeline, status)
        os.write(status, f"{os.getpid()}\n".encode())
        code = launcher.main(config | {"control": control, "lifeline": lifeline, "run": lambda: _run(run, control)})
        os.write(status, f"{launcher.exit_status(code)}\n".encode())
    except OSError as error:
        os.write(2, f"the sandbox did not start: {error}\n".encode())
        os.write(status, b"126\n")
    os._exit(0)


def _run(serve: Callable[[int], None], control: int) -> int:
    """Run as the sandbox's worker: serve requests from the socket `control`. Returns the exit code."""
    try:
        tempfile.tempdir = None  # the cached value is the fork server's folder
        serve(control)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _serve_runs(control: int) -> None:
    """Serve requests to run cells and tasks."""
    # All ranks of this process are forked from this zygote, which starts before any line of the learner has run.
    process.adopt(process.ZygoteClient(_fork_zygote))
    sandbox_worker.main(control)


def _fork_zygote(zygote_socket: socket.socket, log: BinaryIO) -> ForkedChild:
    """Fork the zygote of a sandbox's ranks, which takes requests from this socket and prints into `log`."""
    pid = os.fork()
    if pid:
        return ForkedChild(pid)
    try:
        os.setsid()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        launcher.close_all_but(zygote_socket.fileno())
        zygote.main(zygote_socket.fileno())
    finally:
        os._exit(0)


class ForkedChild:
    """A forked process with the `poll` of subprocess.Popen."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


if __name__ == "__main__":
    # Run under its own name, because the learner's notebook becomes the module `__main__` of a sandbox.
    importlib.import_module("helpers.classroom.fork_server").main(int(sys.argv[1]))
