"""The process that sandboxes are forked from. It has imported torch once, and never runs a learner's code.

    grader ──socket──> nursery ──fork──> launcher ──fork──> S ──fork──> the zygote of its ranks

So a notebook waits for no import of torch, where fresh interpreters would import it twice. Where fork is not safe
(macOS), nobody comes here.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, BinaryIO

from helpers.classroom import launch, student
from helpers.grading import labs, tasks_of
from helpers.ranks import process, zygote

MOST_BYTES = 200_000  # of one configuration


def main(descriptor: int) -> None:
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a launcher tells its end itself
    control = socket.socket(fileno=descriptor)
    while True:
        body, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 4)
        if not body:
            return
        if os.fork() == 0:
            _launch(json.loads(body), *descriptors)
        for one in descriptors:
            os.close(one)


def preload() -> None:
    """All that a notebook of any lab needs; what gives answers away is taken out of each copy, see stripped.py."""
    for number in labs():
        tasks_of(number)
    zygote._preload()
    gc.freeze()


def _launch(config: dict[str, Any], control: int, lifeline: int, output: int, status: int) -> None:
    """Be the launcher of one sandbox. It writes its process id to `status`, and at its end its exit code."""
    code = 126
    try:
        for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGCHLD, signal.SIG_DFL)):
            signal.signal(number, action)
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        student.ready(config)  # here, so that no learner's process ever had the answers or saw the private checks
        launch.close_all_but(control, lifeline, status)
        os.write(status, f"{os.getpid()}\n".encode())
        code = launch.main(config | {"control": control, "lifeline": lifeline, "run": lambda: _learn(control)})
        os.write(status, f"{code if code >= 0 else 128 - code}\n".encode())
    except OSError as error:
        os.write(2, f"the sandbox did not start: {error}\n".encode())
        os.write(status, b"126\n")
    os._exit(0)


def _learn(control: int) -> int:
    """Be S. The exit code."""
    try:
        tempfile.tempdir = None  # of the nursery's own environment
        process.adopt(process.ZygoteClient(_forked_zygote))  # before anything of the learner's has run
        student.main(control)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _forked_zygote(theirs: socket.socket, log: BinaryIO) -> Child:
    pid = os.fork()
    if pid:
        return Child(pid)
    try:
        os.setsid()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        launch.close_all_but(theirs.fileno())
        zygote.main(theirs.fileno())
    finally:
        os._exit(0)


class Child:
    """A forked process that is asked, as a subprocess.Popen is, whether it has ended."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


if __name__ == "__main__":
    from helpers.classroom import nursery

    nursery.main(int(sys.argv[1]))
