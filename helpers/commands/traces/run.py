"""`read`: the traces of a run become one Timeline on one clock, with the steps and messages that lie behind it."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from helpers.commands.traces.clocks import Clock, clocks
from helpers.commands.traces.files import SAYS, File, load, number
from helpers.commands.traces.lanes import Step, Track, track_of
from helpers.commands.traces.messages import Message, meet, split
from helpers.learner.words import Words
from helpers.records import Span, Timeline


@dataclass(frozen=True, kw_only=True)
class Run:
    """The traces of one run, on the first rank's clock, which begins at 0 s.

    timeline: spans of every rank in the lanes data, host, compute, communication and waiting, and what it held. steps:
    rank -> its steps; one without a number where the trace names none. messages: of all ranks, each with the moment at
    which its last rank was ready. operators: rank -> (name, shapes) -> [seconds, calls]. clocks: rank -> what was taken
    off its times. notes: what the files lack, as sentences. world_size: of the run, which may be more than was read.
    """

    timeline: Timeline
    steps: Mapping[int, tuple[Step, ...]]
    messages: tuple[Message, ...]
    operators: Mapping[int, Mapping[tuple[str, str], list[float]]]
    clocks: Mapping[int, Clock]
    world_size: int
    on_gpu: bool = False
    notes: tuple[Words, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.steps)


@contextmanager
def uncollected() -> Iterator[None]:
    """Hundreds of thousands of events without a circle: looking for one takes half of the time."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@uncollected()
def read(path: str | Path) -> Run:
    """The traces of torch.profiler in a file, a folder (one per rank) or an archive, whole or in part.

    What is missing is said in `notes`. ValueError, as a sentence, where nothing can be read.
    """
    files = load(path)
    notes = [note for file in files for note in file.notes]
    chosen = _by_rank(files, notes)
    bases = {rank: min(file.base for file in mine) for rank, mine in chosen.items()}
    first = min(bases.values())
    shifts = {rank: (base - first) / 1e3 for rank, base in bases.items()}  # microseconds
    zero = min(file.first + shifts[rank] for rank, mine in chosen.items() for file in mine)
    tracks = {rank: _track(mine, rank, zero - shifts[rank]) for rank, mine in chosen.items()}
    if not any(track.spans or track.messages for track in tracks.values()):
        raise ValueError(f"{path}: this trace holds no operator and no kernel; did the profiler record CPU or CUDA?")
    world = max([len(tracks), *(number(file.told, "world_size") or 0 for file in files)])
    return run_of(tracks, title=Path(path).name, world=world, notes=notes)


def run_of(tracks: Mapping[int, Track], *, title: str, world: int, notes: Iterable[Words] = ()) -> Run:
    """A Run of what the ranks did, each on its own clock."""
    meetings = meet(track.messages for track in tracks.values())
    told = clocks(list(tracks), meetings, hosts=[track.host for track in tracks.values()])
    for rank, track in tracks.items():
        _set(track, told[rank])
    split(meetings)
    return Run(
        timeline=_timeline(tracks, title),
        steps={rank: _steps(track) for rank, track in tracks.items()},
        messages=tuple(one for track in tracks.values() for one in track.messages),
        operators={rank: dict(track.operators) for rank, track in tracks.items()},
        clocks=told, world_size=world, on_gpu=any(track.on_gpu for track in tracks.values()),
        notes=(*notes, *_lacks(tracks, world, told)),
    )  # fmt: skip


def _by_rank(files: list[File], notes: list[Words]) -> dict[int, list[File]]:
    """The files of each rank, in order. A file that does not tell its rank takes the lowest that is free.

    One rank writes several files with `repeat`: other steps each. Where steps come twice, the run was repeated, and the
    latest file counts.
    """
    found: dict[int, list[File]] = defaultdict(list)
    for file in files:
        if file.rank is not None:
            found[file.rank].append(file)
    for file in files:
        if file.rank is None:
            found[next(number for number in range(len(files)) if number not in found)].append(file)
            if len(files) > 1:
                notes.append(SAYS["note.no_rank"].format(file=file.name, rank=max(found)))
    for rank, mine in found.items():
        if len(mine) == 1:
            continue
        mine.sort(key=lambda file: file.base / 1e3 + file.first)
        names = [{event.name for event in file.events if event.name.startswith("ProfilerStep#")} for file in mine]
        if max(Counter(name for one in names for name in one or {""}).values()) > 1:
            notes.append(SAYS["note.twice"].format(rank=rank, count=len(mine), file=mine[-1].name))
            found[rank] = mine[-1:]
    return dict(sorted(found.items()))


def _track(files: list[File], rank: int, origin: float) -> Track:
    """Several windows of one rank as one track."""
    base = min(file.base for file in files)
    tracks = [track_of(file, rank, origin - (file.base - base) / 1e3) for file in files]
    whole = tracks[0]
    for other in tracks[1:]:
        for name in ("spans", "messages", "steps", "held"):
            getattr(whole, name).extend(getattr(other, name))
        for key, (seconds, calls) in other.operators.items():
            whole.operators[key][0] += seconds
            whole.operators[key][1] += calls
    return whole


def _set(track: Track, clock: Clock) -> None:
    """All times of a rank on the first rank's clock."""
    if clock.offset == clock.drift == 0:
        return
    true = clock.true
    for one in track.spans:  # its own, fresh from the file
        vars(one).update(start=true(one.start), end=true(one.end))
    for one in track.messages:
        one.ready, one.end = true(one.ready), true(one.end)
    track.steps = [replace(step, start=true(step.start), end=true(step.end)) for step in track.steps]
    track.held = [replace(one, start=true(one.start), end=true(one.end)) for one in track.held]


def _steps(track: Track) -> tuple[Step, ...]:
    """Those of the trace; one from its start to its end where it names none."""
    if track.steps:
        return tuple(track.steps)
    ends = [(span.start, span.end) for span in track.spans] + [(one.ready, one.end) for one in track.messages]
    return (Step(number=-1, start=min(start for start, _ in ends), end=max(end for _, end in ends)),) if ends else ()


def _timeline(tracks: Mapping[int, Track], title: str) -> Timeline:
    spans = [span for track in tracks.values() for span in track.spans]
    for track in tracks.values():
        for one in track.messages:
            moves = one.ready if one.last is None else min(max(one.ready, one.last), one.end)
            if moves > one.ready:
                waits = (track.rank, "waiting", f"{one.op} ← {one.late}", "waiting", one.ready, moves)
                spans.append(Span.unchecked(*waits))
            move = (track.rank, "communication", one.op, "communication", moves, one.end, one.num_bytes)
            spans.append(Span.unchecked(*move))
    held = [holding for track in tracks.values() for holding in track.held]
    return Timeline(spans=sorted(spans, key=attrgetter("start")), source="recorded", title=title, held=held)


def _lacks(tracks: Mapping[int, Track], world: int, told: Mapping[int, Clock]) -> list[Words]:
    notes = []
    if world > len(tracks):
        notes.append(SAYS["note.ranks"].format(there=list(tracks), count=len(tracks), world=world))
    without = [rank for rank, track in tracks.items() if not track.steps]
    if without:
        notes.append(SAYS["note.steps"].format(ranks=without))
    alone = [rank for rank, clock in told.items() if not clock.meetings and rank != next(iter(told))]
    if alone:
        notes.append(SAYS["note.clocks"].format(ranks=alone))
    lost = sum(one.last is None for track in tracks.values() for one in track.messages)
    if lost and len(tracks) > 1:
        notes.append(SAYS["note.unmatched"].format(count=lost))
    return notes
