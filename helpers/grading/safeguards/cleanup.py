"""Restores a rank's process after a learner's function, and finds out whether the process can be used again.

SavedSettings       settings of Python, the system and torch, which are put back
ProcessSnapshot     what is not put back: replaced functions of torch and Python, hooks and modes left on, a lost
                    process group. If any of these changed, the rank's pool starts a new process
end_started         ends the processes and threads that the function started and left running
adopt_orphans_once  lets end_started find also those processes whose parent has ended

A rank is a process that runs one learner's function after another, so nothing that one leaves behind may change the
next. The *engine* is the part of the course that runs in each rank and sends its messages, in threads of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import math
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from helpers.devices import call_site
from helpers.grading.safeguards.limits import used_bytes
from helpers.ranks.board.sites import is_library
from helpers.ranks.processes.zygote import become_subreaper

MAX_KEPT_BYTES = 200_000_000  # a rank that keeps so much more memory than before the function is replaced
MAX_GROUPS = 50  # a rank with more process groups is replaced, since learners' functions seldom destroy them
SIGNAL_NAMES = "SIGINT SIGTERM SIGHUP SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2 SIGCHLD"
SIGNALS = [getattr(signal, name) for name in SIGNAL_NAMES.split()]  # those whose handlers are put back
# Timers of the system, and limits of the process, that a function may have set.
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]  # how to read a setting, and how to set it


def _attributes(owner: Any, *names: str) -> _Setting:
    """Several attributes of an object as one setting."""

    def put(values: list) -> None:
        for name, value in zip(names, values, strict=True):
            setattr(owner, name, value)

    return lambda: [getattr(owner, name) for name in names], put


def _set_environment(values: dict[str, str]) -> None:
    """Makes these the only environment variables; os.environ stays the same object."""
    os.environ.clear()
    os.environ.update(values)


def _set_handlers(values: list) -> None:
    """Install the signal handlers."""
    for number, handler in zip(SIGNALS, values, strict=True):
        signal.signal(number, handler)


def _set_signal_mask(values: set) -> None:
    """Blocks these signals and no others."""
    signal.pthread_sigmask(signal.SIG_SETMASK, values)


def _set_deterministic(values: tuple[bool, bool]) -> None:
    """Sets whether torch uses deterministic algorithms only, and whether it merely warns of others."""
    # torch.use_deterministic_algorithms would import inductor, which takes seconds.
    torch._C._set_deterministic_algorithms(values[0], warn_only=values[1])


def _umask() -> int:
    """The mask of permissions for new files. The system tells it only when it is changed, so it is changed back."""
    before = os.umask(0o077)
    os.umask(before)
    return before


def _timers() -> list[float]:
    """The seconds that are left of each timer; 0 for one that does not run."""
    return [signal.getitimer(number)[0] for number in TIMERS]


def _stop_timers(_: list[float]) -> None:
    """Stops all timers, since none runs before the function begins."""
    for number in TIMERS:
        signal.setitimer(number, 0)


def _list(owner: list) -> _Setting:
    """The items of a list; they are put back into the same list, which other code may refer to."""

    def put(values: list) -> None:
        owner[:] = values

    return lambda: list(owner), put


# Timers and signals come first, so that none of the function's own handlers runs while the rest is put back.
SETTINGS: tuple[_Setting, ...] = (
    (_timers, _stop_timers),
    (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), _set_signal_mask),  # blocking no signal reads the mask
    (lambda: [signal.getsignal(number) for number in SIGNALS], _set_handlers),
    _attributes(sys, "stdin", "stdout", "stderr", "excepthook", "argv", "path"),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    # The engine turns the garbage collector off for a moment now and then, which is_gc_enabled waits for.
    (call_site.is_gc_enabled, lambda on: gc.enable() if on else gc.disable()),
    (os.getcwd, os.chdir),
    (_umask, os.umask),
    (lambda: dict(os.environ), _set_environment),
    _list(sys.path),  # its items; the list of attributes above restores which list is sys.path
    _list(warnings.filters),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
    ),
    (lambda: torch.is_autocast_enabled("cpu"), functools.partial(torch.set_autocast_enabled, "cpu")),
    (lambda: torch.get_autocast_dtype("cpu"), functools.partial(torch.set_autocast_dtype, "cpu")),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)


class SavedSettings:
    """The settings of SETTINGS as they are now. `put_back` restores those that have changed since."""

    def __init__(self) -> None:
        self.values = [read() for read, _ in SETTINGS]

    def put_back(self) -> None:
        """Restores each setting that differs from what it was."""
        for value, (read, put) in zip(self.values, SETTINGS, strict=True):
            try:
                now = read()
            except OSError:  # the current folder may be gone
                now = None
            if now != value:
                put(value)


# -- whether the process can be used again ---------------------------------------------------------------------------
# Modules and classes in which a learner may replace a function, such as torch.sum, and forget to restore it.
MODULES = (builtins, math, time, random, torch, torch.nn.functional, torch.autograd, dist, distributed_c10d)
CLASSES = (torch.Tensor, torch.Generator, torch.autograd.Function, dist.ReduceOp)
NN_CLASSES = (nn.Module, nn.Parameter, nn.Linear, nn.Sequential, nn.ReLU)  # likewise, those that models use
WATCHED = (*MODULES, *CLASSES, *NN_CLASSES)
# The dicts in which torch keeps the hooks that are registered for all modules, and a flag about them.
_HOOKS = [value for name, value in vars(nn.modules.module).items() if name.startswith("_global_") and "hook" in name]


def watch_functions(owners: Iterable[ModuleType | type]) -> Callable[[], Iterator[str]]:
    """Remember what can be called in modules and classes. The result names what stands for something else since.

    A module may get new names later, since torch imports parts of itself late; a class may not. All that the result
    needs is in its own variables, because a learner's code could replace what it would look up in a module.
    """
    is_of_library, file = is_library, file_of
    spaces = [(owner.__name__, vars(owner), set(vars(owner)), isinstance(owner, type)) for owner in owners]
    functions = [
        (owner, namespace, name, value, getattr(value, "__code__", None))
        for owner, namespace, *_ in spaces
        for name, value in namespace.items()
        # By its type: isinstance asks the value for its class, and torch's old `reduce_op` then warns.
        if callable(value) or type(value) in (property, staticmethod, classmethod)
    ]

    def replaced() -> Iterator[str]:
        for owner, namespace, names, is_class in spaces:
            if is_class:  # pickle and Python itself add names with underscores
                yield from (f"{owner}.{name}" for name in namespace if name not in names and not name.startswith("__"))
        for owner, namespace, name, value, code in functions:
            now = namespace.get(name)
            # torch itself wraps manual_seed when it imports its compiler.
            is_wrapped = getattr(now, "__wrapped__", None) is value and is_of_library(file(now))
            if (now is not value and not is_wrapped) or (code is not None and value.__code__ is not code):
                yield f"{owner}.{name}"

    return replaced


def file_of(function: Any) -> str:
    """The file in which a function is written; "" for a built-in one."""
    return getattr(getattr(function, "__code__", None), "co_filename", "")


@functools.cache
def _replaced_functions() -> Callable[[], Iterator[str]]:
    """What watches torch's and Python's functions since the first call, before any learner's code had run."""
    return watch_functions(WATCHED)


def _global_hooks_and_modes() -> tuple:
    """Hooks and modes of torch, limits and the process group: all that would affect whatever runs next."""
    hooks = [len(one) for one in _HOOKS if hasattr(one, "__len__")]  # how many are registered
    modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    # The hooks for tensors that autograd saves; False is torch's argument `ignore_is_tracing`.
    saved = torch._C._autograd._top_saved_tensors_default_hooks(False)
    limits = [resource.getrlimit(which) for which in LIMITS]
    group = dist.is_initialized() and id(dist.group.WORLD)  # False if there is no process group
    return hooks, modes, saved, limits, group


class ProcessSnapshot:
    """What `SavedSettings` does not restore, to find out afterwards whether it has changed."""

    def __init__(self) -> None:
        _replaced_functions()  # the first call remembers them
        self.hooks_and_modes, self.used_bytes = _global_hooks_and_modes(), used_bytes()

    def has_changed(self) -> bool:
        """Whether the process must be replaced; it may also keep too much memory, or too many process groups."""
        return (
            any(_replaced_functions()())
            or _global_hooks_and_modes() != self.hooks_and_modes
            or used_bytes() > self.used_bytes + MAX_KEPT_BYTES
            or len(distributed_c10d._world.pg_map) > MAX_GROUPS
        )


# -- what the function started ---------------------------------------------------------------------------------------
# Bytes that the rank's log may have. It is the process's standard output, to which C code writes past Python.
MAX_LOG = 1_000_000
THREAD_SECONDS = 0.2  # that all threads together get to end by themselves
ENGINE_THREADS = ("MainThread", "control", "wire ")  # how the names of the engine's own threads begin


@functools.cache
def adopt_orphans_once() -> None:
    """Make this process the parent of orphans among its descendants, so that `end_children` finds them.

    An orphan is a process whose parent has ended. The system does this for a process that asks to be a "subreaper".
    """
    become_subreaper()


def end_started() -> bool:
    """End the processes that the function started. Returns whether a thread is left, since no thread can be ended.

    Standard output of a rank is its log. It is emptied beyond MAX_LOG bytes, so that no answer fills the disk.
    """
    end_children()
    with contextlib.suppress(OSError):  # the function may have closed standard output, which is file 1
        if os.fstat(1).st_size > MAX_LOG:
            os.ftruncate(1, 0)
    deadline = time.monotonic() + THREAD_SECONDS
    for thread in foreign_threads():
        thread.join(max(0.0, deadline - time.monotonic()))
    return bool(foreign_threads())


def foreign_threads() -> list[threading.Thread]:
    """The threads that are neither the engine's nor torch's, which Python knows as dummies only."""
    threads = [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
    return [thread for thread in threads if not thread.name.startswith(ENGINE_THREADS)]


def end_children() -> None:
    """Kill all child processes, again until there is none, since one that ends may leave children of its own."""
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:  # there is a child, and it has not ended
                for child in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error):  # it may have ended just now
                        child.send_signal(signal.SIGKILL)
                os.waitpid(-1, 0)  # waits until one has ended; raises ChildProcessError when there is none
