"""Notes, inside the sandbox, what the learner's code does at run time that honest answers do not do, with its line.

Python's audit hooks (sys.addaudithook) and a few wrapped functions report imports, files, network, processes and looks
into memory. A stack frame belongs to the learner if its code was compiled under the file name of a cell, such as
"cell average". The guard writes a note and lets the code go on: the verdict does not depend on the notes, and it is the
sandbox that keeps the code from doing harm. Only two things raise NotAllowed:

- forks without end, which would be faster than the thread outside the sandbox that counts processes now and then;
- at the isolation level "plain", which does not protect files: changing files of others, and starting programs.

A note is a line of JSON, {"location": "cell average, line 4", "reason": {"en": …, "zh": …}}. `words` holds the reasons
(Words, a sentence in every language) and `why_forbidden(name, lab)` is such a sentence if no answer may use the module.
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
from helpers.classroom.allowed import why_forbidden, words
from helpers.grading.registry import lab_of
from helpers.grading.safeguards.audit_rules import full_path, is_below, is_import_system
from helpers.learner.words import Words

NOTES_FILE = "notes.txt"  # in the sandbox's folder; ranks append lines, the sandbox worker reads them
MAX_FORKS = 4  # of one process; those beyond are stopped
MAX_NOTES, MAX_NOTES_CHARACTERS = 20, 50_000  # that are read at a time
MAX_REASON = 300  # characters of the reason in a note, which may quote the learner
_CELL_PREFIX = "cell "  # of the file names of a learner's cells
_installed: Guard | None = None  # the guard of this process


class NotAllowed(RuntimeError):
    """Raised for what would harm the grader's machine."""


class Guard:
    """The guard of one process.

    lab: "03". folder: where notes go. private: prefixes of paths that the learner's code must not open.
    isolation_level: of the sandbox around the process: "namespaces", "uid" or "plain".
    rules: audit event -> function of the event's arguments, which returns the reason for a note, or None.
    is_busy: the guard itself causes events now, which it must not note. forks: how many forks there were.
    """

    def __init__(self, lab: str, folder: str, private: tuple[str, ...] = (), isolation_level: str = "plain"):
        self.lab, self.notes = lab, os.path.join(folder, NOTES_FILE)
        self.private = tuple(map(os.path.realpath, private))
        self.has_file_isolation = isolation_level != "plain"
        self.writable = (os.path.realpath(folder), "/dev", "/proc/self")  # what honest code may change
        self.is_busy, self.forks = False, 0
        memory = lambda args: words["memory"].format("gc") if is_direct() else None  # noqa: E731
        # The names of the events are those of Python's audit event table.
        self.rules: dict[str, Callable[[tuple], Words | None]] = {
            "import": lambda args: None if is_import_by_library() else why_forbidden(str(args[0]), self.lab),
            "open": self._rule_open,
            "socket.connect": self._rule_connect,
            "socket.getaddrinfo": lambda args: words["resolves"].format(args[0]),  # args[0]: the name of a host
            "os.fork": self._rule_fork,
            "sys._getframe": lambda args: words["frames"].format("sys._getframe") if is_direct() else None,
        }
        self.rules |= dict.fromkeys(("gc.get_objects", "gc.get_referrers", "gc.get_referents"), memory)
        self.rules |= dict.fromkeys(("os.system", "os.posix_spawn", "os.exec", "subprocess.Popen"), self._rule_start)
        changing = ("os.remove", "os.rmdir", "os.rename", "os.truncate", "os.chmod", "shutil.rmtree")
        self.rules |= dict.fromkeys(changing, self._rule_change)

    def install(self) -> None:
        """Watch the process from now on; an audit hook cannot be removed again."""
        sys.addaudithook(self.audit)
        builtins.__import__ = self._watched_import(builtins.__import__)
        importlib.import_module = self._watched_import(importlib.import_module)
        self._watch_torch_classes()

    def audit(self, event: str, args: tuple) -> None:
        """The audit hook: note what the rule for this event says, if the learner's code caused it."""
        rule = self.rules.get(event)
        if rule is None or self.is_busy:
            return
        self.is_busy = True
        try:
            if frame_of_learner() is not None and (why := rule(args)):
                self.note(why)
        finally:
            self.is_busy = False

    def note(self, why: Words) -> None:
        """Write a note with the line of the learner's code that runs now."""
        before, self.is_busy = self.is_busy, True
        try:
            frame = frame_of_learner()
            location = f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame is not None else ""
            reason = asdict(why.map(lambda text: text[:MAX_REASON]))  # language -> text
            line = json.dumps({"location": location, "reason": reason}, ensure_ascii=False)
            with open(self.notes, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        finally:
            self.is_busy = before

    def stop(self, why: Words) -> None:
        """Write a note and raise NotAllowed."""
        self.note(why)
        raise NotAllowed(f"the grader's machine is kept from this: {why.en}")

    # -- rules: a sentence about the event, or None if it is harmless ------------------------------------------------
    # args: the arguments of the audit event, as Python documents them, for "open" the path, the mode and the flags.
    def _rule_open(self, args: tuple) -> Words | None:
        full = full_path(args[0])  # None for a file descriptor, which was opened before
        if full is None:
            return None
        if is_below(full, self.private):
            return words["files_private"].format(os.path.basename(full))
        is_writing = args[2] & (os.O_WRONLY | os.O_RDWR) if isinstance(args[2], int) else 0
        return self._rule_change(args) if is_writing else None

    def _rule_change(self, args: tuple) -> Words | None:
        """A change of a file outside of the sandbox's own folder. Where files are not isolated, it is stopped."""
        full = full_path(args[0])
        if full is None or (is_below(full, self.writable) and not is_below(full, self.private)):
            return None
        why = words["files_changed"].format(os.path.basename(full) or full)
        return why if self.has_file_isolation else self.stop(why)

    def _rule_start(self, args: tuple) -> Words | None:
        """The start of a program. Where files are not isolated, it is stopped, since the program has no guard."""
        why = words["starts"].format(str(args[0])[:60])
        return why if self.has_file_isolation else self.stop(why)

    def _rule_fork(self, args: tuple) -> Words | None:
        self.forks += 1
        why = words["starts"].format("os.fork")
        return why if self.forks <= MAX_FORKS else self.stop(why)

    @staticmethod
    def _rule_connect(args: tuple) -> Words | None:
        """A connection to an address (host, port). A local socket, whose address is a path, is harmless."""
        return words["connects"].format(args[1][0]) if isinstance(args[1], tuple) else None

    def _watched_import(self, original: Callable) -> Callable:
        """`original`, which imports a module, with a note if the learner's code calls it and may not have the module.

        The audit event "import" does not occur for a module that is loaded already, so these functions are wrapped too.
        """

        @functools.wraps(original)  # pickle then sends it by its name
        def import_watched(name: str, *args: Any, **kwargs: Any) -> Any:
            if self._is_by_learner(self._caller()):
                # __import__(name, globals, locals, fromlist, level); import_module has no fromlist.
                fromlist = (args[2] if len(args) > 2 else kwargs.get("fromlist")) or ()
                for full in (name, *(f"{name}.{part}" for part in fromlist)):
                    if why := why_forbidden(full, self.lab):
                        self.note(why)
            return original(name, *args, **kwargs)

        return import_watched

    def _caller(self) -> Any:
        """The frame that called the caller of this method.

        The guard is busy meanwhile, because asking for a frame is itself an audit event.
        """
        before, self.is_busy = self.is_busy, True
        try:
            return sys._getframe(2)
        finally:
            self.is_busy = before

    def _is_by_learner(self, frame: Any) -> bool:
        """Whether the learner's code is behind a call from `frame`, directly or through a text that it runs with exec.

        If `frame` runs a library, the library calls for a reason of its own. With None instead of a frame, it is enough
        that some frame further up the stack is the learner's, also where a library stands between.
        """
        before, self.is_busy = self.is_busy, True
        try:
            return (frame is None or not is_library_frame(frame)) and frame_of_learner() is not None
        finally:
            self.is_busy = before

    def _watch_torch_classes(self) -> None:
        """Note each instance of a class of torch that the lab forbids, such as torch's own DistributedDataParallel."""
        for name in lab_of(self.lab).forbids_instances:
            forbidden = pkgutil.resolve_name(name)
            forbidden.__init__ = self._noting_init(forbidden.__init__, words["torchs_own"].format(name))

    def _noting_init(self, original: Callable, why: Words) -> Callable:
        """The `__init__` of a class, with a note if the learner's code makes the instance."""

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> None:
            if self._is_by_learner(None):  # None: also if a library makes the instance for the learner
                self.note(why)
            original(*args, **kwargs)

        return noting


def install(lab: str, folder: str, private: tuple[str, ...] = (), isolation_level: str = "plain") -> None:
    """Install the guard in this process, a rank's or the worker's, unless it is there already."""
    global _installed
    if _installed is None:
        _installed = Guard(lab, folder, private, isolation_level)
        _installed.install()


def read_notes(folder: str) -> list[dict]:
    """The notes since the last call, each once: "location", and "reason" in every language.

    The learner's code can write into the file, too, so only its beginning is read.
    """
    path = os.path.join(folder, NOTES_FILE)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(MAX_NOTES_CHARACTERS).splitlines()
        os.remove(path)
    except OSError:
        return []
    found = []
    for line in list(dict.fromkeys(lines))[:MAX_NOTES]:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def is_from_learner(frame: Any) -> bool:
    """Whether a frame runs a line of the learner's cells."""
    return frame.f_code.co_filename.startswith(_CELL_PREFIX)


def frame_of_learner() -> Any:
    """The nearest frame of the learner's above this one; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None and not is_from_learner(frame):
        frame = frame.f_back
    return frame


def is_direct() -> bool:
    """Whether the learner's own line causes the event, and not a library for itself.

    The line may do so directly or through the modules `inspect` and `importlib`, which only act for their caller.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, importlib.__file__, _INSPECT):
        frame = frame.f_back
    return frame is not None and is_from_learner(frame)


def is_import_by_library() -> bool:
    """Whether a library's module imports something while it is imported itself.

    torch imports some of its modules late, when the learner's code is on the stack already. The import system must be
    running that module, because a learner could `exec` a text under a library's file name, which is no import.
    """
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or is_import_system(frame)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "<module>" or not is_import_system(frame.f_back):
        return False
    return _is_installed(frame.f_code.co_filename)


def is_library_frame(frame: Any) -> bool:
    """Whether a frame runs a function of an installed library, or a library's module while it is imported."""
    code = frame.f_code
    return _is_installed(code.co_filename) and (code.co_name != "<module>" or is_import_system(frame.f_back))


@functools.cache
def _is_installed(file: str) -> bool:
    return file.startswith("<frozen ") or is_below(os.path.abspath(file), _LIBRARIES)


# Folders of Python's own modules, of installed packages and of this course.
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES += (os.path.dirname(helpers.__file__),)
_INSPECT = os.path.join(os.path.dirname(os.__file__), "inspect.py")
