"""After a learner's function: the processes and threads that it started and did not end, the log that it filled."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time

import psutil

from helpers.ranks.zygote import take_orphans

MAX_LOG = 1_000_000  # bytes of a rank's log, which it writes past Python, that are kept
THREAD_SECONDS = 0.2  # seconds that a thread gets to end by itself


@functools.cache
def adopt_orphans() -> None:
    """Once in a process: children of its children come to it when those end."""
    take_orphans()


def end_started() -> bool:
    """End the processes. Whether a thread is left, which nobody can end."""
    end_children()
    with contextlib.suppress(OSError):
        if os.fstat(1).st_size > MAX_LOG:
            os.ftruncate(1, 0)
    until = time.monotonic() + THREAD_SECONDS
    for thread in foreign_threads():
        thread.join(max(0.0, until - time.monotonic()))
    return bool(foreign_threads())


def foreign_threads() -> list[threading.Thread]:
    """Threads that are neither the engine's nor torch's."""
    known = ("MainThread", "control", "wire ")
    every = [one for one in threading.enumerate() if not isinstance(one, threading._DummyThread)]
    return [one for one in every if not one.name.startswith(known)]


def end_children() -> None:
    """Until the system says that there is none: one that ends may leave us its own."""
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:  # there is one, and it lives
                for child in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        child.send_signal(signal.SIGKILL)
                os.waitpid(-1, 0)
