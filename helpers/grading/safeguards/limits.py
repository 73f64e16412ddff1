"""Limits of one rank while a learner's function runs: processor time, memory, the size of a file."""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import sys
from collections.abc import Iterator

import psutil

from helpers.grading.safeguards.audit_rules import words
from helpers.ranks import worker

MAX_MEMORY = 1_000_000_000  # bytes beyond what the rank has when the function begins
MAX_FILE = 100_000_000  # bytes of one file, and of what it writes past Python to the rank's log
MEMORY_CHECK_SECONDS = 0.1  # seconds between two looks at the memory, where the system sets no limit to it
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|Failed to allocate|bad_alloc|Cannot allocate memory")


class TooLong(BaseException):
    """A rank used up its processor time. No Exception, so that `except Exception` in a loop does not swallow it."""


class TooMuch(BaseException):
    """A rank used up its memory. words: the same."""

    def __init__(self) -> None:
        self.words = words["memory"].format(f"{MAX_MEMORY / 1e9:g} GB")
        super().__init__(self.words.en)


@contextlib.contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong once this process has computed for `seconds`. Waiting on a crowded machine does not count."""

    def end(*_: object) -> None:
        if not worker.put_off(end):
            raise TooLong(f"{seconds:g} s of processor time are used up")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)  # again, in case somebody swallows the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def limit_memory_and_files() -> Iterator[None]:
    """Within, memory beyond MEMORY is refused, and a file of more than FILE bytes."""
    with _soft_limit(resource.RLIMIT_FSIZE, MAX_FILE):
        if sys.platform.startswith("linux"):
            with _soft_limit(resource.RLIMIT_DATA, used_bytes() + MAX_MEMORY):
                yield
        else:
            with _watched(used_bytes() + MAX_MEMORY):
                yield


@contextlib.contextmanager
def name_memory_errors() -> Iterator[None]:
    """Whoever says that there is no memory left, Python, torch or the system, says TooMuch."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise TooMuch().with_traceback(error.__traceback__) from None


def used_bytes() -> int:
    """Linux: what is mapped to be written by this process alone, touched or not, which is what RLIMIT_DATA counts.
    RLIMIT_AS would count torch's libraries, and 64 MB that are reserved for each thread."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return psutil.Process().memory_info().rss


@contextlib.contextmanager
def _soft_limit(which: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    soft = min(limit for limit in (most, *before) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@contextlib.contextmanager
def _watched(most: int) -> Iterator[None]:
    """Look at the memory from time to time. What is asked for at once is seen when it is there."""

    def look(*_: object) -> None:
        if used_bytes() > most and not worker.put_off(look):
            raise TooMuch

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, MEMORY_CHECK_SECONDS, MEMORY_CHECK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
