"""Tells the runs apart whose traces lie in one folder, so that ranks of different runs are never mixed.

What one rank wrote in one run is its record: several files with different steps if torch.profiler's `repeat` was used.
Where a rank has the same steps twice, or where its steps begin again, it took part in another run. The records of other
ranks join the run that is nearest in time, unless they cannot belong to it: another number of ranks, another backend,
the same steps more than a minute apart, or more than a day between them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from helpers.commands.traces.files import TraceFile, words
from helpers.learner.words import Words

MAX_SKEW = 60.0  # seconds by which the same steps may be apart on ranks of one run: clocks differ by less
MAX_PAUSE = 86_400.0  # seconds between two windows of one run
_MICROSECOND = 1e-6  # seconds
_DATED = 1e15  # microseconds: a time after this one, in 2001, counts from 1970


@dataclass(eq=False)
class _Record:
    """The files that one rank wrote in one run, in order of time."""

    files: list[TraceFile]

    @property
    def steps(self) -> set[int]:
        return set().union(*(file.steps for file in self.files))

    def seconds_to(self, other: _Record) -> float:
        """Seconds between the two; 0 if they overlap, or if only one says from when its times count."""
        if bool(self.files[0].base) != bool(other.files[0].base):
            return 0.0
        starts = self.files[0].window[0], other.files[0].window[0]
        ends = self.files[-1].window[1], other.files[-1].window[1]
        return max(0.0, max(starts) - min(ends)) * _MICROSECOND

    def can_join(self, run: Sequence[_Record]) -> bool:
        """Whether this record may be of the run that consists of these."""
        for other in run:
            one, two = self.files[0], other.files[0]
            kinds = [(file.world_size, file.distributed_info.get("backend")) for file in (one, two)]
            if any(mine and its and mine != its for mine, its in zip(*kinds, strict=True)):
                return False
            if one.owner == two.owner or (one.rank is not None and 0 < two.world_size <= one.rank):
                return False
            most = MAX_SKEW if self.steps & other.steps else MAX_PAUSE
            if self.seconds_to(other) > most:
                return False
        return True


def choose_run(files: list[TraceFile], chosen: int | None, notes: list[Words]) -> list[TraceFile]:
    """The files of one run: of number `chosen`, from 1 in order of time, or of the newest.

    It adds notes on what it leaves out. Raises ValueError for a number that no run has.
    """
    runs = _runs(_without_copies(files, notes))
    if not 1 <= (number := chosen or len(runs)) <= len(runs):
        raise ValueError(words("note.no_run", number=chosen, count=len(runs)))
    if len(runs) > 1:
        texts = [_described(index, run) for index, run in enumerate(runs, 1)]
        notes.append(words["note.runs"].format(count=len(runs), runs=texts, chosen=number))
    return [file for record in runs[number - 1] for file in record.files]


def _without_copies(files: list[TraceFile], notes: list[Words]) -> list[TraceFile]:
    """The files without those that hold the same events as another one, such as a packed copy."""
    found: dict[tuple, TraceFile] = {}
    for file in files:
        key = (file.rank, file.window, len(file.events))
        other = found.setdefault(key, file)
        if other is not file:
            notes.append(words["note.same"].format(file=file.name, other=other.name))
    return list(found.values())


def by_owner(files: list[TraceFile]) -> dict[int | str, list[TraceFile]]:
    """The files by who wrote them (`TraceFile.owner`)."""
    found: dict[int | str, list[TraceFile]] = defaultdict(list)
    for file in files:
        found[file.owner].append(file)
    return found


def _runs(files: list[TraceFile]) -> list[list[_Record]]:
    """The records of each run, the runs in order of time."""
    runs: list[list[_Record]] = []
    # The rank with most records comes first. Each of its records begins a run, which the other ranks can join.
    for records in sorted(map(_records, by_owner(files).values()), key=len, reverse=True):
        for record in records:
            fitting = (run for run in runs if record.can_join(run))
            joined = min(fitting, key=partial(_distance, record), default=None)
            if joined is None:
                runs.append(joined := [])
            joined.append(record)
    return sorted(runs, key=lambda run: min(record.files[0].window[0] for record in run))


def _distance(record: _Record, run: Sequence[_Record]) -> tuple[float, bool]:
    """Seconds from the record to the run, and, where two runs are equally near, whether it is in another folder."""
    folders = {file.folder for other in run for file in other.files}
    return min(map(record.seconds_to, run)), record.files[0].folder not in folders


def _records(files: list[TraceFile]) -> list[_Record]:
    """The records of one rank. Its files are of one run as long as each has later steps than the one before it."""
    found: list[_Record] = []
    for file in sorted(files, key=lambda file: file.window[0]):
        steps = found[-1].steps if found else set()
        is_later = bool(steps) and min(file.steps, default=-math.inf) > max(steps)
        if is_later and file.world_size == found[-1].files[0].world_size:
            if _Record([file]).seconds_to(found[-1]) <= MAX_PAUSE:
                found[-1].files.append(file)
                continue
        found.append(_Record([file]))
    return found


def _described(number: int, run: Sequence[_Record]) -> Words:
    """The ranks of a run, and when it began."""
    firsts = [record.files[0] for record in run]
    ranks = sorted(file.rank for file in firsts if file.rank is not None) or ["?"]
    start = min(file.window[0] for file in firsts)
    world = max([len(run), *(file.world_size for file in firsts)])
    fields = {"number": number, "ranks": ranks, "count": len(ranks), "world": world}
    if not _DATED < start < 1e17:
        return words["note.run_undated"].format(**fields)
    when = datetime.fromtimestamp(start * _MICROSECOND).isoformat(" ", "minutes")
    return words["note.run"].format(**fields, when=when)
