"""Talks from the kernel to the zygote, which forks the ranks: one zygote per kernel, and a branch of it for checks.

The kernel is the process of a notebook or a script. The zygote is a process that has imported torch once, so that each
rank can be forked from it in milliseconds (zygote.py, which also lists the messages that go to it and come from it). A
branch is a second zygote, forked from the first, for ranks that run code which cannot be trusted. `zygote()` returns
the client of one of the two, and starts it where needed. `ZygoteClient.fork` starts a rank and returns the kernel's end
of its pipe. `end_all` ends ranks, and `exit_status` says how one ended. The file does not import torch.
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
from collections.abc import Callable, Collection, Iterable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from helpers.ranks.board.interrupts import interruptible, interrupts_in_waits_only
from helpers.ranks.board.watch import RankState
from helpers.ranks.processes.limits import load_per_core
from helpers.ranks.processes.zygote import (  # FORKS: whether ranks are forked, which only Linux allows
    FORKS,
    kill_with_group,
)

START_LIMIT = 120.0  # seconds for the zygote to import torch on a slow disk
END_LIMIT = 1.0  # seconds in which all killed ranks are expected to have ended
# Of Python's hashes in every process that is forked from the zygote, which the order of a set depends on. It is fixed,
# so that a saved notebook repeats. A second zygote with another hash seed lets a rehearsal try two orders.
HASH_SEED = 0


class ZygoteClient:
    """The kernel's connection to a zygote: asks it for ranks, and hears from it how they ended.

    start: makes the zygote's process, given the zygote's end of the socket and a file for what it prints; by default a
    fresh Python process.
    """

    def __init__(self, start: Callable[[socket.socket, BinaryIO], Any] | None = None) -> None:
        self.lock = threading.RLock()
        self.owner = os.getpid()  # a child that is forked from the kernel must not use this object
        self.log = tempfile.TemporaryFile()
        self.socket, other_end = socket.socketpair()
        with other_end:
            try:
                self.process = (start or _start_zygote)(other_end, self.log)
            except BaseException:
                self.socket.close()
                self.log.close()
                raise
        self.pending = b""  # the beginning of a message whose end has not come yet
        self.ready = False  # whether the zygote has said that it takes requests
        self.new_pids: list[int] = []  # processes that it has started and that `_request` has not returned yet
        self.num_unwanted = 0  # processes that it will have started for requests that were interrupted
        self.exits: dict[int, int] = {}  # process id -> exit code of those that have ended

    def fork(self, spec: dict) -> tuple[int, Connection]:
        """Start one rank. Returns its process id and the kernel's end of its pipe.

        spec: plain data that tells the rank what it is: its number, device, folders and settings (worker.py lists the
        keys).
        """
        kernel_end, other_end = socket.socketpair()
        with other_end, self.lock:
            try:
                pid = self._request(spec, other_end)
            except BaseException:
                kernel_end.close()
                raise
            _zygote_of[pid] = self
            return pid, Connection(kernel_end.detach())

    def branch(self, module: str, other_end: socket.socket, log: BinaryIO) -> Branch:
        """Fork a zygote from this one that also imports `module`. It prints to this one's log; `log` stays empty."""
        with self.lock:
            return Branch(self._request({"branch": module}, other_end))

    def _request(self, request: dict, other_end: socket.socket) -> int:
        """Have the zygote start a process and give it `other_end` of a socket. Returns the process id.

        After an interrupt the process is ended as soon as the zygote says that it has started it.
        """
        with interrupts_in_waits_only():
            self.wait_until_ready()
            socket.send_fds(self.socket, [json.dumps(request).encode() + b"\n"], [other_end.fileno()])
            try:
                self._read_until(lambda: self.new_pids)
            except KeyboardInterrupt:
                self.num_unwanted += 1
                raise
            return self.new_pids.pop(0)

    def wait_until_ready(self) -> None:
        """Wait until the zygote takes requests."""
        self._read_until(lambda: self.ready)

    def remove_later(self, folder: str, *, wanted: bool = True) -> None:
        """Have the zygote remove a folder when the kernel dies; with wanted=False, have it forget the folder again."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps({"remove_later" if wanted else "forget": folder}).encode() + b"\n")

    def exit_status(self, pid: int, limit: float = 1.0) -> int | None:
        """The exit code of a rank, or minus the signal's number if a signal killed it.

        Waits up to `limit` seconds for the rank's end; None if it does not end.
        """
        with self.lock:
            deadline = time.monotonic() + limit
            while pid not in self.exits and (left := deadline - time.monotonic()) > 0:
                self._read(left)
            return self.exits.get(pid)

    def is_alive(self) -> bool:
        """Whether this process may use the zygote, and the zygote runs."""
        return self.owner == os.getpid() and self.process.poll() is None and not self._is_closed()

    def _is_closed(self) -> bool:
        """Whether the zygote's end of the socket is closed. That is known earlier than the end of its process."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _read_until(self, done: Callable[[], object]) -> None:
        """Handle messages until `done()` is true. Raises RuntimeError with the zygote's log after START_LIMIT."""
        deadline = time.monotonic() + START_LIMIT
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                log = self._log_tail()
                raise RuntimeError(f"the process that starts the ranks gave no answer in {START_LIMIT:.0f} s.\n{log}")
            self._read(left)

    def _read(self, limit: float) -> None:
        """Handle what the zygote sends within `limit` seconds. An interrupt leaves no message half handled."""
        with interrupts_in_waits_only():
            with interruptible():
                is_readable = select.select([self.socket], [], [], limit)[0]
            if is_readable:
                self._receive()

    def _receive(self) -> None:
        """Handle what the zygote has sent."""
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:  # it ended before it had read a request
            data = b""
        if not data:
            raise RuntimeError("the process that starts the ranks ended.\n" + self._log_tail())
        *lines, self.pending = (self.pending + data).split(b"\n")
        for message in map(json.loads, lines):
            match message:
                case {"ready": _}:
                    self.ready = True
                case {"started": pid} if self.num_unwanted:
                    self.num_unwanted -= 1
                    kill_with_group(pid)
                case {"started": pid}:
                    self.new_pids.append(pid)
                    self.exits.pop(pid, None)  # of an earlier process with the same number
                case {"exited": pid, "status": status}:
                    self.exits[pid] = status

    def _log_tail(self) -> str:
        """The last 2000 characters that the zygote printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        """End the zygote and with it every rank. Waits for at most 5 seconds."""
        if self.owner != os.getpid():
            return
        self.socket.close()
        if not self.ready:  # it still imports, and would hear nothing before it has ended that
            self.process.kill()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Branch:
    """The process of a branch, with those methods of subprocess.Popen that ZygoteClient calls.

    The branch is a child of the zygote and not of the kernel, so its exit code is not known here.
    """

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        """None while the process runs, else 0."""
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
        kill_with_group(self.pid)


def is_hash_seed_chosen() -> bool:
    """Whether the environment sets the hash seed of all Python processes, so that it does so on a cluster, too."""
    return os.environ.get("PYTHONHASHSEED", "random") != "random"


def _start_zygote(other_end: socket.socket, log: BinaryIO, *, hash_seed: int = HASH_SEED) -> subprocess.Popen:
    """Start a zygote as a fresh Python process."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=_python_path())
    if not is_hash_seed_chosen():
        environment["PYTHONHASHSEED"] = str(hash_seed)
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.ranks.processes.zygote", str(other_end.fileno())],
        pass_fds=[other_end.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,  # Jupyter's interrupt goes to the kernel's process group alone
    )


def _python_path() -> str:
    """The PYTHONPATH by which a new process finds the same modules as this one."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


# By the module that a branch imports, which is "" for the zygote itself, and by the hash seed.
_clients: dict[tuple[str, int], ZygoteClient] = {}
_client_lock = threading.RLock()  # held while one of them is looked up or made
_zygote_of: dict[int, ZygoteClient] = {}  # process id of a rank -> the client that has started it


def zygote(apart: str = "", *, hash_seed: int = HASH_SEED) -> ZygoteClient:
    """The kernel's zygote. The first call starts it, and so does a call after its death or in a child of the kernel.

    apart: the name of a module. Then it is a branch, apart from the zygote, that has imported this module. It is for
    ranks that may kill their parent. Where ranks are not forked, it is another fresh zygote. hash_seed: of a second
    zygote, if it is not HASH_SEED. One with yet another hash seed takes its place.
    """
    with _client_lock:
        if hash_seed != HASH_SEED:
            _close_zygotes(but={HASH_SEED, hash_seed})
        client = _clients.get((apart, hash_seed))
        if client is None or not client.is_alive():
            if client is not None and client.owner == os.getpid():
                client.socket.close()
            start = partial(_start_zygote, hash_seed=hash_seed)
            if apart and FORKS:
                start = partial(zygote(hash_seed=hash_seed).branch, apart)
            client = _clients[apart, hash_seed] = ZygoteClient(start)
            atexit.register(client.close)
        return client


def running_zygote(apart: str = "") -> ZygoteClient | None:
    """The client that `zygote(apart)` would return, if it need not be started for that."""
    with _client_lock:
        client = _clients.get((apart, HASH_SEED))
        return client if client is not None and client.is_alive() else None


def _close_zygotes(*, but: set[int]) -> None:
    """End the zygotes, and with them their ranks, that have none of these hash seeds."""
    for apart, hash_seed in [key for key in _clients if key[1] not in but]:
        client = _clients.pop((apart, hash_seed))
        atexit.unregister(client.close)
        client.close()


def adopt(client: ZygoteClient) -> None:
    """Make this client the one that `zygote()` returns as long as its zygote lives.

    A sandbox, in which a server checks a learner's answer, adopts a zygote that has been made before the answer runs.
    """
    with _client_lock:
        _clients["", HASH_SEED] = client


def exit_status(pid: int, limit: float = 1.0) -> int | None:
    """How a rank ended, as `ZygoteClient.exit_status` says it; None at once where its own zygote is gone."""
    client = _zygote_of.get(pid)
    if client is None or not client.is_alive():
        return None
    with contextlib.suppress(RuntimeError, OSError):
        return client.exit_status(pid, limit)
    return None


def exit_codes(ranks: Iterable[RankState]) -> dict[int, int | None]:
    """Rank -> how it ended, of those of these ranks that are dead. The busier the machine, the longer is the wait."""
    return {one.rank: exit_status(one.pid, load_per_core()) for one in ranks if one.dead}


def end_all(ranks: Collection[RankState], limit: float = END_LIMIT) -> None:
    """Kill these ranks with what they have started, and close their pipes.

    It returns when the last one has ended, because until then it might still write, or after `limit` seconds.
    """
    for one in ranks:
        kill_with_group(one.pid)
    end = time.monotonic() + limit
    for one in ranks:
        exit_status(one.pid, end - time.monotonic())
        one.conn.close()
