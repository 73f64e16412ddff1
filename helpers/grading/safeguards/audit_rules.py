"""Refuses, while a learner's function runs on a rank, what reaches outside its own folder: files, processes, the network.

Python reports such deeds as audit events. `violation` says in words which event breaks a rule; `refuse_outside` installs
a hook that raises Refused where the learner's code, and not the engine or an import, caused the event. Class grading
uses the functions on paths and frames.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import serialization

from helpers.learner.words import Words, book
from helpers.ranks.sites import is_engine, is_library
from helpers.ranks.zygote import own_children

words = book("walls")
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATH_ARGUMENTS = {  # event -> the places of its paths, and of the folders that those are relative to
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.mkdir": ((0, 2),),
    "os.utime": ((0, 3),),
    "shutil.rmtree": ((0, 1),),
}
START_EVENTS = ("os.fork", "os.forkpty", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen")
LOOKUP_EVENTS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
CONNECT_EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg")


def violation(event: str, args: tuple, own: Sequence[str]) -> Words | None:
    """What is done, as in "it ...", if it reaches beyond `own`: folders and files, as `os.path.realpath` gives them."""
    rule = RULES.get(event)
    return rule(event, args, own) if rule else None


def full_path(path: Any, folder: Any = None) -> str | None:
    """Where a path leads. folder: the descriptor that it is relative to, if it is. None for what is no path."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    path = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        path = os.path.join(f"/proc/self/fd/{folder}", path)
    place, name = os.path.split(os.path.abspath(path) if not path.startswith("/proc/self/fd/") else path)
    return os.path.join(os.path.realpath(place), name)  # a link itself is where it lies, not where it leads


def is_below(full: str, roots: Sequence[str]) -> bool:
    return any(full == root or full.startswith(root + os.sep) for root in roots)


def _opens(event: str, args: tuple, own: Sequence[str]) -> Words | None:
    if not (isinstance(args[2], int) and args[2] & WRITE_FLAGS):
        return None
    full = full_path(args[0])
    return None if full is None else _outside(os.path.realpath(full), own)


def _changes(event: str, args: tuple, own: Sequence[str]) -> Words | None:
    for place, folder in PATH_ARGUMENTS[event]:
        base = args[folder] if folder is not None and folder < len(args) else None
        full = full_path(args[place], base)
        if full is not None and (message := _outside(full, own)):
            return message
    return None


def _outside(full: str, own: Sequence[str]) -> Words | None:
    return None if is_below(full, own) else words["changes"].format(os.path.basename(full) or full)


def _connects(event: str, args: tuple, own: Sequence[str]) -> Words | None:
    """To another process by a path is no network."""
    return words["connects"].format(args[1][0]) if isinstance(args[1], tuple) else None


def _ends(event: str, args: tuple, own: Sequence[str]) -> Words | None:
    """A signal to oneself, to one's group or to what one has started is one's own affair; 0 asks and sends nothing."""
    pid, number = args[0], args[1]
    mine = {os.getpid(), 0} | ({os.getpgrp()} if event == "os.killpg" else own_children())
    return None if number == 0 or pid in mine else words["ends"].format(pid)


RULES: dict[str, Callable[[str, tuple, Sequence[str]], Words | None]] = {
    "open": _opens,
    "os.kill": _ends,
    "os.killpg": _ends,
    **dict.fromkeys(PATH_ARGUMENTS, _changes),
    **dict.fromkeys(CONNECT_EVENTS, _connects),
    **dict.fromkeys(LOOKUP_EVENTS, lambda event, args, own: words["looks"].format(repr(args[0]))),
    **dict.fromkeys(START_EVENTS, lambda event, args, own: words["starts"]),
}


# -- who does it -----------------------------------------------------------------------------------------------------
def is_import_system(frame: Any) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


def is_engine_code(frame: Any) -> bool:
    """Whether the ranks' own machinery does it, or a module while it is imported: the nearest frame that is no
    library's says so. A thread that is all library was started by somebody else."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_import_system(frame) or is_engine(path):
            return True
        if not is_library(path):
            return False
        frame = frame.f_back
    return False


ALWAYS = (os.devnull,)
EVENTS = frozenset(RULES)
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
    words = violation(event, args, _own)
    if words is not None and not is_engine_code(sys._getframe(1)):
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
        sys.audit("open", name, "wb", WRITE_FLAGS)
        original(self, name, *args, **kwargs)

    return opening
