"""Finds the line of code that made a call: the innermost frame that belongs neither to torch nor to the engine.

The engine is this course's code that runs ranks (helpers/ranks) and simulates devices (helpers/devices). It notes that
line with every operation of torch.distributed and of a practice card, which is a simulated GPU. It calls `call_site`
very often, so that function must be fast. `main_stack` lists where the main thread is, and `is_called_by_torch` says
whether torch itself makes a call.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, methodcaller
from types import FrameType

import torch

Frame = tuple[str, int, str]  # file name, line number, function name

# Folders, each with a separator at its end so that it is a prefix of the paths of its files.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ENGINE = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("ranks", "devices"))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_REDIRECT = os.path.join(_PACKAGE, "commands", "rehearse", "redirect") + os.sep  # lets scripts for CUDA use cards
_BETWEEN = ("contextlib.py", "typing_extensions.py", "functools.py")  # decorators on the way into torch
# A frame -> (file name, present line or None, first line of its function, name of its function).
_PLACE = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_firstlineno", "f_code.co_name")
_one_asks = threading.RLock()  # held while a thread reads the main thread's frames with the garbage collector off
_inside: dict[str, bool] = {}  # file name -> whether it is torch's, the engine's, or between the two


def call_site() -> Frame:
    """File, line and function of the innermost frame outside torch and the engine.

    A thread of autograd's own has no such frame. Then it is the line of the main thread, which waits for its backward.
    """
    return _outside(sys._getframe(1)) or _outside_of_main() or ("autograd's own thread", 0, "")


def main_stack() -> list[Frame]:
    """Where the main thread is, outermost call first."""
    with _one_asks:
        found = without_gc(map(_PLACE, frames_of(threading.main_thread().ident)))
    return [(path, line or first, name) for path, line, first, name in reversed(found)]


def frames_of(thread: int) -> Iterator[FrameType]:
    """The frames of a thread, from its innermost call outwards, as an iterator that does nothing until it is used.

    It is made of functions in C alone, because `without_gc` must run it without executing any Python code.
    """
    # sys._current_frames()[thread], then its f_back, and so on until that is None.
    innermost = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))


def without_gc(lazy: Iterable) -> list:
    """list(lazy), while no other Python code runs and nothing is garbage-collected. lazy: an iterator over frames.

    `list` is one call into C, during which no other thread runs Python code. That matters because a frame that is
    referenced while its thread returns from it keeps its variables alive, which would then be destroyed in this thread.

    The garbage collector is turned off because it could cause a deadlock in Python 3.11 (CPython's issue 106883):
    sys._current_frames holds a lock of the interpreter's threads, and a garbage collection inside it may destroy a
    process group. That waits for another thread to end, and the end of a thread needs the same lock.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(lazy)
    finally:
        if was_enabled:
            gc.enable()


def is_gc_enabled() -> bool:
    """gc.isenabled(), after a `main_stack` in another thread that has turned the collector off for a moment.

    The grader asks it, to restore afterwards what a learner's code has changed.
    """
    with _one_asks:
        return gc.isenabled()


def _outside(frame: FrameType | None) -> Frame | None:
    """The first frame, from this one outwards, that belongs neither to torch nor to the engine, or None."""
    while frame is not None:
        if not _is_inside(path := frame.f_code.co_filename):
            return path, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def _outside_of_main() -> Frame | None:
    """The same for the main thread."""
    return next((place for place in reversed(main_stack()) if not _is_inside(place[0])), None)


def is_called_by_torch() -> bool:
    """Whether torch makes this call for itself, for example in an optimizer.

    Frames of torch.nn.modules do not count, since a module's forward only passes on the learner's call.
    """
    frame = sys._getframe(1)
    while frame is not None and _is_inside(path := frame.f_code.co_filename):
        if path.startswith(_TORCH) and not path.startswith(_MODULES):
            return True
        frame = frame.f_back
    return False


def _is_inside(path: str) -> bool:
    """Whether a file is torch's, the engine's, or one through which calls pass on the way into torch."""
    if path not in _inside:
        own = path.startswith((_TORCH, "<frozen", *_ENGINE, _REDIRECT))
        _inside[path] = own or os.path.basename(path) in _BETWEEN
    return _inside[path]
