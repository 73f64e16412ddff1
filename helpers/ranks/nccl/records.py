"""What a journal holds: each rank's host, in program order. No torch.

post         an operation: a collective, a send, a recv, or a batch of these as one; number: of this rank
wait         the stream waits for operation `number`
sync         the host waits for its stream ("all": for the whole device)
record       event `number` is recorded on the stream; wait_event, wait_for_event: for that event
made         new_group was called (by members and others), name: its ranks
named        a group `name` was made, also by torch for itself; number: among those of this line and these ranks
idle, end    a task or the script is over; number 0: it raised
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from helpers.learner.words import Words
from helpers.ranks.sites import Frame

PREFIX = "journal-"
NOWHERE: Frame = ("", 0, "")


@dataclass(slots=True, eq=False)
class Message:
    """One send or receive. peer: a global rank. form: what both sides should agree on."""

    sends: bool
    peer: int
    tag: int = 0
    form: str = ""
    strides: tuple[int, ...] = ()
    site: Frame = NOWHERE


@dataclass(slots=True, eq=False)
class Record:
    kind: str
    number: int = 0
    site: Frame = NOWHERE
    stream: int | str = 0
    name: str = ""
    group: tuple = ()  # (name, global ranks)
    in_line: bool = False  # async_op=False: it runs on the current stream
    messages: tuple[Message, ...] = ()
    origin: tuple[Frame, int] = (NOWHERE, 0)  # where its group was made, and its number there

    @property
    def is_collective(self) -> bool:
        return self.kind == "post" and not self.messages

    @property
    def is_batch(self) -> bool:
        return self.name == "batch"


@dataclass(frozen=True)
class Found:
    """Something that a rank has found by itself."""

    rank: int
    kind: str
    words: Words
    sites: tuple[Frame, ...]
    cure: Words


@dataclass
class Program:
    """One rank's records; eager: whether init_process_group had a device_id, None where nobody says."""

    rank: int = 0
    world_size: int = 1
    eager: bool | None = None
    records: list[Record] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)


class Reader:
    """One rank's lines as a program: of a file (and later what has been added to it), or given one by one."""

    def __init__(self, path: str = ""):
        self.path, self.offset, self.worlds = path, 0, 0
        self.sites: dict[int, Frame] = {0: NOWHERE}
        self.groups: dict[int, tuple] = {}
        self.origins: dict[str, tuple[Frame, int]] = {}  # by name of the group
        self.program = Program()

    def read(self) -> Program:
        """What is new in the file, as far as it is whole lines."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        return self.take(map(json.loads, whole.splitlines()))

    def take(self, lines: Iterable[list]) -> Program:
        self.program = Program(self.program.rank, self.program.world_size, self.program.eager)
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
                self.program.found.append(Found(self.program.rank, kind, Words(**words), frames, Words(**cure)))
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
        """Of a group, as no later world of the process has it."""
        return name + "'" * (self.worlds - 1)

    def _message(self, sends: bool, peer: int, tag: int, form: str, strides: list[int], site: int) -> Message:
        return Message(sends, peer, tag, form, tuple(strides), self.sites[site])


def journals_in(folder: str) -> list[str]:
    """The paths of the journals in a folder, which need not be there."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), PREFIX + "*")))
