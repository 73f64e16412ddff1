"""The kernel's side of the processes: one zygote a kernel, and a pipe to each rank. No torch."""

from __future__ import annotations

import atexit
import contextlib
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
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

START_LIMIT = 120.0  # seconds for the zygote to import torch on a slow disk


class ZygoteClient:
    """Asks the zygote for ranks and hears from it how they ended. One lives in each kernel.

    start: makes its process, given its end of the socket and the file for its output.
    """

    def __init__(self, start: Callable[[socket.socket, BinaryIO], Any] | None = None) -> None:
        self.lock = threading.RLock()
        self.owner = os.getpid()
        self.log = tempfile.TemporaryFile()
        self.socket, theirs = socket.socketpair()
        self.process = (start or _fresh)(theirs, self.log)
        theirs.close()
        self.pending = b""
        self.ready = False
        self.started: list[int] = []
        self.forked: set[int] = set()
        self.exits: dict[int, int] = {}

    def fork(self, spec: dict) -> tuple[int, Connection]:
        """Start one rank; its process id and the kernel's end of its pipe."""
        with self.lock:
            self.wait_until_ready()
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self.socket, [json.dumps(spec).encode() + b"\n"], [theirs.fileno()])
            self._read_until(lambda: self.started)
            pid = self.started.pop(0)
            self.forked.add(pid)
            return pid, Connection(ours.detach())

    def wait_until_ready(self) -> None:
        self._read_until(lambda: self.ready)

    def folder(self, path: str, *, keep: bool) -> None:
        """Have the zygote remove `path` when the kernel dies (keep=True), or forget about it."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps({"keep" if keep else "forget": path}).encode() + b"\n")

    def exit_status(self, pid: int, limit: float = 1.0) -> int | None:
        """Exit code of a rank, minus the signal's number if one killed it, None if it is not known within `limit`.

        Of a rank of an earlier zygote, which died with it, nobody will ever know: None at once.
        """
        with self.lock:
            if pid not in self.forked:
                return None
            deadline = time.monotonic() + limit
            while pid not in self.exits and (left := deadline - time.monotonic()) > 0:
                self._read(left)
            return self.exits.get(pid)

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def _read_until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                said = self._last_words()
                raise RuntimeError(f"the process that starts the ranks gave no answer in {START_LIMIT:.0f} s.\n{said}")
            self._read(left)

    def _read(self, limit: float) -> None:
        """Take in what the zygote says within `limit` seconds."""
        if not select.select([self.socket], [], [], limit)[0]:
            return
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the process that starts the ranks ended.\n" + self._last_words())
        *lines, self.pending = (self.pending + data).split(b"\n")
        for message in map(json.loads, lines):
            match message:
                case {"ready": _}:
                    self.ready = True
                case {"started": pid}:
                    self.started.append(pid)
                case {"exited": pid, "status": status}:
                    self.exits[pid] = status

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        """End the zygote and with it every rank. Waits for at most 5 seconds."""
        if self.owner != os.getpid():
            return
        self.socket.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def _fresh(theirs: socket.socket, log: BinaryIO) -> subprocess.Popen:
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=_python_path())
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.ranks.zygote", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,  # Jupyter's interrupt goes to the kernel's process group alone
    )


def _python_path() -> str:
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


_client: ZygoteClient | None = None
_client_lock = threading.Lock()


def zygote() -> ZygoteClient:
    """The kernel's zygote; started when it is first needed, again if something killed it, anew in a forked child."""
    global _client
    with _client_lock:
        if _client is None or not _client.alive():
            if _client is not None and _client.owner == os.getpid():
                _client.socket.close()
            _client = ZygoteClient()
            atexit.register(_client.close)
        return _client


def adopt(client: ZygoteClient) -> None:
    """Take the ranks from this zygote, as long as it lives."""
    global _client
    with _client_lock:
        _client = client


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
