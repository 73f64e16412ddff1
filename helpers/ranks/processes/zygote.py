"""Runs the zygote: the process that has imported torch once, and from which every rank is forked.

    notebook kernel ──socket──> zygote ──fork──> rank 0, rank 1, …       each rank ──its own socket──> kernel

"Zygote" is Android's word for a process that has loaded everything and from which others are forked. A rank that is
forked needs no time to import torch, and shares its memory pages with the other ranks. The kernel is the notebook's
process. The zygote starts ranks and reports how they ended. When the kernel goes away (its socket closes, whatever
killed it), the zygote ends the ranks and removes their folders. Where fork is not safe (macOS), it starts fresh
interpreters instead.

A branch is a zygote forked from this one, with a socket of its own, that has imported one more module. Its ranks run
code that cannot be trusted, such as a learner's answer that is checked. Whatever that code does to its parent, the
branch, no other ranks end. The processes that such ranks leave behind become the branch's children, and it ends them.

A request of the kernel is one line of JSON; with the last two, one end of a socket is sent as a file descriptor:

    {"remove_later": path}           remove this folder when the kernel goes away
    {"forget": path}                 do so no longer
    {"branch": module}               fork a branch that imports this module
    {"rank": …, "world_size": …, …}  start a rank with this spec (worker.py explains its keys)

The zygote sends {"ready": pid}, {"started": pid} and {"exited": pid, "status": code}.
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
FORKS = sys.platform.startswith("linux")  # whether ranks are forked; elsewhere each is a fresh interpreter
PR_SET_CHILD_SUBREAPER = 36  # the number in Linux's <sys/prctl.h>
# Modules that the zygote imports, so that no rank has to do so itself.
PRELOADED = ("helpers.ranks.processes.worker", "helpers.ranks.nccl.rank_rules")


def main(fd: int, *, branch: str = "") -> None:
    """Be a zygote until the kernel goes away. fd: its end of the socket. branch: the module that a branch imports."""
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if branch:
        importlib.import_module(branch)
        _share_memory()
    elif FORKS:
        _preload()
    # When a child ends, Python writes the signal's number into this pipe, for which `Zygote.serve` waits.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, Python would write nothing for this signal
    Zygote(control, wake_read, wake_write, is_branch=bool(branch)).serve()


def become_subreaper() -> None:
    """From now on, a descendant of this process whose parent ends becomes a child of this process."""
    if FORKS:
        # None: what this process has loaded already, and so the C library. 1 turns it on; the zeros mean nothing.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _preload() -> None:
    """Import what every rank needs."""
    import cloudpickle  # noqa: F401
    import torch
    import torch._dynamo  # each rank would import it with its first optimizer: a second and 0.1 GB per rank
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    for name in PRELOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    _share_memory()


def _share_memory() -> None:
    """Exclude all objects so far from garbage collection, which would write to their memory pages.

    A page to which no process writes stays shared between the zygote and the ranks.
    """
    gc.collect()
    gc.freeze()


class Zygote:
    """Serves the requests of a kernel that come through `control`. wake_read: becomes readable when a child ends."""

    def __init__(self, control: socket.socket, wake_read: int, wake_write: int, *, is_branch: bool = False):
        self.control, self.wake_read, self.wake_write = control, wake_read, wake_write
        self.is_branch = is_branch
        self.preloaded = set()  # names of the modules that were imported for some ranks only
        self.children: dict[int, subprocess.Popen | None] = {}  # by process id; None where the child was forked
        self.branches: set[int] = set()  # the children that are branches, which notice by themselves if the kernel goes
        self.folders: set[str] = set()  # to remove when the kernel goes away
        self.pending = b""  # the beginning of a request whose end has not come yet
        self.fds: list[int] = []  # file descriptors that came with requests that are not handled yet

    def serve(self) -> None:
        """Handle requests and the ends of children until the kernel is gone."""
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
            data, fds, _, _ = socket.recv_fds(self.control, 65536, 64)  # at most so many bytes and descriptors
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
        """Do what one request asks (they are listed at the top of this file)."""
        if "remove_later" in request:
            self.folders.add(request["remove_later"])
        elif "forget" in request:
            self.folders.discard(request["forget"])
        elif "branch" in request:
            fd = self.fds.pop(0)
            self.branches.add(pid := self.branch(fd, request["branch"]))
            os.close(fd)
            self.tell(started=pid)
        else:  # the request is the spec of a rank
            fd = self.fds.pop(0)
            pid = self.fork(fd, request) if FORKS else self.spawn(fd, request)
            os.close(fd)
            self.tell(started=pid)

    def fork(self, fd: int, spec: dict) -> int:
        """Fork a rank; its process id. fd: its end of the pipe to the kernel."""
        if spec.get("card_bytes"):  # a rank with a simulated GPU
            # torch's C++ code imports torch.distributed.tensor for any subclass of Tensor.
            self.preload("helpers.devices.cards.kernels", "torch.distributed.tensor")
        pid = os.fork()
        if pid:
            self.children[pid] = None
            return pid
        status = 1
        try:
            self.restore_child()
            from helpers.ranks.processes.worker import main as work

            work(fd, spec)
            status = 0
        finally:
            os._exit(status)

    def preload(self, *modules: str) -> None:
        """Import modules here that each of these ranks would otherwise import itself."""
        if not self.preloaded.issuperset(modules):
            self.preloaded.update(modules)
            for module in modules:
                importlib.import_module(module)
            _share_memory()

    def branch(self, fd: int, module: str) -> int:
        """Fork a branch; its process id."""
        pid = os.fork()
        if pid:
            self.children[pid] = None
            return pid
        try:
            self.restore_child()
            os.setsid()  # a session and a process group of its own, so that signals to the zygote's do not reach it
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
        """Start a rank as a fresh interpreter; its process id."""
        command = [sys.executable, "-m", "helpers.ranks.processes.worker", str(fd), json.dumps(spec)]
        child = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL)
        self.children[child.pid] = child
        return child.pid

    def reap(self) -> None:
        """Report the children that have ended, so that none stays as a zombie."""
        for pid, child in list(self.children.items()):
            status = self.status_of(pid, child)
            if status is not None:
                del self.children[pid]
                self.branches.discard(pid)
                self.tell(exited=pid, status=status)
        if self.is_branch:
            self.end_orphans()

    def end_orphans(self) -> None:
        """End the processes that dead ranks have left to this branch.

        The children of such a process come here once it has ended, and are ended the next time.
        """
        for pid in child_processes() - self.children.keys():
            kill_with_group(pid)
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
        """Send a message to the kernel, unless it is gone."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        """End all ranks and remove their folders. A zygote that is no branch gives them GRACE_SECONDS to end."""
        deadline = time.monotonic() + (0.0 if self.is_branch else GRACE_SECONDS)
        while self.children.keys() - self.branches and time.monotonic() < deadline:
            select.select([self.wake_read], [], [], 0.05)
            self.reap()
        for pid in self.children.keys() - self.branches:
            kill_with_group(pid)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self.is_branch:
            self.wait_for_orphans()

    def wait_for_orphans(self) -> None:
        """Wait, for at most GRACE_SECONDS, until no process is left that descends from this branch."""
        deadline = time.monotonic() + GRACE_SECONDS
        while child_processes() and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.005)


def child_processes() -> set[int]:
    """The ids of this process's children; none where the system does not list them."""
    found: set[int] = set()
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found |= set(map(int, file.read().split()))
    return found


def kill_with_group(pid: int) -> None:
    """Kill a process, and all processes of its process group, if it leads one (a rank does)."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # the kernel waits for this end, and the interpreter would take torch apart first
