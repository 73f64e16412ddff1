"""Inside the sandbox: note, while the learner's code runs, what honest answers do not do, with the learner's line.

Frames of the learner are known by the names that their cells were compiled under ("cell average"). What is noted goes
on: it is for the teacher to read, and neither the verdict nor the wall depends on it. The wall is the boundary of the
process. Two things are stopped here, with NotAllowed: forks without end, which would outrun the count of processes; and
on the rung "plain", which has no wall around files, changing files that are not its own and starting programs.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import helpers
from helpers.classroom.allowed import SAYS, forbidden
from helpers.grading.registry import lab_of
from helpers.grading.safeguards.audit_rules import full_path, is_below, is_import_system
from helpers.learner.words import Words

NOTES = "notes.txt"  # in the sandbox's folder: ranks add lines, the process that started them reads them
MOST_FORKS = 4  # one after the other; each child may go on from where it stands
_PREFIX = "cell "
_installed: Guard | None = None


class NotAllowed(RuntimeError):
    """The machine must be kept from this."""


class Guard:
    """lab: "03". folder: where notes go. private: path prefixes that the learner's code must not open. rung: of the
    sandbox around it."""

    def __init__(self, lab: str, folder: str, private: tuple[str, ...] = (), rung: str = "plain"):
        self.lab, self.notes = lab, os.path.join(folder, NOTES)
        self.private = tuple(map(os.path.realpath, private))
        self.has_wall = rung != "plain"
        self.own = (os.path.realpath(folder), "/dev", "/proc/self")
        self.busy, self.forks = False, 0
        memory = lambda args: SAYS["memory"].format("gc") if is_direct() else None  # noqa: E731
        self.rules: dict[str, Callable[[tuple], Words | None]] = {
            "import": lambda args: None if is_in_passing() else forbidden(str(args[0]), self.lab),
            "open": self._opens,
            "socket.connect": self._connects,
            "socket.getaddrinfo": lambda args: SAYS["resolves"].format(args[0]),
            "os.fork": self._forks,
            "sys._getframe": lambda args: SAYS["frames"].format("sys._getframe") if is_direct() else None,
        }
        self.rules |= dict.fromkeys(("gc.get_objects", "gc.get_referrers", "gc.get_referents"), memory)
        self.rules |= dict.fromkeys(("os.system", "os.posix_spawn", "os.exec", "subprocess.Popen"), self._starts)
        changing = ("os.remove", "os.rmdir", "os.rename", "os.truncate", "os.chmod", "shutil.rmtree")
        self.rules |= dict.fromkeys(changing, self._changes)

    def install(self) -> None:
        """For the rest of this process. An audit hook cannot be taken away again."""
        sys.addaudithook(self.audit)
        builtins.__import__ = self._watched(builtins.__import__)
        importlib.import_module = self._watched(importlib.import_module)
        self._watch_torchs_own()

    def audit(self, event: str, args: tuple) -> None:
        rule = self.rules.get(event)
        if rule is None or self.busy:
            return
        self.busy = True
        try:
            if frame_of_learner() is not None and (why := rule(args)):
                self.note(why)
        finally:
            self.busy = False

    def note(self, why: Words) -> None:
        """Beside the line of the learner's that asked for it."""
        before, self.busy = self.busy, True
        try:
            frame = frame_of_learner()
            place = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame is not None else ""
            line = json.dumps({"place": place, "says": asdict(why.map(lambda text: text[:300]))}, ensure_ascii=False)
            with open(self.notes, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        finally:
            self.busy = before

    def stop(self, why: Words) -> None:
        self.note(why)
        raise NotAllowed(f"the grader's machine is kept from this: {why.en}")

    # -- what is asked for -----------------------------------------------------------------------------------------
    def _opens(self, args: tuple) -> Words | None:
        full = full_path(args[0])
        if full is None:
            return None
        if is_below(full, self.private):
            return SAYS["files_private"].format(os.path.basename(full))
        writes = args[2] & (os.O_WRONLY | os.O_RDWR) if isinstance(args[2], int) else 0
        return self._changes(args) if writes else None

    def _changes(self, args: tuple) -> Words | None:
        full = full_path(args[0])
        if full is None or (is_below(full, self.own) and not is_below(full, self.private)):
            return None
        why = SAYS["files_changed"].format(os.path.basename(full) or full)
        return why if self.has_wall else self.stop(why)

    def _starts(self, args: tuple) -> Words | None:
        why = SAYS["starts"].format(str(args[0])[:60])
        return why if self.has_wall else self.stop(why)

    def _forks(self, args: tuple) -> Words | None:
        self.forks += 1
        why = SAYS["starts"].format("os.fork")
        return why if self.forks <= MOST_FORKS else self.stop(why)

    @staticmethod
    def _connects(args: tuple) -> Words | None:
        return SAYS["connects"].format(args[1][0]) if isinstance(args[1], tuple) else None

    def _watched(self, original: Callable) -> Callable:
        """What is imported already raises no audit event, so the call itself is looked at."""

        @functools.wraps(original)  # so that pickle sends it by its name
        def watched(name: str, *args: Any, **kwargs: Any) -> Any:
            if self._is_learners(self._caller()):
                fromlist = (args[2] if len(args) > 2 else kwargs.get("fromlist")) or ()
                for full in (name, *(f"{name}.{part}" for part in fromlist)):
                    if why := forbidden(full, self.lab):
                        self.note(why)
            return original(name, *args, **kwargs)

        return watched

    def _caller(self) -> Any:
        """The frame that called the function that calls this; asking for it must not be taken for the learner's."""
        before, self.busy = self.busy, True
        try:
            return sys._getframe(2)
        finally:
            self.busy = before

    def _is_learners(self, frame: Any) -> bool:
        """Whether the learner asked, by the line of `frame` or by a text that it runs; None: by whatever way."""
        before, self.busy = self.busy, True
        try:
            return (frame is None or not is_librarys(frame)) and frame_of_learner() is not None
        finally:
            self.busy = before

    def _watch_torchs_own(self) -> None:
        for name in lab_of(self.lab).forbids_instances:
            kind = pkgutil.resolve_name(name)
            kind.__init__ = self._noting(kind.__init__, SAYS["torchs_own"].format(name))

    def _noting(self, original: Callable, why: Words) -> Callable:
        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> None:
            if self._is_learners(None):
                self.note(why)
            original(*args, **kwargs)

        return noting


def install(lab: str, folder: str, private: tuple[str, ...] = (), rung: str = "plain") -> None:
    """Once in a process, on a rank or beside it."""
    global _installed
    if _installed is None:
        _installed = Guard(lab, folder, private, rung)
        _installed.install()


def notes(folder: str) -> list[dict]:
    """What was noted since the last call, without repetition: "place" and "says", in every language."""
    path = os.path.join(folder, NOTES)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(50_000).splitlines()
        os.remove(path)
    except OSError:
        return []
    found = []
    for line in list(dict.fromkeys(lines))[:20]:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def is_from_learner(frame: Any) -> bool:
    return frame.f_code.co_filename.startswith(_PREFIX)


def frame_of_learner() -> Any:
    """The nearest frame of the learner's above this one, if there is any."""
    frame = sys._getframe(1)
    while frame is not None and not is_from_learner(frame):
        frame = frame.f_back
    return frame


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
    while frame is not None and (frame.f_code.co_filename == __file__ or is_import_system(frame)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "<module>" or not is_import_system(frame.f_back):
        return False
    return _is_installed(frame.f_code.co_filename)


def is_librarys(frame: Any) -> bool:
    """Whether a function of an installed library runs there, or its module while it is imported."""
    code = frame.f_code
    return _is_installed(code.co_filename) and (code.co_name != "<module>" or is_import_system(frame.f_back))


@functools.cache
def _is_installed(file: str) -> bool:
    return file.startswith("<frozen ") or is_below(os.path.abspath(file), _LIBRARIES)


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES += (os.path.dirname(helpers.__file__),)
_INSPECT = os.path.join(os.path.dirname(os.__file__), "inspect.py")
