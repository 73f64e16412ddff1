"""Refuses what a learner's function on a rank does outside its own folder: to files, processes and the network.

Python reports such actions as audit events. `violation` says in words which event breaks a rule, and `refuse_outside`
installs a hook that raises Refused where the learner's code, and not the engine or an import, caused the event. The
engine is the part of the course that runs in each rank and sends its messages. Where a whole class of learners is
graded, another guard uses those functions here that take a path or a frame. `words[…]` is a text in English and
Chinese.

An audit event has a name, such as "os.remove", and a tuple of arguments; Python's documentation lists them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helpers.learner.words import Words, book
from helpers.ranks.board.sites import is_engine, is_library
from helpers.ranks.processes.zygote import child_processes

words = book("walls")  # sentences about what was refused; limits.py uses them as well
ALLOWED_FILES = (os.devnull,)  # files outside the folder that may be written
# Flags of "open" of which any means that the file may be changed.
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events that change files. For each path that changes: the index of its argument, and of the argument with the folder
# that it is relative to, which may be missing.
PATH_ARGUMENTS = {
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
# Functions that open a file without an event.
OPENING_IN_C = ("torch.from_file", "torch.UntypedStorage.from_file", "torch.UntypedStorage._write_file")
OPENING_IN_C += ("torch.serialization._open_zipfile_writer_file.__init__",)  # of torch.save
# Events that start a process, look up a host, and send something over a socket.
START_EVENTS = ("os.fork", "os.forkpty", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen")
LOOKUP_EVENTS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
CONNECT_EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg")


# -- the rules -------------------------------------------------------------------------------------------------------
def violation(event: str, args: tuple, allowed: Sequence[str]) -> Words | None:
    """What an audit event does that is not allowed, to be read behind "it "; None if it is allowed.

    allowed: the folders and files that may be changed, as `os.path.realpath` gives them.
    """
    rule = RULES.get(event)
    return rule(event, args, allowed) if rule else None


def full_path(path: Any, folder: Any = None) -> str | None:
    """The absolute path that a path leads to, with links resolved; None for what is no path.

    folder: the file descriptor of the folder that the path is relative to, if there is one.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    path = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        path = os.path.join(f"/proc/self/fd/{folder}", path)  # Linux shows the folder of a descriptor there
    is_in_folder = path.startswith("/proc/self/fd/")  # then abspath would resolve ".." before the link is followed
    parent, name = os.path.split(path if is_in_folder else os.path.abspath(path))
    return os.path.join(os.path.realpath(parent), name)  # a link counts as lying in its folder, not where it leads


def is_below(full: str, roots: Sequence[str]) -> bool:
    """Whether a path is one of these files and folders or lies in one of them."""
    return any(full == root or full.startswith(root + os.sep) for root in roots)


# `_opens_for_writing`, `_changes`, `_connects` and `_signals` are rules: each has the arguments of `violation` and
# returns what it returns. "Outside" means that a path is in none of the `allowed` folders.
def _opens_for_writing(event: str, args: tuple, allowed: Sequence[str]) -> Words | None:
    """A file outside that is opened to write. args: path, mode, flags. Reading is allowed."""
    if not (isinstance(args[2], int) and args[2] & WRITE_FLAGS):
        return None
    full = full_path(args[0])
    return None if full is None else _outside(os.path.realpath(full), allowed)


def _changes(event: str, args: tuple, allowed: Sequence[str]) -> Words | None:
    """A file or folder outside that an event of PATH_ARGUMENTS would change."""
    return next((message for full in changed_paths(event, args) if (message := _outside(full, allowed))), None)


def changed_paths(event: str, args: tuple) -> Iterator[str]:
    """The files and folders that an event of PATH_ARGUMENTS would change."""
    for path_index, folder_index in PATH_ARGUMENTS[event]:
        folder = args[folder_index] if folder_index is not None and folder_index < len(args) else None
        if (full := full_path(args[path_index], folder)) is not None:
            yield full


def _outside(full: str, allowed: Sequence[str]) -> Words | None:
    """The sentence about changing this path; None if it is allowed."""
    return None if is_below(full, allowed) else words["changes"].format(os.path.basename(full) or full)


def _connects(event: str, args: tuple, allowed: Sequence[str]) -> Words | None:
    """A connection over the network. args: socket, address. An address that is no tuple is a path to another process on
    this machine, which is allowed."""
    return words["connects"].format(args[1][0]) if isinstance(args[1], tuple) else None


def _signals(event: str, args: tuple, allowed: Sequence[str]) -> Words | None:
    """A signal to a process that is neither this one nor started by it. Signal 0 asks whether it exists, no more."""
    pid, number = args[0], args[1]
    # 0 stands for the process group of this process.
    allowed_pids = {os.getpid(), 0} | ({os.getpgrp()} if event == "os.killpg" else child_processes())
    return None if number == 0 or pid in allowed_pids else words["ends"].format(pid)


# The rule of each event that may be refused. Where it is a lambda, the event is never allowed.
RULES: dict[str, Callable[[str, tuple, Sequence[str]], Words | None]] = {
    "open": _opens_for_writing,
    "os.kill": _signals,
    "os.killpg": _signals,
    **dict.fromkeys(PATH_ARGUMENTS, _changes),
    **dict.fromkeys(CONNECT_EVENTS, _connects),
    **dict.fromkeys(LOOKUP_EVENTS, lambda event, args, allowed: words["looks"].format(repr(args[0]))),
    **dict.fromkeys(START_EVENTS, lambda event, args, allowed: words["starts"]),
}


# -- who caused an event ---------------------------------------------------------------------------------------------
def is_import_system(frame: Any) -> bool:
    """Whether Python's import machinery runs in this frame."""
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


def is_engine_code(frame: Any) -> bool:
    """Whether the ranks' own engine caused an event, or the import of a module, and not the learner's code.

    The nearest frame outside the libraries decides. A thread with library frames only is not the engine's, so it counts
    as the learner's.
    """
    while frame is not None:
        path = frame.f_code.co_filename
        if is_import_system(frame) or is_engine(path):
            return True
        if not is_library(path):
            return False
        frame = frame.f_back
    return False


# -- the hook --------------------------------------------------------------------------------------------------------
_allowed: tuple[str, ...] | None = None  # what may be changed; None while nothing is refused
_is_installed = False  # whether this process has the hook


class Refused(RuntimeError):
    """Raised where code does what a check does not allow. words: what it does, to be read behind "it "."""

    def __init__(self, message: Words):
        super().__init__(message.en)
        self.words = message  # the ranks report an exception by its `words`, if it has some


@contextlib.contextmanager
def refuse_outside(folder: str) -> Iterator[None]:
    """Within it, this process works in `folder`, and what would change anything outside raises Refused on the spot.

    `install_once` must have been called before.
    """
    global _allowed
    os.chdir(folder)
    tempfile.tempdir, writes_no_bytecode = folder, sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # an import would write a file beside the module
    _allowed = (os.path.realpath(folder), *ALLOWED_FILES)
    try:
        yield
    finally:
        _allowed = tempfile.tempdir = None
        sys.dont_write_bytecode = writes_no_bytecode


def _audit(event: str, args: tuple) -> None:
    """The hook: Python calls it for every event, so it returns at once where no rule can apply."""
    if event not in RULES or _allowed is None:
        return
    message = violation(event, args, _allowed)
    if message is not None and not is_engine_code(sys._getframe(1)):
        raise Refused(message)


def install_once() -> None:
    """Add the hook, once in a process, since an audit hook cannot be taken away again."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_audit)
        report_files_opened_in_c()


def report_files_opened_in_c() -> None:
    """Make torch's functions that open a file in C++, which Python does not report, raise an "open" event as well."""
    for name in OPENING_IN_C:
        owner, attribute = pkgutil.resolve_name(name.rpartition(".")[0]), name.rpartition(".")[2]
        setattr(owner, attribute, _with_audit_event(getattr(owner, attribute)))


def _with_audit_event(original: Callable) -> Callable:
    """The function, which raises the event for the first text or path among its arguments."""

    @functools.wraps(original)
    def opening(*args: Any, **kwargs: Any) -> Any:
        for path in [one for one in (*args, *kwargs.values()) if isinstance(one, str | os.PathLike)][:1]:
            sys.audit("open", path, "wb", WRITE_FLAGS)
        return original(*args, **kwargs)

    return opening
