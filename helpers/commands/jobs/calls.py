"""The collectives of all ranks beside each other, from their flight recorders, and the first at which they part.

Gloo's records lack messages from rank to rank, and what they call `state` stays "scheduled": `retired` counts.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ranks.sites import Frame, learner_frame

SIDES = ("input", "output")
_FREE = {
    "all_to_all": SIDES,
    "all_to_all_single": SIDES,
    "alltoall": SIDES,
    "gather": ("output",),
    "scatter": ("input",),
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective of a rank. number: its place in the group, from 1. shape: what must be equal on all ranks."""

    group: str
    number: int
    op: str
    sizes: tuple
    shape: str
    is_done: bool
    line: Frame | None


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The first collective of a group that is not the same on all its ranks. calls: by rank, of those that issued it.

    since: the earlier number from which lines part, where equal operations hid that the ranks had; lines: those calls.
    """

    group: str
    number: int
    calls: Mapping[int, Call]
    missing: tuple[int, ...]
    since: int
    lines: Mapping[int, Call]

    @property
    def differs(self) -> bool:
        return len({(call.op, call.shape) for call in self.calls.values()}) > 1

    @property
    def odd(self) -> tuple[int, ...]:
        """The minority, and of two halves those who are missing, or the one without the lowest rank."""
        if self.since < self.number:
            return minority({rank: call.line for rank, call in self.lines.items()})
        if self.missing:
            return self.missing if len(self.missing) <= len(self.calls) else tuple(self.calls)
        ops = {rank: call.op for rank, call in self.calls.items()}
        return minority(ops if len(set(ops.values())) > 1 else {rank: call.shape for rank, call in self.calls.items()})

    @property
    def usual(self) -> Call:
        """What a rank calls there that is in order."""
        return next((call for rank, call in self.lines.items() if rank not in self.odd), [*self.lines.values()][0])


def minority(of: Mapping[int, Any]) -> tuple[int, ...]:
    counts, first = Counter(of.values()), of[min(of)]
    usual = max(counts, key=lambda value: (counts[value], value == first))
    return tuple(sorted(rank for rank, value in of.items() if value != usual))


def load(path: Path) -> dict[str, Any]:
    """The dump that a process left, in a folder that only this user writes to."""
    return pickle.loads(path.read_bytes() or pickle.dumps({}))


def calls_of(dump: Mapping[str, Any]) -> list[Call]:
    """Its collectives in order."""
    return [_call(entry) for entry in dump["entries"] if not entry.get("is_p2p")]


def _call(entry: Mapping[str, Any]) -> Call:
    frames = [(one["filename"], one["line"], one["name"]) for one in reversed(entry.get("frames", ()))]
    op = entry["profiling_name"].rpartition(":")[2]
    held = [side for side in SIDES if side not in _FREE.get(op, ())]
    return Call(
        group=entry["process_group"][0],
        number=entry["collective_seq_id"],
        op=op,
        sizes=tuple(map(tuple, entry["input_sizes"] or entry["output_sizes"])),
        shape=str([(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in held]),
        is_done=bool(entry["retired"]),
        line=learner_frame(frames),
    )


def partings(calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]]) -> list[Parting]:
    """One for each group in which the ranks part; what differs comes before what is missing."""
    found = [parting for name, ranks in groups.items() if (parting := _parting(name, calls, ranks))]
    return sorted(found, key=lambda one: not one.differs)


def _parting(group: str, calls: Mapping[int, Sequence[Call]], ranks: Sequence[int]) -> Parting | None:
    by_rank = {
        rank: {call.number: call for call in calls[rank] if call.group == group} for rank in ranks if rank in calls
    }
    first = max((min(numbers) for numbers in by_rank.values() if numbers), default=1)  # the recorder is a ring

    def at(number: int) -> dict[int, Call]:
        return {rank: numbers[number] for rank, numbers in by_rank.items() if number in numbers}

    for number in range(first, max((max(numbers, default=0) for numbers in by_rank.values()), default=0) + 1):
        there = at(number)
        missing = tuple(rank for rank in by_rank if rank not in there)
        if missing or len({(call.op, call.shape) for call in there.values()}) > 1:
            since = number
            while since > first and len({call.line for call in at(since - 1).values()}) > 1:
                since -= 1
            since = number if since == first else since  # lines that always differed say nothing
            named = {"group": group, "number": number, "calls": there, "missing": missing}
            return Parting(**named, since=since, lines=at(since))
    return None
