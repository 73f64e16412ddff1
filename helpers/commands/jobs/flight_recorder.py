"""Compares the flight-recorder dumps of all ranks and finds the first collective at which they diverge.

The flight recorder is a ring buffer in torch: for each process group, a record of the last collectives that the process
issued. A dump is the pickled content. `divergences` is our own comparison; `analyze_with_torch` asks torch's analyzer
(`torchfrtrace`) about the same dumps. The dumps of gloo lack sends and receives, and the field `state` of their records
stays "scheduled", so the field `retired` says whether a call is done.
"""

from __future__ import annotations

import argparse
import copy
import logging
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ranks.board.sites import Frame, learner_frame

SIDES = ("input", "output")
# Operation -> which of its tensors may differ from rank to rank.
_FREE_SIDES = {"gather": ("output",), "scatter": ("input",)}
_FREE_SIDES |= dict.fromkeys(("all_to_all", "all_to_all_single", "alltoall"), SIDES)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective that a rank issued.

    group: the name of its process group. number: its sequence number in the group, from 1. op: such as "all_reduce".
    backend: such as "gloo". sizes: of its tensors. signature: as text, the sizes and dtypes that must be equal on all
    ranks.
    is_done: whether it has ended on this rank. line: the user's line that issued it, None if the record has no stack.
    """

    group: str
    number: int
    op: str
    backend: str
    sizes: tuple
    signature: str
    is_done: bool
    line: Frame | None


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first collective of a group that is not the same on all its ranks.

    number: of that collective. calls: rank -> its call, if it issued one. missing: the ranks that issued none.

    If a rank skips a call and the next calls are equal operations, the numbers of that rank are shifted by one. The
    ranks then diverge earlier than their operations show, namely where they first call from different lines.
    first_number: the number from which the lines differ, equal to `number` if they do not. first_calls: rank -> its
    call with that number.
    """

    group: str
    number: int
    calls: Mapping[int, Call]
    missing: tuple[int, ...]
    first_number: int
    first_calls: Mapping[int, Call]

    @property
    def has_mismatch(self) -> bool:
        """Whether the calls differ, rather than some being missing."""
        return len({(call.op, call.signature) for call in self.calls.values()}) > 1

    @property
    def sides(self) -> dict[int, Any]:
        """Rank -> what it did where the ranks diverge; ranks with an equal value are on the same side."""
        if self.first_number < self.number:
            return {rank: call.line for rank, call in self.first_calls.items()}
        if self.missing:
            return dict.fromkeys(self.calls, True) | dict.fromkeys(self.missing, False)
        ops = {rank: call.op for rank, call in self.calls.items()}
        return ops if len(set(ops.values())) > 1 else {rank: call.signature for rank, call in self.calls.items()}

    @property
    def has_majority(self) -> bool:
        """Whether one side has more ranks than any other, so that the rest are probably at fault: never of two."""
        counts = sorted(Counter(self.sides.values()).values())
        return len(counts) == 1 or counts[-1] > counts[-2]

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that are probably at fault: those that are not on the largest side.

        Where two sides are equally large, these are the ranks that issued no call, or those without the lowest rank.
        """
        if self.missing and self.first_number == self.number:
            return self.missing if len(self.missing) <= len(self.calls) else tuple(self.calls)
        return minority(self.sides)

    @property
    def expected(self) -> Call:
        """The call that the suspects should have issued: that of another rank."""
        calls = self.first_calls
        return next((call for rank, call in calls.items() if rank not in self.suspects), next(iter(calls.values())))


def minority(values: Mapping[int, Any]) -> tuple[int, ...]:
    """The ranks whose value is not the most common one; where two are equally common, the lowest rank's value wins."""
    counts, value_of_lowest = Counter(values.values()), values[min(values)]
    usual = max(counts, key=lambda value: (counts[value], value == value_of_lowest))
    return tuple(sorted(rank for rank, value in values.items() if value != usual))


def load_dump(path: Path) -> dict[str, Any]:
    """A process's dump; {} without a file, or from an empty one. Only this user can write there: unpickling is safe."""
    content = path.read_bytes() if path.exists() else b""
    return pickle.loads(content) if content else {}


def calls_of(dump: Mapping[str, Any]) -> list[Call]:
    """The collectives of a dump, in order."""
    return [_call(entry) for entry in dump["entries"] if not entry.get("is_p2p")]


def _call(entry: Mapping[str, Any]) -> Call:
    # A record lists the innermost frame first, and `learner_frame` expects it last.
    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in reversed(entry.get("frames", ()))]
    backend, _, op = entry["profiling_name"].rpartition(":")
    # The sides of which the sizes and dtypes must be equal on all ranks.
    compared = [side for side in SIDES if side not in _FREE_SIDES.get(op, ())]
    return Call(
        group=entry["process_group"][0], number=entry["collective_seq_id"], op=op, backend=backend,
        is_done=bool(entry["retired"]), sizes=tuple(map(tuple, entry["input_sizes"] or entry["output_sizes"])),
        signature=str([(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in compared]),
        line=learner_frame(frames),
    )  # fmt: skip


def divergences(calls: Mapping[int, Sequence[Call]], groups: Mapping[str, Sequence[int]]) -> list[Divergence]:
    """The first divergence of each group that has one; mismatches come before missing calls.

    calls: rank -> its calls. groups: name -> global ranks.
    """
    found = [divergence for name, ranks in groups.items() if (divergence := _first_divergence(name, calls, ranks))]
    return sorted(found, key=lambda divergence: not divergence.has_mismatch)


def _first_divergence(group: str, calls: Mapping[int, Sequence[Call]], ranks: Sequence[int]) -> Divergence | None:
    """The first collective of this group that is not the same on all its ranks; None if all are."""
    # Rank -> number -> its call with this number in the group.
    by_rank = {r: {call.number: call for call in calls[r] if call.group == group} for r in ranks if r in calls}
    # A recorder is a ring buffer, so the oldest calls of a rank may be gone: begin where all ranks have records.
    first = max((min(numbers) for numbers in by_rank.values() if numbers), default=1)
    last = max((max(numbers, default=0) for numbers in by_rank.values()), default=0)

    def calls_at(number: int) -> dict[int, Call]:
        return {rank: numbers[number] for rank, numbers in by_rank.items() if number in numbers}

    for number in range(first, last + 1):
        issued = calls_at(number)
        missing = tuple(rank for rank in by_rank if rank not in issued)
        if missing or len({(call.op, call.signature) for call in issued.values()}) > 1:
            start = number  # goes back as long as the ranks called from different lines
            while start > first and len({call.line for call in calls_at(start - 1).values()}) > 1:
                start -= 1
            start = number if start == first else start  # lines that always differed prove nothing
            fields = {"group": group, "number": number, "calls": issued, "missing": missing}
            return Divergence(**fields, first_number=start, first_calls=calls_at(start))
    return None


# -- torch's own analyzer --------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class TorchAnalysis:
    """The first divergence that torch's analyzer reports: its sequence number and the ranks that it names.

    number: None if it reports none. kind: "missing" if ranks did not issue the collective, else the analyzer's name for
    what differs. problem: the analyzer's error, if it could not tell.
    """

    number: int | None = None
    ranks: tuple[int, ...] = ()
    kind: str = ""
    problem: str = ""


def analyze_with_torch(dumps: Mapping[int, Mapping[str, Any]], groups: Mapping[str, Sequence[int]]) -> TorchAnalysis:
    """Runs torch's analyzer. dumps: rank -> dump. groups: name -> global ranks, as the processes reported them."""
    logging.disable(logging.CRITICAL)  # the analyzer logs each of its steps
    try:
        from torch.distributed.flight_recorder.components.builder import build_db

        # Options of torchfrtrace. allow_incomplete_ranks: dumps may be missing. mismatch_cap: mismatches that it lists.
        options = {"verbose": False, "just_print_entries": False, "allow_incomplete_ranks": True, "mismatch_cap": 10}
        fixed = {f"rank{rank}": _with_groups(rank, dump, groups) for rank, dump in dumps.items()}
        collectives = build_db(fixed, argparse.Namespace(**options), next(iter(dumps.values()))["version"]).collectives
    except Exception as error:  # whatever the analyzer raises is its answer
        return TorchAnalysis(problem=f"{type(error).__name__}: {error}")
    finally:
        logging.disable(logging.NOTSET)
    for one in collectives:
        if one.missing_ranks:
            return TorchAnalysis(number=one.collective_seq_id, ranks=tuple(sorted(one.missing_ranks)), kind="missing")
        if mismatch := one.mismatch_collectives:
            kind = next(iter(mismatch.values())).type_of_mismatch.state.name.lower().replace("_", " ")
            return TorchAnalysis(number=one.collective_seq_id, ranks=tuple(sorted(mismatch)), kind=kind)
    return TorchAnalysis()


def _with_groups(rank: int, dump: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """A gloo dump as the analyzer expects it: without sends and receives, every group with its name and ranks."""
    entries = [one for one in dump["entries"] if not one["is_p2p"] and one["process_group"][0] in groups]
    config = {name: {"name": name, "desc": desc, "ranks": str(list(groups[name]))}
              for name, desc in (one["process_group"] for one in entries)}  # fmt: skip
    # A deep copy, because the analyzer changes the entries.
    return {**dump, "rank": rank, "entries": copy.deepcopy(entries), "pg_config": config}
