"""Limits what a rank may use while a learner's function runs: processor time, memory, and the size of a file.

`processor_limit` also holds where a whole class of learners is graded. A rank over a limit raises TooLong or TooMuch at
the learner's line.

A limit of time or memory is watched by a timer of the system, which sends the process a signal; Python runs its handler
between two lines of the learner's code. `defer_signal(handler)` returns True if the rank's engine is in the middle of a
message just then, which must not be interrupted. The engine calls the handler again afterwards.
"""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator

import psutil

from helpers.grading.safeguards.audit_rules import words

MAX_MEMORY = 1_000_000_000  # bytes, in addition to what the rank has when the function begins
MAX_FILE = 100_000_000  # bytes of one file, also of the rank's log, to which code may write past Python
MEMORY_CHECK_SECONDS = 0.1  # between two looks at the memory, on systems that set no limit to it
REPEAT_SECONDS = 0.5  # after which TooLong is raised again, if code has swallowed it
# How torch, C++ and the system say that there is no memory left.
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|Failed to allocate|bad_alloc|Cannot allocate memory")


class TooLong(BaseException):
    """A rank used up its processor time. No Exception, so that `except Exception` in a loop does not swallow it."""


class TooMuch(BaseException):
    """A rank used up its memory. words: what it did, to be read behind "it ", which the ranks report."""

    def __init__(self) -> None:
        self.words = words["memory"].format(f"{MAX_MEMORY / 1e9:g} GB")
        super().__init__(self.words.en)


@contextlib.contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raises TooLong once this process has computed for `seconds`. Waiting, on a busy machine say, does not count."""
    from helpers.ranks.processes.worker import defer_signal  # needs torch, which only ranks have loaded

    def end(*_: object) -> None:
        if not defer_signal(end):
            raise TooLong(f"{seconds:g} s of processor time are used up")

    with _called_after(seconds, REPEAT_SECONDS, end, signal.ITIMER_PROF, signal.SIGPROF):
        yield


@contextlib.contextmanager
def _called_after(seconds: float, repeat: float, handler: Callable, timer: int, number: int) -> Iterator[None]:
    """Within it, `handler` is called after so many seconds, and every `repeat` seconds after that.

    timer: which of the system's timers counts the seconds. number: the signal that this timer sends.
    """
    before = signal.signal(number, handler)
    signal.setitimer(timer, seconds, repeat)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)


@contextlib.contextmanager
def limit_memory_and_files() -> Iterator[None]:
    """Within it, the process can have no more than MAX_MEMORY in addition, and write no file over MAX_FILE."""
    max_bytes = used_bytes() + MAX_MEMORY
    is_linux = sys.platform.startswith("linux")  # other systems set no limit to memory, so it is looked at
    memory_limit = _soft_limit(resource.RLIMIT_DATA, max_bytes) if is_linux else _watched(max_bytes)
    with _soft_limit(resource.RLIMIT_FSIZE, MAX_FILE), memory_limit:
        yield


@contextlib.contextmanager
def name_memory_errors() -> Iterator[None]:
    """Turns the errors of Python, torch and the system about missing memory into TooMuch."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise TooMuch().with_traceback(error.__traceback__) from None


def used_bytes() -> int:
    """The bytes that count towards the limit.

    On Linux these are all private writable pages, touched or not, as RLIMIT_DATA counts them. RLIMIT_AS would also
    count torch's libraries, and 64 MB that are reserved for each thread. Elsewhere it is the resident memory.
    """
    try:
        with open("/proc/self/statm") as file:  # the sixth number: pages of data and stack
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return psutil.Process().memory_info().rss


@contextlib.contextmanager
def _soft_limit(which: int, value: int) -> Iterator[None]:
    """Within it, this soft limit of the system is `value`, or what it was if that is less."""
    before = resource.getrlimit(which)  # the soft limit and the hard one
    soft = min(limit for limit in (value, *before) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@contextlib.contextmanager
def _watched(max_bytes: int) -> Iterator[None]:
    """Look at the memory from time to time; a single large allocation is noticed only after it succeeded."""
    from helpers.ranks.processes.worker import defer_signal

    def look(*_: object) -> None:
        if used_bytes() > max_bytes and not defer_signal(look):
            raise TooMuch

    with _called_after(MEMORY_CHECK_SECONDS, MEMORY_CHECK_SECONDS, look, signal.ITIMER_REAL, signal.SIGALRM):
        yield
