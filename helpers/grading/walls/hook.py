"""Refuses, while a learner's function runs, what reaches out of its room."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from torch import serialization

from helpers.grading.walls import deeds
from helpers.learner.words import Words

ALWAYS = (os.devnull,)
EVENTS = frozenset(deeds.RULES)
_own: tuple[str, ...] | None = None  # while the wall is up
_is_installed = False


class Refused(RuntimeError):
    """A check does not let code do this. words: what it does, as in "it ..."."""

    def __init__(self, words: Words):
        super().__init__(words.en)
        self.words = words


@contextlib.contextmanager
def up(room: str) -> Iterator[None]:
    """Within, this process works in `room`, and what is done outside it raises Refused where it is done."""
    global _own
    _install()
    os.chdir(room)
    tempfile.tempdir, dont_write = room, sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # what an import would write beside a module
    _own = (os.path.realpath(room), *ALWAYS)
    try:
        yield
    finally:
        _own = tempfile.tempdir = None
        sys.dont_write_bytecode = dont_write


def _audit(event: str, args: tuple) -> None:
    if event not in EVENTS or _own is None:
        return
    words = deeds.violation(event, args, _own)
    if words is not None and not deeds.is_engine_code(sys._getframe(1)):
        raise Refused(words)


def _install() -> None:
    """Once in a process: an audit hook cannot be taken away again."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_audit)
        writer = serialization._open_zipfile_writer_file
        writer.__init__ = _audited(writer.__init__)


def _audited(original: Callable) -> Callable:
    """torch.save opens its file in C++, of which Python hears nothing."""

    @functools.wraps(original)
    def opening(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        sys.audit("open", name, "wb", deeds.WRITE_FLAGS)
        original(self, name, *args, **kwargs)

    return opening
