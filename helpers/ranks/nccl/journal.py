"""Writes and reads the journal of a rank: every call that matters to NCCL, in program order, as one line of JSON each.

A line goes straight to the file, so a rank that is killed loses none. At most one journal is open in a process; while
none is open, `note` and `note_finding` do nothing. `JournalReader` turns lines back into `Record`s, of these kinds:

post         an operation: a collective, a send, a recv, or a batch of messages; its number counts this rank's
wait         the current stream waits for operation `number`
sync         the host waits for its stream (stream "all": for the whole device)
record       event `number` is recorded on the stream; wait_event and wait_for_event are the waits for it
made         new_group was called (by members and by others); its name lists the ranks
named        a group `name` was made, also by torch for itself; `number` counts those of this line and these ranks
idle, end    a task or the script is over; number 0 means that it raised

The file does not import torch.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from helpers.learner.words import Words
from helpers.ranks import rules
from helpers.ranks.sites import Frame

PREFIX = "journal-"
NO_SITE: Frame = ("", 0, "")


@dataclass(slots=True, eq=False)
class MessageRecord:
    """One send or receive. peer: a global rank. form: what both sides should agree on, such as "float32 x 4"."""

    sends: bool
    peer: int
    tag: int = 0
    form: str = ""
    strides: tuple[int, ...] = ()
    site: Frame = NO_SITE


@dataclass(slots=True, eq=False)
class Record:
    """One line of a journal, see above. in_line: with async_op=False it runs on the current stream."""

    kind: str
    number: int = 0
    site: Frame = NO_SITE
    stream: int | str = 0
    name: str = ""
    group: tuple = ()  # (name, global ranks)
    in_line: bool = False  # async_op=False: it runs on the current stream
    messages: tuple[MessageRecord, ...] = ()
    origin: tuple[Frame, int] = (NO_SITE, 0)  # where its group was made, and its number there

    @property
    def is_collective(self) -> bool:
        return self.kind == "post" and not self.messages

    @property
    def is_batch(self) -> bool:
        return self.name == "batch"


@dataclass(frozen=True)
class RecordedFinding:
    """Something that a rank has found by itself, such as a race."""

    rank: int
    kind: str
    words: Words
    sites: tuple[Frame, ...]
    cure: Words


@dataclass
class RankProgram:
    """One rank's records; eager: whether init_process_group had a device_id, None where nobody says."""

    rank: int = 0
    world_size: int = 1
    eager: bool | None = None
    records: list[Record] = field(default_factory=list)
    findings: list[RecordedFinding] = field(default_factory=list)


class JournalReader:
    """Turns the lines of one rank into a RankProgram: those of a file, also as it grows, or lines given one by one."""

    def __init__(self, path: str = ""):
        self.path, self.offset, self.worlds = path, 0, 0
        self.sites: dict[int, Frame] = {0: NO_SITE}
        self.groups: dict[int, tuple] = {}
        self.origins: dict[str, tuple[Frame, int]] = {}  # by name of the group
        self.program = RankProgram()

    def read(self) -> RankProgram:
        """What is new in the file, up to its last complete line."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self.offset += len(complete)
        return self.take(map(json.loads, complete.splitlines()))

    def take(self, lines: Iterable[list]) -> RankProgram:
        self.program = RankProgram(self.program.rank, self.program.world_size, self.program.eager)
        for line in lines:
            self._take(line)
        return self.program

    def _take(self, line: list) -> None:
        match line:
            case ["site", number, *frame]:
                self.sites[number] = tuple(frame)
            case ["world", rank, size, eager]:
                self.program.rank, self.program.world_size, self.program.eager = rank, size, eager
                self.worlds += 1
            case ["group", number, name, ranks]:
                self.groups[number] = self._name(name), tuple(ranks)
            case ["named", number, site, _, name]:
                self.origins[self._name(name)] = self.sites[site], number
            case ["found", kind, words, sites, cure]:
                frames = tuple(self.sites[one] for one in sites)
                self.program.findings.append(
                    RecordedFinding(self.program.rank, kind, Words(**words), frames, Words(**cure))
                )
            case ["post", number, site, stream, name, group, in_line, messages]:
                made = tuple(self._message(*one) for one in messages)
                where = self.sites[site], stream
                group = self.groups[group]
                record = Record("post", number, *where, name, group, in_line, made)
                record.origin = self.origins.get(group[0], record.origin)
                self.program.records.append(record)
            case [kind, number, site, stream, name]:
                self.program.records.append(Record(kind, number, self.sites[site], stream, name))

    def _name(self, name: str) -> str:
        """The name of a group, made unique among the worlds of this process."""
        return name + "'" * (self.worlds - 1)

    def _message(self, sends: bool, peer: int, tag: int, form: str, strides: list[int], site: int) -> MessageRecord:
        return MessageRecord(sends, peer, tag, form, tuple(strides), self.sites[site])


def journals_in(folder: str) -> list[str]:
    """The paths of the journals in a folder, which need not be there."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), PREFIX + "*")))


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

    def note_finding(self, kind: str, words: Words, sites: Sequence[Frame], cure: Words) -> None:
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
    """From now on, this is the journal of the process. Returns the one before."""
    global _open
    before, _open = _open, journal
    return before


def note(
    kind: str, *, what: str = "", stream: int | str | None = None, event: int = 0, ok: bool = True, site=None
) -> None:
    """Note what the wire does not see, under the call's name (what).

    kind: "sync", "record", "wait_event", "wait_for_event", "idle" or "end" (ok: whether it ended without an error).
    """
    if _open is not None:
        _open.line(kind, int(ok) if kind == "end" else event, site, stream, what)


def note_finding(kind: str, words: Words, sites: Sequence[Frame], cure: Words | None = None) -> None:
    """Note a finding of this rank's own, such as a race. It comes out of verdicts_of as it is."""
    if _open is not None:
        _open.note_finding(kind, words, sites, cure or Words.of(""))


rules.on_task_end.append(lambda: note("idle"))
