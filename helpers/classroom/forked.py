"""The grader's side of the nursery: start it once, have it fork a launcher, hear how that ended."""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from helpers.classroom import rungs

START_SECONDS = 90.0  # for the nursery to import torch on a slow disk
ENVIRONMENT = {  # of the nursery: nothing of the grader's own
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(rungs.ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Nursery:
    """One process that has imported torch; `fork` starts a launcher from it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-B", "-m", "helpers.classroom.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )

    def fork(self, config: dict[str, Any], control: int, lifeline: int) -> Forked:
        """A launcher with this configuration of launch.py. Raises OSError where the nursery is gone."""
        output, theirs_output = os.pipe()
        status, theirs_status = os.pipe()
        descriptors = [control, lifeline, theirs_output, theirs_status]
        try:
            socket.send_fds(self.socket, [json.dumps(config).encode()], descriptors)
            return Forked(output, status)
        finally:
            os.close(theirs_output)
            os.close(theirs_status)

    def close(self) -> None:
        """It ends with its socket; what it started ends by itself."""
        self.socket.close()
        self.process.wait()


class Forked:
    """A launcher, with what is asked of a subprocess.Popen."""

    def __init__(self, output: int, status: int):
        self.stdout, self.status, self.said = open(output, "rb"), status, b""
        self.returncode: int | None = None
        self.pid = int(self._line(START_SECONDS))

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; -9 where it was killed. Raises TimeoutExpired."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout) or -9)
            os.close(self.status)
        return self.returncode

    def _line(self, timeout: float | None) -> bytes:
        """What it says next; b"" where it is gone."""
        until = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self.said:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self.status], [], [], left)[0]:
                raise subprocess.TimeoutExpired("the sandbox", timeout)
            data = os.read(self.status, 100)
            if not data:
                return b""
            self.said += data
        line, _, self.said = self.said.partition(b"\n")
        return line


_nursery: Nursery | None = None
_lock = threading.Lock()


def nursery() -> Nursery:
    """The nursery of this process; another where somebody killed it."""
    global _nursery
    with _lock:
        if _nursery is None or _nursery.process.poll() is not None:
            _nursery = Nursery()
            atexit.register(_nursery.close)
        return _nursery
