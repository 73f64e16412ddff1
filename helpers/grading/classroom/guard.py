"""Inside the sandbox: refuse, while the learner's code runs, what the lab forbids, and note it down.

Frames of the learner are known by the names that their cells were compiled under ("cell average"). What is refused
raises NotAllowed there, so the task fails by itself. This is for the report; what protects the verdict is that the
judge is elsewhere.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

from helpers.grading.classroom.rules import forbidden
from helpers.grading.registry import lab_of

NOTES = "notes.txt"  # in the sandbox's folder: ranks add lines, the process that started them reads them
_PREFIX = "cell "
_installed: Guard | None = None


class NotAllowed(RuntimeError):
    """The lab does not allow this."""


class Guard:
    """lab: "03". folder: where notes go. private: path prefixes that the learner's code must not open."""

    def __init__(self, lab: str, folder: str, private: tuple[str, ...] = ()):
        self.lab, self.notes, self.private = lab, os.path.join(folder, NOTES), private
        self.own = (os.path.abspath(folder), "/dev", "/proc/self")
        self.busy = False
        self.rules: dict[str, Callable[[tuple], str | None]] = {
            "import": lambda args: None if is_in_passing() else forbidden(str(args[0]), self.lab),
            "open": self._opens,
            "os.remove": self._changes,
            "os.rmdir": self._changes,
            "os.rename": self._changes,
            "os.truncate": self._changes,
            "os.chmod": self._changes,
            "shutil.rmtree": self._changes,
            "socket.connect": self._connects,
            "socket.getaddrinfo": lambda args: f"looks for {args[0]!r} in the network",
            "os.system": lambda args: "starts a program",
            "os.posix_spawn": lambda args: "starts a program",
            "os.exec": lambda args: "starts a program",
            "os.fork": lambda args: "starts a process",
            "subprocess.Popen": lambda args: "starts a program",
            "sys._getframe": lambda args: "looks into the frames of its caller" if is_direct() else None,
            "gc.get_objects": lambda args: "looks into Python's memory" if is_direct() else None,
            "gc.get_referrers": lambda args: "looks into Python's memory" if is_direct() else None,
            "gc.get_referents": lambda args: "looks into Python's memory" if is_direct() else None,
        }

    def install(self) -> None:
        """For the rest of this process. An audit hook cannot be taken away again."""
        sys.addaudithook(self.audit)
        builtins.__import__ = self._watched(builtins.__import__)
        importlib.import_module = self._watched(importlib.import_module)
        self._refuse_torchs_own()

    def audit(self, event: str, args: tuple) -> None:
        rule = self.rules.get(event)
        if rule is None or self.busy:
            return
        self.busy = True
        try:
            why = rule(args) if is_learners() else None
            if why:
                self.refuse(why)
        finally:
            self.busy = False

    def refuse(self, why: str) -> None:
        self.busy = True
        try:
            with open(self.notes, "a", encoding="utf-8") as file:
                file.write(why.replace("\n", " ")[:300] + "\n")
        finally:
            self.busy = False
        raise NotAllowed(f"the lab does not allow this: it {why}")

    def _opens(self, args: tuple) -> str | None:
        full = _full(args[0])
        if full is None:
            return None
        if _is_below(full, self.private):
            return f"opens {os.path.basename(full)}, which is not its own"
        writes = args[2] & (os.O_WRONLY | os.O_RDWR) if isinstance(args[2], int) else 0
        return self._changes(args) if writes else None

    def _changes(self, args: tuple) -> str | None:
        full = _full(args[0])
        is_own = full is None or (_is_below(full, self.own) and not _is_below(full, self.private))
        return None if is_own else f"changes or deletes {os.path.basename(full) or full}, which is not its own"

    @staticmethod
    def _connects(args: tuple) -> str | None:
        return f"opens a network connection to {args[1][0]}" if isinstance(args[1], tuple) else None

    def _watched(self, original: Callable) -> Callable:
        """What is imported already raises no audit event, so the call itself is looked at."""

        @functools.wraps(original)  # so that pickle sends it by its name
        def watched(name: str, *args: Any, **kwargs: Any) -> Any:
            if is_from_learner(self._caller()):
                fromlist = (args[2] if len(args) > 2 else kwargs.get("fromlist")) or ()
                for full in (name, *(f"{name}.{part}" for part in fromlist)):
                    if why := forbidden(full, self.lab):
                        self.refuse(why)
            return original(name, *args, **kwargs)

        return watched

    def _caller(self) -> Any:
        """The frame that called the function that calls this; asking for it must not be taken for the learner's."""
        before, self.busy = self.busy, True
        try:
            return sys._getframe(2)
        finally:
            self.busy = before

    def _is_learners(self) -> bool:
        before, self.busy = self.busy, True
        try:
            return is_learners()
        finally:
            self.busy = before

    def _refuse_torchs_own(self) -> None:
        for name in lab_of(self.lab).refuses:
            kind = pkgutil.resolve_name(name)
            kind.__init__ = self._refusing(kind.__init__, f"uses torch's own {kind.__name__}, the answer to this lab")

    def _refusing(self, original: Callable, why: str) -> Callable:
        @functools.wraps(original)
        def refusing(*args: Any, **kwargs: Any) -> None:
            if self._is_learners():
                self.refuse(why)
            original(*args, **kwargs)

        return refusing


def install(lab: str, folder: str, private: tuple[str, ...] = ()) -> None:
    """Once in a process, on a rank or beside it."""
    global _installed
    if _installed is None:
        _installed = Guard(lab, folder, private)
        _installed.install()


def notes(folder: str) -> list[str]:
    """What was refused since the last call, without repetition."""
    path = os.path.join(folder, NOTES)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(20_000).splitlines()
        os.remove(path)
    except OSError:
        return []
    return list(dict.fromkeys(lines))[:10]


def _full(path: Any) -> str | None:
    return os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else None


def _is_below(full: str, roots: tuple[str, ...]) -> bool:
    return any(full == root or full.startswith(root + os.sep) for root in roots)


def is_from_learner(frame: Any) -> bool:
    return frame.f_code.co_filename.startswith(_PREFIX)


def is_learners() -> bool:
    """Whether a frame of the learner's stands above this one."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_from_learner(frame):
            return True
        frame = frame.f_back
    return False


def is_direct() -> bool:
    """Whether the learner's own line asked, or `inspect` on its behalf, and not a library in passing."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, importlib.__file__, _INSPECT):
        frame = frame.f_back
    return frame is not None and is_from_learner(frame)


def is_in_passing() -> bool:
    """Whether a module of an installed library imports something for itself, while it is imported: torch does so late.

    The import system must have run that module: `exec` of a text with a library's file name is no import.
    """
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or _is_import_system(frame)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "<module>" or not _is_import_system(frame.f_back):
        return False
    return _is_below(os.path.abspath(frame.f_code.co_filename), _LIBRARIES)


def _is_import_system(frame: Any) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_INSPECT = os.path.join(os.path.dirname(os.__file__), "inspect.py")
