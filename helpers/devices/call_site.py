"""Finds the line of code that made a call: the innermost frame that belongs neither to torch nor to the engine.

The wire and the practice cards note it with every operation. It also lists where the main thread is.
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

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BELOW = tuple(os.path.join(_PACKAGE, *room) + os.sep for room in (("ranks",), ("devices",)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_REDIRECT = os.path.join(_PACKAGE, "commands", "rehearse", "redirect") + os.sep
_BETWEEN = ("contextlib.py", "typing_extensions.py", "functools.py")  # decorators on the way into torch
_PLACE = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_firstlineno", "f_code.co_name")
_one_asks = threading.RLock()
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
    """The frames of a thread, from its innermost call outwards. No frame is read before the first is taken."""
    innermost = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))


def without_gc(lazy: Iterable) -> list:
    """List frames in one call of C, within which no other thread runs.

    Whoever holds a frame while its thread returns from it also holds the frame's variables: they would live on, and be
    destroyed here. Garbage is not collected either. Python 3.11 (issue 106883) lists all frames while it holds the lock
    of its threads, and a process group that is destroyed meanwhile gives the interpreter to a thread that ends, which
    waits for that lock.
    """
    is_gc_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(lazy)
    finally:
        if is_gc_enabled:
            gc.enable()


def is_gc_enabled() -> bool:
    """What gc.isenabled() returns, apart from a look at the main thread that happens just now."""
    with _one_asks:
        return gc.isenabled()


def _outside(frame: FrameType | None) -> Frame | None:
    """The innermost frame from here that is nobody's but the learner's."""
    while frame is not None:
        if not _is_inside(path := frame.f_code.co_filename):
            return path, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def _outside_of_main() -> Frame | None:
    return next((place for place in reversed(main_stack()) if not _is_inside(place[0])), None)


def is_called_by_torch() -> bool:
    """Whether torch makes this call for itself, for example in an optimizer.

    Modules only pass on what they are asked for, so their frames do not count.
    """
    frame = sys._getframe(1)
    while frame is not None and _is_inside(path := frame.f_code.co_filename):
        if path.startswith(_TORCH) and not path.startswith(_MODULES):
            return True
        frame = frame.f_back
    return False


def _is_inside(path: str) -> bool:
    if path not in _inside:
        own = path.startswith((_TORCH, "<frozen", *_BELOW, _REDIRECT))
        _inside[path] = own or os.path.basename(path) in _BETWEEN
    return _inside[path]
