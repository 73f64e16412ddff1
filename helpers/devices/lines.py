"""Which line did it: the innermost one that is neither torch's nor the engine's."""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import FrameType

import torch

Frame = tuple[str, int, str]  # file name, line number, function name

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BELOW = tuple(os.path.join(_PACKAGE, *room) + os.sep for room in (("ranks",), ("devices",)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_REDIRECT = os.path.join(_PACKAGE, "rehearse", "redirect") + os.sep
_BETWEEN = ("contextlib.py", "typing_extensions.py", "functools.py")  # decorators on the way into torch
_one_asks = threading.RLock()
_inside: dict[str, bool] = {}  # file name -> whether it is torch's, the engine's, or between the two


def call_site() -> Frame:
    """File, line and function of the innermost frame outside torch and the engine; it names a culprit.

    On a thread of autograd's own there is none: then it is the line of the main thread, which waits for its backward.
    """
    return _outside(sys._getframe(1)) or _outside(main_frame()) or ("autograd's own thread", 0, "")


def main_frame() -> FrameType | None:
    """Where the main thread is.

    Python (3.11, issue 106883) makes the list of all frames while it holds the lock of its threads: a collection of
    garbage then that destroys a process group gives the interpreter to a thread that ends, which waits for that lock.
    """
    with _one_asks:
        return _current_frames().get(threading.main_thread().ident)


def _current_frames() -> dict[int, FrameType]:
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def _outside(frame: FrameType | None) -> Frame | None:
    """The innermost frame from here that is nobody's but the learner's."""
    while frame is not None:
        if not _is_inside(path := frame.f_code.co_filename):
            return path, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def is_torchs_own() -> bool:
    """Whether torch calls this for itself: an optimizer's copy, say. Modules only pass on what they are asked for."""
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
