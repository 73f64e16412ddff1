"""Writes and reads the journal of a rank: every call that matters to NCCL, in program order, as one line of JSON each.

The program runs on gloo, and a later replay of the journals (replayer.py) finds out what NCCL would have done. A line
goes straight to the file, so a rank that is killed loses none. At most one journal is open in a process. While none is
open, `note` and `note_finding` do nothing. `JournalReader` turns lines back into `Record`s. The "host" is the rank's
Python program, a "stream" a CUDA stream, and a "message" a send or a receive. The kinds of record are:

post            an operation: a collective, a message, or a batch of messages; its number counts this rank's operations
wait            the current stream waits for operation `number`
sync            the host waits for its stream (stream "all": for the whole device)
record          CUDA event `number` is recorded on the stream
wait_event      the stream waits for event `number`
wait_for_event  the host waits for event `number`
made            new_group was called (by members and by other ranks); its name lists the ranks
idle            a task is over
end             the script is over; number 0 means that it raised, 1 that it did not

Five more kinds of line become no Record. "site" and "group" give a number to a line of the program or to a group, by
which later lines refer to it. "world" begins the journal, and begins again when the process makes a new world, which is
a new set of all its groups. "named" says which line made a group (torch makes some itself), and its number counts the
groups that this line made for the same ranks. "found" is a finding of the rank itself. The file does not import torch.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from helpers.learner.words import Words
from helpers.ranks.board.sites import Frame
from helpers.ranks.wire import rules

PREFIX = "journal-"  # of the files' names
NO_SITE: Frame = ("", 0, "")  # where the line is not known


@dataclass(slots=True, eq=False)
class MessageRecord:
    """One send or receive."""

    sends: bool  # or else it receives
    peer: int  # the global rank of the other side
    tag: int = 0
    form: str = ""  # dtype and size, on which both sides should agree, such as "float32 x 4"
    strides: tuple[int, ...] = ()  # shape and strides of a tensor that is not contiguous
    site: Frame = NO_SITE  # the line of the program


@dataclass(slots=True, eq=False)
class Record:
    """One line of a journal. The kinds are listed at the top of this file; most fields are for "post" alone."""

    kind: str
    number: int = 0
    site: Frame = NO_SITE  # the line of the program
    stream: int | str = 0
    name: str = ""  # of the call, such as "all_reduce" or "batch"
    group: tuple = ()  # (name, global ranks)
    in_line: bool = False  # async_op=False: it runs on the current stream, so what follows there waits for it
    messages: tuple[MessageRecord, ...] = ()  # of a send, a receive or a batch; () for a collective
    origin: tuple[Frame, int] = (NO_SITE, 0)  # the line that made its group, and the group's number at that line

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
    kind: str  # such as "race": the kind of the verdict that it becomes (verdicts.py)
    words: Words  # what was found, in every language of the course
    sites: tuple[Frame, ...]  # the lines of the program that are involved
    cure: Words  # what to change


@dataclass
class RankProgram:
    """What one rank's journal says."""

    rank: int = 0
    world_size: int = 1
    eager: bool | None = None  # whether init_process_group had a device_id; None where that is not known
    records: list[Record] = field(default_factory=list)
    findings: list[RecordedFinding] = field(default_factory=list)


class JournalReader:
    """Turns the lines of one rank into a RankProgram: those of a file, also as it grows, or lines given one by one."""

    def __init__(self, path: str = ""):
        self.path, self.offset = path, 0  # offset: bytes of the file that have been read
        self.worlds = 0  # how many "world" lines came
        self.sites: dict[int, Frame] = {0: NO_SITE}  # by the numbers that the lines give them
        self.groups: dict[int, tuple] = {}
        self.origins: dict[str, tuple[Frame, int]] = {}  # name of a group -> Record.origin
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
        """A program with the records of these lines, which continue the ones before."""
        self.program = RankProgram(self.program.rank, self.program.world_size, self.program.eager)
        for line in lines:
            self._take(line)
        return self.program

    def _take(self, line: list) -> None:
        """Read one line, whose first item is its kind."""
        match line:
            case ["site", number, *frame]:
                self.sites[number] = tuple(frame)
            case ["world", rank, size, eager]:
                self.program.rank, self.program.world_size, self.program.eager = rank, size, eager
                self.worlds += 1
            case ["group", number, name, ranks]:
                self.groups[number] = self._name(name), tuple(ranks)
            case ["named", number, site, _, name]:  # _: the stream, which means nothing here
                self.origins[self._name(name)] = self.sites[site], number
            case ["found", kind, words, sites, cure]:
                frames = tuple(self.sites[one] for one in sites)
                finding = RecordedFinding(self.program.rank, kind, Words(**words), frames, Words(**cure))
                self.program.findings.append(finding)
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


_open: Journal | None = None  # the journal of this process


def current_stream() -> int:
    """The number of this thread's stream. rank_rules.py replaces this function where there is a simulated GPU."""
    return 0


class Journal:
    """Writes the lines of one rank's journal by calling `emit` with each, as a list that is plain data."""

    def __init__(self, emit: Callable[[list], None], rank: int, world_size: int, eager: bool | None = None):
        self.emit, self.lock, self.numbers = emit, threading.Lock(), itertools.count(1)
        self.known: dict[object, int] = {}  # lines of the program and groups that have a number
        self.origins: Counter = Counter()  # (line, ranks) -> groups that this line made for these ranks
        emit(["world", rank, world_size, eager])

    def _number(self, kind: str, what: tuple) -> int:
        """The number of a "site" or a "group". Its first use writes a line that defines it."""
        number = self.known.get((kind, what))
        if number is None:
            with self.lock:
                number = self.known.setdefault((kind, what), len(self.known) + 1)
                self.emit([kind, number, *what])
        return number

    def site(self, frame: Frame | None) -> int:
        """The number of a line of the program; 0 for none."""
        return 0 if frame is None else self._number("site", tuple(frame))

    def post(self, site: Frame, name: str, group: tuple, in_line: bool, messages: Sequence[list] = ()) -> int:
        """Write an operation, and return its number. group: (name, global ranks).

        messages: the fields of each as MessageRecord has them, in a list.
        """
        number, rows = next(self.numbers), [[*row, self.site(where)] for *row, where in messages]
        head = number, self.site(site), current_stream(), name
        self.emit(["post", *head, self._number("group", group), in_line, rows])
        return number

    def made(self, site: Frame, name: str, ranks: tuple[int, ...]) -> None:
        """Write that a line of the program made a group of which this rank is a member."""
        self.origins[site, ranks] += 1
        self.line("named", self.origins[site, ranks], site, name=name)

    def line(
        self, kind: str, number: int = 0, site: Frame | None = None, stream: int | str | None = None, name: str = ""
    ):
        """Write a record that is no operation; the current stream is the default."""
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
        """Close the file. Operations of this world that are still referenced write nothing more."""
        self.emit = lambda line: None
        os.close(self.file)


def keep_open(journal: Journal | None) -> Journal | None:
    """From now on, this is the journal of the process. Returns the one before."""
    global _open
    before, _open = _open, journal
    return before


def note(
    kind: str, *, what: str = "", stream: int | str | None = None, event: int = 0, ok: bool = True, site=None
) -> None:
    """Write a record of what is no operation of torch.distributed, such as a wait of the host for a stream.

    kind: "sync", "record", "wait_event", "wait_for_event", "idle" or "end". what: the name of the call, such as
    "synchronize". event: number of the CUDA event. ok: for "end", whether the script ended without an error.
    """
    if _open is not None:
        _open.line(kind, int(ok) if kind == "end" else event, site, stream, what)


def note_finding(kind: str, words: Words, sites: Sequence[Frame], cure: Words | None = None) -> None:
    """Write a finding of this rank itself, such as a race. It becomes a verdict as it is."""
    if _open is not None:
        _open.note_finding(kind, words, sites, cure or Words.of(""))


rules.on_task_end.append(lambda: note("idle"))  # called on a rank at the end of each task
