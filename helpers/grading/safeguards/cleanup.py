"""Restores a rank's process after a learner's function, and finds out whether the process can be used again.

SavedSettings     settings of Python, the system and torch, which are put back
ProcessSnapshot   what is not put back: replaced functions of torch and Python, hooks and modes left on, a lost process
                  group; if any of these changed, the rank's pool starts a new process
end_started       ends the processes and threads that the function started and left running
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import math
import operator
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from helpers.devices import call_site
from helpers.grading.safeguards.limits import used_bytes
from helpers.ranks.sites import is_library
from helpers.ranks.zygote import take_orphans

MAX_KEPT_BYTES = 200_000_000  # more than this beyond what it had, and a rank is started anew
MAX_GROUPS = 50  # process groups, which nobody else destroys
SIGNALS = [
    getattr(signal, name) for name in "SIGINT SIGTERM SIGHUP SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2 SIGCHLD".split()
]
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _attributes(owner: Any, *names: str) -> _Setting:
    def put(values: tuple) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(owner, name, value)

    return lambda: tuple(getattr(owner, name) for name in names), put


def _environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _handlers(values: list) -> None:
    for number, handler in zip(SIGNALS, values, strict=True):
        signal.signal(number, handler)


def _mask(values: set) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, values)


def _deterministic(values: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(values[0], warn_only=values[1])  # torch's own imports inductor, for seconds


def _umask() -> int:
    os.umask(before := os.umask(0o077))
    return before


def _timers() -> list[float]:
    return [signal.getitimer(number)[0] for number in TIMERS]


def _stop_timers(_: list[float]) -> None:
    for number in TIMERS:
        signal.setitimer(number, 0)


def _list(owner: list) -> _Setting:
    return lambda: list(owner), lambda values: owner.__setitem__(slice(None), values)


SETTINGS: tuple[_Setting, ...] = (  # how each is read, and put back where it has changed
    (_timers, _stop_timers),
    (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), _mask),
    (lambda: [signal.getsignal(number) for number in SIGNALS], _handlers),
    _attributes(sys, "stdin", "stdout", "stderr", "excepthook", "argv", "path"),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (call_site.collects, lambda on: gc.enable() if on else gc.disable()),
    (os.getcwd, os.chdir),
    (_umask, os.umask),
    (lambda: dict(os.environ), _environment),
    _list(sys.path),
    _list(warnings.filters),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _deterministic,
    ),
    (lambda: torch.is_autocast_enabled("cpu"), functools.partial(torch.set_autocast_enabled, "cpu")),
    (lambda: torch.get_autocast_dtype("cpu"), functools.partial(torch.set_autocast_dtype, "cpu")),
    (lambda: torch.get_float32_matmul_precision(), torch.set_float32_matmul_precision),
)


class SavedSettings:
    """The settings as they are now."""

    def __init__(self) -> None:
        self.values = [read() for read, _ in SETTINGS]

    def put_back(self) -> None:
        for value, (read, put) in zip(self.values, SETTINGS, strict=True):
            now = None
            with contextlib.suppress(OSError):  # a folder that is gone
                now = read()
            if now != value:
                put(value)


def reseed(seed: int) -> None:
    """Every generator of numbers that a function may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


# -- what shows that a process is spent ------------------------------------------------------------------------------
MODULES = (builtins, math, time, random, torch, torch.nn.functional, torch.autograd, dist, distributed_c10d)
CLASSES = (
    torch.Tensor,
    nn.Module,
    nn.Parameter,
    nn.Linear,
    nn.Sequential,
    nn.ReLU,
    torch.Generator,
    torch.autograd.Function,
    dist.ReduceOp,
)
_HOOKS = [value for name, value in vars(nn.modules.module).items() if name.startswith("_global_") and "hook" in name]


class NamespaceSnapshot:
    """What each name of a module or a class means. Modules may get more, as torch imports parts of itself late."""

    def __init__(self, owner: ModuleType | type):
        self.space, self.is_open = vars(owner), isinstance(owner, ModuleType)
        self.size = self._size()
        meant = {name: value for name, value in self.space.items() if callable(value)}
        self.names, self.values = list(meant), list(meant.values())

    def _size(self) -> int:
        return len(self.space) - ("__slotnames__" in self.space)  # which pickle adds

    def have_moved(self) -> bool:
        now = list(map(self.space.get, self.names))
        same = all(map(operator.is_, now, self.values)) or self._is_torchs_own(now)
        return not same or (not self.is_open and self._size() != self.size)

    def _is_torchs_own(self, now: list) -> bool:
        """Whether it was torch that put something around a function: around manual_seed, when it imports dynamo."""
        moved = [(new, old) for new, old in zip(now, self.values, strict=True) if new is not old]
        if not all(getattr(new, "__wrapped__", None) is old and is_library(_file_of(new)) for new, old in moved):
            return False
        self.values = now
        return True


def _file_of(function: Any) -> str:
    return getattr(getattr(function, "__code__", None), "co_filename", "")


@functools.cache
def _namespaces() -> list[NamespaceSnapshot]:
    """As they are when first asked for, before any learner's code has run."""
    return [NamespaceSnapshot(owner) for owner in (*MODULES, *CLASSES)]


def _global_hooks_and_modes() -> tuple:
    """Modes and hooks that hold for whatever comes next."""
    hooks = [len(one) for one in _HOOKS if hasattr(one, "__len__")]
    modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    saved = torch._C._autograd._top_saved_tensors_default_hooks(False)
    limits = [resource.getrlimit(which) for which in LIMITS]
    return hooks, modes, saved, limits, dist.is_initialized() and id(dist.group.WORLD)


class ProcessSnapshot:
    """How to know that nothing has moved that `Shared` does not put back."""

    def __init__(self) -> None:
        _namespaces()
        self.left_on, self.used = _global_hooks_and_modes(), used_bytes()

    def have_moved(self) -> bool:
        return (
            any(names.have_moved() for names in _namespaces())
            or _global_hooks_and_modes() != self.left_on
            or used_bytes() > self.used + MAX_KEPT_BYTES
            or len(distributed_c10d._world.pg_map) > MAX_GROUPS
        )


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
