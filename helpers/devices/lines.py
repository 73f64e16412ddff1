"""Which line did it: the innermost one that is neither torch's nor the engine's."""

from __future__ import annotations

import os
import sys

import torch

Frame = tuple[str, int, str]  # file name, line number, function name

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BELOW = tuple(os.path.join(_PACKAGE, *room) + os.sep for room in (("ranks",), ("devices",)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_REDIRECT = os.path.join(_PACKAGE, "rehearse", "redirect") + os.sep
_BETWEEN = ("contextlib.py", "typing_extensions.py", "functools.py")  # decorators on the way into torch
_inside: dict[str, bool] = {}  # file name -> whether it is torch's, the engine's, or between the two


def call_site() -> Frame:
    """File, line and function of the innermost frame outside torch and the engine; it names a culprit."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path not in _inside:
            own = path.startswith((_TORCH, "<frozen", *_BELOW, _REDIRECT))
            _inside[path] = own or os.path.basename(path) in _BETWEEN
        if not _inside[path]:
            return path, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return "autograd's own thread", 0, ""
