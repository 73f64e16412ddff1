"""Notes, inside the sandbox, what the learner's code does at run time that honest answers do not do, with its line.

Python's audit hooks (sys.addaudithook) and a few wrapped functions report imports, files, network, processes and looks
into memory. A stack frame belongs to the learner if its code was compiled under the file name of a cell, such as
"cell average". The guard writes a note and lets the code go on: the verdict does not depend on the notes, and it is the
sandbox that keeps the code from doing harm. Only three things raise NotAllowed:

- forks without end, which would be faster than the thread outside the sandbox that counts processes now and then;
- touching the file of the notes, from which a note could be deleted;
- at the isolation level "plain", which does not protect files: changing files of others, and starting programs.

A note is a line of JSON, {"location": "cell average, line 4", "reason": {"en": …, "zh": …}}. `words` holds the reasons
(Words, a sentence in every language) and `why_forbidden(name, lab)` is such a sentence if no answer may use the module.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import helpers
from helpers.classroom.allowed import NAME_LISTS, NOTED_EVENTS, is_within, why_forbidden, words
from helpers.grading.registry import lab_of
from helpers.grading.safeguards import audit_rules
from helpers.grading.safeguards.audit_rules import (
    PATH_ARGUMENTS,
    WRITE_FLAGS,
    changed_paths,
    full_path,
    is_below,
    is_import_system,
    report_files_opened_in_c,
)
from helpers.grading.safeguards.cleanup import WATCHED, watch_functions
from helpers.learner.words import Words
from helpers.ranks.board.sites import is_library

NOTES_FILE = "notes.txt"  # in the sandbox's folder; ranks append lines, the sandbox worker reads them
MAX_FORKS = 4  # forks of one process; any more are stopped
MAX_NOTES, MAX_NOTES_CHARACTERS = 20, 50_000  # that are read at a time
MAX_REASON = 300  # characters of the reason in a note, which may quote the learner
CELL_PREFIX = "cell "  # with which the file name of a learner's cell begins
# In tasks that count bytes, no honest answer was seen to move more than 50 elements out of torch; an answer that hides
# memory from the meter moves hundreds.
MAX_MOVED = 150
_installed: Guard | None = None  # the guard of this process


class NotAllowed(RuntimeError):
    """Raised for what would harm the grader's machine."""


class Guard:
    """The guard of one process.

    lab: "03". folder: where notes go.
    isolation_level: of the sandbox around the process: "namespaces", "uid" or "plain".
    rules: audit event -> function of the event's arguments, which returns the reason for a note, or None. A library may
    cause an event for itself, so some events count only in a line of the learner's own (`is_direct`).
    is_busy: the guard itself causes events now, which it must not note. forks: how many forks there were.
    moved: elements that the answer has moved out of torch in a task that counts bytes; minus infinity in others.
    """

    def __init__(self, lab: str, folder: str, isolation_level: str):
        self.lab, self.notes = lab, os.path.join(os.path.realpath(folder), NOTES_FILE)
        self.has_file_isolation = isolation_level != "plain"
        self.writable = (os.path.realpath(folder), "/dev", "/proc/self")  # what honest code may change
        self.is_busy, self.forks, self.moved = False, 0, -math.inf
        # The events have their names from Python's audit event table.
        self.rules: dict[str, Callable[[tuple], Words | None]] = {
            "import": lambda args: why_forbidden(str(args[0]), self.lab) if is_direct() else None,
            "open": self._rule_open,
            "socket.connect": lambda args: words["connects"].format(args[1]),  # args[1]: host and port, or a path
            "socket.getaddrinfo": lambda args: words["resolves_host"].format(args[0]),  # args[0]: the name of a host
            "os.fork": self._rule_fork,
        }
        for reason, events in NOTED_EVENTS.items():
            self.rules |= {event: partial(_rule_named, reason, event) for event in events.split()}
        self.rules |= dict.fromkeys(("os.system", "os.posix_spawn", "os.exec", "subprocess.Popen"), self._rule_start)
        self.rules |= {event: partial(self._rule_change, event) for event in PATH_ARGUMENTS}

    def install(self) -> None:
        """Watch the process from now on; an audit hook cannot be removed again."""
        sys.addaudithook(self.audit)
        report_files_opened_in_c()
        self._watch_torch()
        for owner, key in ((torch.Tensor, "moving_out"), (torch.UntypedStorage, "moving_out_of_storage")):
            for name in NAME_LISTS[key]:
                setattr(owner, name, self._counting(getattr(owner, name)))

    def audit(self, event: str, args: tuple) -> None:
        """The audit hook: note what the rule for this event says, if the learner's code caused it."""
        rule = self.rules.get(event)
        if rule is None or self.is_busy:
            return
        self.is_busy = True
        try:
            is_by_learner = frame_of_learner() is not None and not is_by_course(sys._getframe(1))
            if is_by_learner and (why := rule(args)):
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
        """A file is opened. A library's own file may be read, as a traceback does."""
        full = full_path(args[0])  # None for a file descriptor, which was opened before
        if full is None:
            return None
        is_writing = isinstance(args[2], int) and args[2] & WRITE_FLAGS
        if is_writing or full == self.notes:
            return self._why_changing(full)
        return None if is_library(full) or full.startswith(CELL_PREFIX) else words["opens"].format(full[-60:])

    def _rule_change(self, event: str, args: tuple) -> Words | None:
        reasons = [self._why_changing(full) for full in changed_paths(event, args)]  # each may have to be stopped
        return next(filter(None, reasons), None)

    def _why_changing(self, full: str) -> Words | None:
        """Why a file is not to be changed. It is stopped for the notes, and outside where files are not isolated."""
        name = os.path.basename(full) or full
        if is_below(full, self.writable) and full != self.notes:
            return None if full == os.devnull else words["opens"].format(name)
        why = words["files_changed"].format(name)
        return why if self.has_file_isolation and full != self.notes else self.stop(why)

    def _rule_start(self, args: tuple) -> Words | None:
        """The start of a program. Where files are not isolated, it is stopped, since the program has no guard."""
        why = words["starts"].format(str(args[0])[:60])
        return why if self.has_file_isolation else self.stop(why)

    def _rule_fork(self, args: tuple) -> Words | None:
        self.forks += 1
        why = words["starts"].format("os.fork")
        return why if self.forks <= MAX_FORKS else self.stop(why)

    def _watch_torch(self) -> None:
        """Note what an answer makes of the classes that the lab forbids, and what it sends past the course's own group.

        Such a class is torch's own DistributedDataParallel. No log has what a group below the course's own sends.
        """
        for name in lab_of(self.lab).forbids_instances:
            forbidden = pkgutil.resolve_name(name)
            forbidden.__init__ = self._noting(forbidden.__init__, words["torchs_own"].format(name))
        for name in NAME_LISTS["sending"]:
            original, why = getattr(dist.ProcessGroup, name), words["below_the_wire"].format(name)
            setattr(dist.ProcessGroup, name, self._noting(original, why, is_engine_allowed=True))

    def _noting(self, original: Callable, why: Words, *, is_engine_allowed: bool = False) -> Callable:
        """The function, with a note if the learner's code calls it, also if a library does so for the learner.

        is_engine_allowed: it may be called by the course's code, such as the engine that sends what the learner sends.
        """

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if frame_of_learner() is not None and not (is_engine_allowed and is_by_course(sys._getframe(1))):
                self.note(why)
            return original(*args, **kwargs)

        return noting

    def _counting(self, original: Callable) -> Callable:
        """A method that moves a tensor's elements out of torch, with a note once the answer has moved too many."""

        @functools.wraps(original)
        def counting(value: Any, *args: Any, **kwargs: Any) -> Any:
            if self.moved >= 0 and frame_of_learner() is not None and not is_by_course(sys._getframe(1)):
                self.moved += value.numel() if isinstance(value, torch.Tensor) else len(value) // 8
                if self.moved > MAX_MOVED:
                    self.note(words["moved_out"].format(original.__name__))
                    self.moved = -math.inf  # one note is enough
            return original(value, *args, **kwargs)

        return counting


def _rule_named(reason: str, event: str, args: tuple) -> Words | None:
    """The rule of an event in NOTED_EVENTS."""
    return words[reason].format(event) if event in NAME_LISTS["events_by_libraries"] or is_direct() else None


def install(lab: str, folder: str, isolation_level: str) -> None:
    """Install the guard in this process, a rank's or the worker's, unless it is there already."""
    global _installed
    if _installed is None:
        _installed = Guard(lab, folder, isolation_level)
        _installed.install()


def watch_answer(*, is_metered: bool = False) -> Callable[[], None]:
    """Remember the functions of Python, torch and this course. The result notes which were replaced since.

    is_metered: from now on, note also if many elements are moved out of torch.
    """
    _installed.moved = 0 if is_metered else -math.inf
    own = [module for name, module in sys.modules.items() if is_within(name, ("helpers",))]
    values = [one for module in own for one in vars(module).values() if isinstance(one, type)]
    classes = [one for one in values if is_within(one.__module__, ("helpers",))]
    replaced, note, reason = (
        watch_functions(dict.fromkeys([*WATCHED, *own, *classes])),
        _installed.note,
        words["replaces"],
    )

    def note_replaced() -> None:
        for name in replaced():
            note(reason.format(name))

    return note_replaced


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
    return frame.f_code.co_filename.startswith(CELL_PREFIX)


def frame_of_learner() -> Any:
    """The nearest frame of the learner's above this one; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None and not is_from_learner(frame):
        frame = frame.f_back
    return frame


def is_by_course(frame: Any) -> bool:
    """Whether the course's code caused the event, and not the learner's: the nearest frame outside libraries tells."""
    frame = frame.f_back if frame.f_code.co_filename == audit_rules.__file__ else frame  # it reports what C code does
    while frame is not None and is_library(frame.f_code.co_filename) and not is_import_system(frame):
        frame = frame.f_back
    return frame is not None and (is_import_system(frame) or is_below(frame.f_code.co_filename, _COURSE))


def is_direct() -> bool:
    """Whether the learner's own line causes the event, and not a library for itself."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is not None and is_from_learner(frame)


_COURSE = (os.path.dirname(helpers.__file__),)
