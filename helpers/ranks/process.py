"""Talks from the kernel to the zygote, which forks the ranks: one zygote per kernel, and a branch of it for checks.

`ZygoteClient.fork` starts a rank and returns the kernel's end of its pipe. The file does not import torch.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from helpers.ranks.zygote import FORKS, end

START_LIMIT = 120.0  # seconds for the zygote to import torch on a slow disk


class ZygoteClient:
    """Asks the zygote for ranks and hears from it how they ended. One lives in each kernel.

    start: makes its process, given its end of the socket and the file for its output.
    """

    def __init__(self, start: Callable[[socket.socket, BinaryIO], Any] | None = None) -> None:
        self.lock = threading.RLock()
        self.owner = os.getpid()
        self.log = tempfile.TemporaryFile()
        self.socket, other_end = socket.socketpair()
        self.process = (start or _fresh)(other_end, self.log)
        other_end.close()
        self.pending = b""
        self.ready = False
        self.started: list[int] = []
        self.forked: set[int] = set()
        self.exits: dict[int, int] = {}

    def fork(self, spec: dict) -> tuple[int, Connection]:
        """Start one rank; its process id and the kernel's end of its pipe."""
        kernel_end, other_end = socket.socketpair()
        with other_end, self.lock:
            pid = self._started(spec, other_end)
            self.forked.add(pid)
            return pid, Connection(kernel_end.detach())

    def branch(self, module: str, other_end: socket.socket, log: BinaryIO) -> Branch:
        """A zygote forked from this one, that imports a module. `log` stays empty: it writes to this one's."""
        with self.lock:
            return Branch(self._started({"branch": module}, other_end))

    def _started(self, request: dict, other_end: socket.socket) -> int:
        """The process id of what the zygote has started, to which it has given `theirs`."""
        self.wait_until_ready()
        socket.send_fds(self.socket, [json.dumps(request).encode() + b"\n"], [other_end.fileno()])
        self._read_until(lambda: self.started)
        return self.started.pop(0)

    def wait_until_ready(self) -> None:
        self._read_until(lambda: self.ready)

    def folder(self, path: str, *, keep: bool) -> None:
        """Have the zygote remove `path` when the kernel dies (keep=True), or no longer (keep=False)."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps({"keep" if keep else "forget": path}).encode() + b"\n")

    def exit_status(self, pid: int, limit: float = 1.0) -> int | None:
        """The exit code of a rank, minus the signal's number if a signal killed it.

        None if it is not known within `limit` seconds. If the rank belonged to an earlier zygote, its status died with
        that zygote: None at once.
        """
        with self.lock:
            if pid not in self.forked:
                return None
            deadline = time.monotonic() + limit
            while pid not in self.exits and (left := deadline - time.monotonic()) > 0:
                self._read(left)
            return self.exits.get(pid)

    def is_alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None and not self._is_cut()

    def _is_cut(self) -> bool:
        """Whether the other end of the socket is closed, which shows before anybody hears of the process's end."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _read_until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                log = self._log_tail()
                raise RuntimeError(f"the process that starts the ranks gave no answer in {START_LIMIT:.0f} s.\n{log}")
            self._read(left)

    def _read(self, limit: float) -> None:
        """Handle what the zygote sends within `limit` seconds."""
        if not select.select([self.socket], [], [], limit)[0]:
            return
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the process that starts the ranks ended.\n" + self._log_tail())
        *lines, self.pending = (self.pending + data).split(b"\n")
        for message in map(json.loads, lines):
            match message:
                case {"ready": _}:
                    self.ready = True
                case {"started": pid}:
                    self.started.append(pid)
                    self.exits.pop(pid, None)  # of another, that had this number before
                case {"exited": pid, "status": status}:
                    self.exits[pid] = status

    def _log_tail(self) -> str:
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


class Branch:
    """A zygote that was forked from another one, with the methods of subprocess.Popen that are needed here."""

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        """None while it lives; how it ended is not known here."""
        try:
            os.kill(self.pid, 0)
        except OSError:
            return 0
        return None

    def wait(self, timeout: float = START_LIMIT) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a zygote", timeout)
            time.sleep(0.005)

    def kill(self) -> None:
        end(self.pid)


def _fresh(other_end: socket.socket, log: BinaryIO) -> subprocess.Popen:
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=_python_path())
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.ranks.zygote", str(other_end.fileno())],
        pass_fds=[other_end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,  # Jupyter's interrupt goes to the kernel's process group alone
    )


def _python_path() -> str:
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


_clients: dict[str, ZygoteClient] = {}
_client_lock = threading.RLock()


def zygote(apart: str = "") -> ZygoteClient:
    """The kernel's zygote.

    It is started when it is first needed, again if something killed it, and anew in a forked child.

    apart: the name of a module. Then it is a branch that has imported this module, for ranks that may kill their
    parent.
    """
    with _client_lock:
        client = _clients.get(apart)
        if client is None or not client.is_alive():
            if client is not None and client.owner == os.getpid():
                client.socket.close()
            client = _clients[apart] = ZygoteClient(partial(zygote().branch, apart) if apart and FORKS else None)
            atexit.register(client.close)
        return client


def adopt(client: ZygoteClient) -> None:
    """Take the ranks from this zygote, as long as it lives."""
    with _client_lock:
        _clients[""] = client


def kill(pid: int) -> None:
    """End a rank, and what it has started."""
    end(pid)
