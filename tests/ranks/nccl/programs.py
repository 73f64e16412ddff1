"""A small language for programs of ranks, so that a test says in a line what each rank's host calls.

g = 0 1                          a group; the world needs no name
0: all_reduce; all_reduce g      a call of rank 0; each has its line: 1, 2, …
0 1: all_reduce async a; wait a  of both ranks; `async a` leaves a work that `wait a` waits for
0: send 1; recv 1 tag 3 x 8      isend and irecv leave a work: isend 1 as a
0: batch send 1, recv 1 as a     batch_isend_irecv; without `as` it is waited for at once
0: item; synchronize; on 1; record 5; await 5; new_group 0 1; raise; idle
"""

from __future__ import annotations

import itertools
import re

from helpers.ranks.nccl.journal import MessageRecord, RankProgram, Record


def programs(text: str, eager: bool | None = None) -> list[RankProgram]:
    groups, calls = {}, {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if "=" in line:
            name, _, members = line.partition("=")
            groups[name.strip()] = (name.strip(), tuple(map(int, members.split())))
        else:
            ranks, _, own = line.partition(":")
            for rank in ranks.split():
                calls.setdefault(int(rank), []).extend(filter(None, map(str.strip, own.split(";"))))
    groups[""] = ("0", tuple(sorted(calls)))
    return [_Writer(rank, groups, eager, len(calls)).write(calls[rank]) for rank in sorted(calls)]


class _Writer:
    def __init__(self, rank, groups, eager, size):
        self.program, self.groups, self.stream = RankProgram(rank, size, eager), groups, 0
        self.numbers, self.works = itertools.count(), {}

    def write(self, calls) -> RankProgram:
        ending = Record("end", 1)
        for line, call in enumerate(calls, 1):
            self.site = (f"rank{self.program.rank}.py", line, "main")
            if call in ("raise", "idle", "running"):
                ending = {"raise": Record("end", 0), "idle": Record("idle"), "running": None}[call]
            else:
                self._call(call)
        self.program.records += [ending] if ending else []
        return self.program

    def _add(self, kind, number=0, stream=None, **fields):
        where = {"site": self.site, "stream": self.stream if stream is None else stream}
        self.program.records.append(Record(kind, number, **where, **fields))

    def _call(self, call):
        word, *rest = call.replace(",", " ").split()
        match word:
            case "wait":
                self._add("wait", self.works[rest[0]])
            case "item":
                self._add("sync", name=word)
            case "synchronize":
                self._add("sync", stream="all", name=word)
            case "on":
                self.stream = int(rest[0])
            case "record":
                self._add("record", int(rest[0]))
            case "await":
                self._add("wait_event", int(rest[0]))
            case "new_group":
                self._add("made", name=" ".join(rest))
            case _:
                self._post(word, call)

    def _post(self, word, call):
        number = next(self.numbers)
        named = re.search(r"\b(?:as|async) (\w+)", call)
        messages = tuple(self._messages(call))
        group = next((self.groups[one] for one in call.split()[1:] if one in self.groups), self.groups[""])
        is_blocking = named is None and word not in ("isend", "irecv")
        self._add("post", number, name=word.removeprefix("i"), group=group, messages=messages,
                  in_line=is_blocking and not messages)  # fmt: skip
        if named:
            self.works[named[1]] = number
        elif is_blocking:
            self._add("wait", number)

    def _messages(self, call):
        for what, peer, tag, size in re.findall(r"i?(send|recv) (\d+)(?: tag (\d+))?(?: x (\d+))?", call):
            yield MessageRecord(what == "send", int(peer), int(tag or 0), f"float32 x {size or 4}", (1,), self.site)
