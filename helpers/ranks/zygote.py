"""Runs the zygote: the process that has imported torch once, and from which every rank is forked.

    notebook kernel ──socket──> zygote ──fork──> rank 0, rank 1, …       each rank ──its own socket──> kernel

It starts ranks, reports how they ended, and when the kernel goes away (its socket closes, whatever killed it) it ends
them and removes their folders. Where fork is not safe (macOS), it starts fresh interpreters instead.

A branch is a zygote forked from this one, with a socket of its own, that has imported one more module. Its ranks run
code that nobody vouches for (a check), so whatever ends the branch ends no other ranks. The processes that its ranks
leave behind become its children, and it ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import glob
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

GRACE_SECONDS = 1.0  # seconds that ranks get to leave by themselves
FORKS = sys.platform.startswith("linux")
PR_SET_CHILD_SUBREAPER = 36
PRELOADED = ("helpers.ranks.worker", "helpers.ranks.nccl.rank_rules")  # so that no rank has to import them itself


def main(fd: int, *, branch: str = "") -> None:
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if branch:
        importlib.import_module(branch)
        _share()
    elif FORKS:
        _preload()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    Zygote(control, wake_read, wake_write, is_branch=bool(branch)).serve()


def become_subreaper() -> None:
    """From now on, a process whose parent ends becomes this one's child, if it descends from this one."""
    if FORKS:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _preload() -> None:
    import cloudpickle  # noqa: F401
    import torch
    import torch._dynamo  # each rank would import it with its first optimizer: a second and 0.1 GB per rank
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    for name in PRELOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    _share()


def _share() -> None:
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared between the ranks


class Zygote:
    def __init__(self, control: socket.socket, wake_read: int, wake_write: int, *, is_branch: bool = False):
        self.control, self.wake_read, self.wake_write = control, wake_read, wake_write
        self.is_branch, self.preloaded = is_branch, set()
        self.children: dict[int, subprocess.Popen | None] = {}
        self.branches: set[int] = set()  # of the children, those that hear from the kernel themselves when it goes
        self.folders: set[str] = set()
        self.pending = b""
        self.fds: list[int] = []

    def serve(self) -> None:
        if self.is_branch:
            become_subreaper()
        self.tell(ready=os.getpid())
        while True:
            readable, _, _ = select.select([self.control, self.wake_read], [], [])
            if self.wake_read in readable:
                os.read(self.wake_read, 4096)
                self.reap()
            if self.control in readable and not self.receive():
                return self.leave()

    def receive(self) -> bool:
        """Read requests and the sockets that come with them. False when the kernel is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 65536, 64)
        except OSError:
            return False
        if not data:
            return False
        self.fds += fds
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            self.handle(json.loads(line))
        return True

    def handle(self, request: dict) -> None:
        if "keep" in request:
            self.folders.add(request["keep"])
        elif "forget" in request:
            self.folders.discard(request["forget"])
        elif "branch" in request:
            fd = self.fds.pop(0)
            self.branches.add(pid := self.branch(fd, request["branch"]))
            os.close(fd)
            self.tell(started=pid)
        else:
            fd = self.fds.pop(0)
            pid = self.fork(fd, request) if FORKS else self.spawn(fd, request)
            os.close(fd)
            self.tell(started=pid)

    def fork(self, fd: int, spec: dict) -> int:
        if spec.get("card_bytes"):
            self.preload("helpers.devices.cards.kernels", "torch.distributed.tensor")  # C++ imports it for any subclass
        pid = os.fork()
        if pid:
            self.children[pid] = None
            return pid
        status = 1
        try:
            self.restore_child()
            from helpers.ranks.worker import main as work

            work(fd, spec)
            status = 0
        finally:
            os._exit(status)

    def preload(self, *modules: str) -> None:
        """Import modules here that each rank would otherwise import itself. Only those who need them wait for it."""
        if not self.preloaded.issuperset(modules):
            self.preloaded.update(modules)
            for module in modules:
                importlib.import_module(module)
            _share()

    def branch(self, fd: int, module: str) -> int:
        pid = os.fork()
        if pid:
            self.children[pid] = None
            return pid
        try:
            self.restore_child()
            os.setsid()
            main(fd, branch=module)
        finally:
            os._exit(0)

    def restore_child(self) -> None:
        """In a forked child: close what belongs to the zygote alone, and restore the signal handlers."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        self.control.close()
        for other in (self.wake_read, self.wake_write, *self.fds):
            os.close(other)

    def spawn(self, fd: int, spec: dict) -> int:
        command = [sys.executable, "-m", "helpers.ranks.worker", str(fd), json.dumps(spec)]
        child = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL)
        self.children[child.pid] = child
        return child.pid

    def reap(self) -> None:
        for pid, child in list(self.children.items()):
            status = self.status_of(pid, child)
            if status is not None:
                del self.children[pid]
                self.branches.discard(pid)
                self.tell(exited=pid, status=status)
        if self.is_branch:
            self.end_orphans()

    def end_orphans(self) -> None:
        """End the processes that dead ranks have left to this one. Their children come here once they have ended."""
        for pid in child_processes() - self.children.keys():
            end(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    @staticmethod
    def status_of(pid: int, child: subprocess.Popen | None) -> int | None:
        """Exit code, or minus the signal's number, or None while it lives."""
        if child is not None:
            return child.poll()
        done, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None

    def tell(self, **message) -> None:
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        deadline = time.monotonic() + (0.0 if self.is_branch else GRACE_SECONDS)
        while self.children.keys() - self.branches and time.monotonic() < deadline:
            select.select([self.wake_read], [], [], 0.05)
            self.reap()
        for pid in self.children.keys() - self.branches:
            end(pid)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self.is_branch:
            self.wait_for_orphans()

    def wait_for_orphans(self) -> None:
        deadline = time.monotonic() + GRACE_SECONDS
        while child_processes() and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.005)


def child_processes() -> set[int]:
    """The processes whose parent this one is; none where the system does not tell."""
    found: set[int] = set()
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found |= set(map(int, file.read().split()))
    return found


def end(pid: int) -> None:
    """A process, and with it those of its process group, if it has one."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
