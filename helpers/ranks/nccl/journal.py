"""A rank's journal: what its host does, in program order, a line each. records.py says what the lines are.

Each line goes straight to the file, so a rank that is killed loses none. One journal is open in a process, or none;
where none is, `note` and `found` do nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from helpers.learner.words import Words
from helpers.ranks.nccl.records import PREFIX
from helpers.ranks.sites import Frame

_open: Journal | None = None


def current_stream() -> int:
    """The number of the stream of this thread; a card's take this place."""
    return 0


class Journal:
    """Numbers lines, groups and operations, and hands each line to `emit`."""

    def __init__(self, emit: Callable[[list], None], rank: int, world_size: int, eager: bool | None = None):
        self.emit, self.lock, self.numbers = emit, threading.Lock(), itertools.count(1)
        self.known: dict[object, int] = {}
        self.origins: Counter = Counter()
        emit(["world", rank, world_size, eager])

    def _number(self, kind: str, what: tuple) -> int:
        number = self.known.get((kind, what))
        if number is None:
            with self.lock:
                number = self.known.setdefault((kind, what), len(self.known) + 1)
                self.emit([kind, number, *what])
        return number

    def site(self, frame: Frame | None) -> int:
        return 0 if frame is None else self._number("site", tuple(frame))

    def post(self, site: Frame, name: str, group: tuple, in_line: bool, messages: Sequence[list] = ()) -> int:
        """An operation; its number. group: name and global ranks. messages: as Message's fields, the site last."""
        number, rows = next(self.numbers), [[*row, self.site(where)] for *row, where in messages]
        head = number, self.site(site), current_stream(), name
        self.emit(["post", *head, self._number("group", group), in_line, rows])
        return number

    def made(self, site: Frame, name: str, ranks: tuple[int, ...]) -> None:
        """A group of this rank; those that one line makes for the same ranks are counted."""
        self.origins[site, ranks] += 1
        self.line("named", self.origins[site, ranks], site, name=name)

    def line(
        self, kind: str, number: int = 0, site: Frame | None = None, stream: int | str | None = None, name: str = ""
    ):
        self.emit([kind, number, self.site(site), current_stream() if stream is None else stream, name])

    def found(self, kind: str, words: Words, sites: Sequence[Frame], cure: Words) -> None:
        self.emit(["found", kind, asdict(words), [self.site(one) for one in sites], asdict(cure)])


class FileJournal(Journal):
    """A journal in a file of `folder`. A later world of the same process is added to it."""

    def __init__(self, folder: str, rank: int, world_size: int, eager: bool | None):
        path, flags = os.path.join(folder, f"{PREFIX}{rank}.jsonl"), os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self.file = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self.encode = json.JSONEncoder(separators=(",", ":")).encode
        super().__init__(self._write, rank, world_size, eager)

    def _write(self, line: list) -> None:
        os.write(self.file, self.encode(line).encode() + b"\n")

    def close(self) -> None:
        """Works that somebody still holds write nothing more."""
        self.emit = lambda line: None
        os.close(self.file)


@contextmanager
def opened(journal: Journal | None) -> Iterator[None]:
    """Within, this is the journal of the process."""
    before = keep_open(journal)
    try:
        yield
    finally:
        keep_open(before)


def keep_open(journal: Journal | None) -> Journal | None:
    """From now on, this is the journal of the process. The one before."""
    global _open
    before, _open = _open, journal
    return before


def is_open() -> bool:
    return _open is not None


def note(
    kind: str, *, what: str = "", stream: int | str | None = None, event: int = 0, ok: bool = True, site=None
) -> None:
    """What the wire does not see: "sync", "record", "wait_event", "wait_for_event", "idle", and "end" (ok: it did not
    raise). what: the call's name."""
    if _open is not None:
        _open.line(kind, int(ok) if kind == "end" else event, site, stream, what)


def found(kind: str, words: Words, sites: Sequence[Frame], cure: Words | None = None) -> None:
    """A finding of this rank's own, such as a race; it comes out of verdicts_of as it is."""
    if _open is not None:
        _open.found(kind, words, sites, cure or Words.of(""))
