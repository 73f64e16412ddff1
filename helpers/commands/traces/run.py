"""Reads the traces of all ranks of a run and puts them on one clock, with their steps and messages.

A track is what one rank's trace files say: its spans, messages, steps and allocations, on the rank's own clock. The
ranks' clocks differ, even more so on several machines. `read` reads the tracks of all ranks, matches the messages of
one collective on all ranks, estimates from them how far each clock is ahead, and corrects all times. The command
`explain`, chapter 10 and its explorer call it. `run_of` does the same with made-up tracks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from helpers.commands.traces.clocks import RankClock, estimate_clocks
from helpers.commands.traces.files import TraceFile, load_files, words
from helpers.commands.traces.lanes import RankTrack, Step, track_of
from helpers.commands.traces.messages import TracedMessage, find_last_ready, is_call, is_message, match_messages
from helpers.commands.traces.several_runs import by_owner, choose_run
from helpers.learner.words import Words
from helpers.quantities.units import format_seconds
from helpers.records import Span, Timeline
from helpers.records.timeline import garbage_collector_paused

MUCH_BEHIND = 0.1  # of the steps' time, by which a GPU may fall behind the CPU without a note


@dataclass(frozen=True, kw_only=True)
class TraceRun:
    """The traces of one run, on the first rank's clock, which begins at 0 s.

    timeline: the spans of every rank in the lanes data, host, compute, communication and waiting, and its allocations.
    steps: rank -> its steps; one with the number -1 where the trace names none.
    messages: of all ranks, each with the moment at which the last rank was ready.
    operators: rank -> (name, shapes) -> [seconds, calls].
    clocks: rank -> the clock that its times were corrected for.
    world_size: of the run, which may be more than the number of ranks that were read.
    on_gpu: whether the traces have kernels of a GPU. notes: sentences about what the files lack.
    """

    timeline: Timeline
    steps: Mapping[int, tuple[Step, ...]]
    messages: tuple[TracedMessage, ...]
    operators: Mapping[int, Mapping[tuple[str, str], list[float]]]
    clocks: Mapping[int, RankClock]
    world_size: int
    on_gpu: bool = False
    notes: tuple[Words, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.steps)


@garbage_collector_paused()
def read(path: str | Path, *, run: int | None = None) -> TraceRun:
    """Reads the traces of torch.profiler in a file, a folder (one file per rank) or an archive, complete or cut off.

    run: which one, counted from 1 in order of time, if there are traces of several runs; by default the newest.
    `notes` of the result says what is missing. Raises ValueError, with a sentence for the user, where nothing can be
    read. The base of a file is a time in nanoseconds to which each of its times, in microseconds, is added. shifts:
    rank -> how many microseconds its base lies behind the earliest. start: the first time of all, from that base.
    """
    files = load_files(path)
    notes = [note for file in files for note in file.notes]
    by_rank = _by_rank(choose_run(files, run, notes), notes)
    bases = {rank: min(file.base for file in of_rank) for rank, of_rank in by_rank.items()}
    first_base = min(bases.values())
    shifts = {rank: (base - first_base) / 1e3 for rank, base in bases.items()}  # microseconds
    start = min(file.first + shifts[rank] for rank, of_rank in by_rank.items() for file in of_rank)
    tracks = {rank: _joined_track(of_rank, rank, start - shifts[rank]) for rank, of_rank in by_rank.items()}
    if not any(track.spans or track.messages for track in tracks.values()):
        raise ValueError(f"{path}: this trace holds no operator and no kernel; did the profiler record CPU or CUDA?")
    world = max([len(tracks), *(file.world_size for of_rank in by_rank.values() for file in of_rank)])
    return run_of(tracks, title=Path(path).name, world=world, notes=notes)


def run_of(tracks: Mapping[int, RankTrack], *, title: str, world: int, notes: Iterable[Words] = ()) -> TraceRun:
    """The run of these tracks, rank -> track, of which each is still on its own clock. It changes the tracks."""
    matched = match_messages(track.messages for track in tracks.values())
    clocks = estimate_clocks(list(tracks), matched, hosts=[track.host for track in tracks.values()])
    for rank, track in tracks.items():
        _correct_times(track, clocks[rank])
    find_last_ready(matched)
    return TraceRun(
        timeline=_timeline(tracks, title),
        steps={rank: _steps(track) for rank, track in tracks.items()},
        messages=tuple(message for track in tracks.values() for message in track.messages),
        operators={rank: dict(track.operators) for rank, track in tracks.items()},
        clocks=clocks, world_size=world, on_gpu=any(track.on_gpu for track in tracks.values()),
        notes=(*notes, *_notes(tracks, world, clocks)),
    )  # fmt: skip


def _by_rank(files: list[TraceFile], notes: list[Words]) -> dict[int, list[TraceFile]]:
    """The files of each rank, in order. A file that does not name its rank gets the lowest free one.

    With torch.profiler's `repeat`, one rank writes several files with different steps, and all of them count.
    """
    of_owners = by_owner(files)
    found = {owner: of_owner for owner, of_owner in of_owners.items() if isinstance(owner, int)}
    for owner in [owner for owner in of_owners if owner not in found]:
        rank = next(rank for rank in range(len(files)) if rank not in found)
        found[rank], file = of_owners[owner], of_owners[owner][0]
        if len(files) > 1 or any(is_call(event.name) or is_message(event.name) for event in file.events):
            notes.append(words["note.no_rank"].format(file=file.name, rank=rank))
    return {rank: sorted(of_rank, key=lambda file: file.window[0]) for rank, of_rank in sorted(found.items())}


def _joined_track(files: list[TraceFile], rank: int, origin: float) -> RankTrack:
    """All windows of one rank as one track. origin: microseconds that become 0, counted from the earliest base."""
    base = min(file.base for file in files)
    track, *others = (track_of(file, rank, origin - (file.base - base) / 1e3) for file in files)
    for other in others:
        for name in ("spans", "messages", "steps", "allocations"):
            getattr(track, name).extend(getattr(other, name))
        track.unknown += other.unknown
        for key, (seconds, calls) in other.operators.items():
            track.operators[key][0] += seconds
            track.operators[key][1] += calls
    return track


def _correct_times(track: RankTrack, clock: RankClock) -> None:
    """Changes all times of a track to the first rank's clock."""
    if clock.offset == clock.drift == 0:
        return
    corrected = clock.to_first_clock
    for span in track.spans:  # spans are frozen, but nobody else has these yet, and copying all of them is slow
        vars(span).update(start=corrected(span.start), end=corrected(span.end))
    for message in track.messages:
        message.ready, message.end = corrected(message.ready), corrected(message.end)
    track.steps = [replace(step, start=corrected(step.start), end=corrected(step.end)) for step in track.steps]
    track.allocations = [replace(a, start=corrected(a.start), end=corrected(a.end)) for a in track.allocations]


def _steps(track: RankTrack) -> tuple[Step, ...]:
    """The steps that the trace names, or one step from its start to its end."""
    if track.steps:
        return tuple(track.steps)
    times = [(s.start, s.end) for s in track.spans] + [(message.ready, message.end) for message in track.messages]
    return (Step(number=-1, start=min(times)[0], end=max(end for _, end in times)),) if times else ()


def _timeline(tracks: Mapping[int, RankTrack], title: str) -> Timeline:
    """One timeline of all ranks. Each message is divided at the moment at which the last rank was ready."""
    spans = [span for track in tracks.values() for span in track.spans]
    for track in tracks.values():
        for message in track.messages:
            ready, op, end = message.ready, message.op, message.end
            # From here on bytes move. Before that, the rank waits for the last one.
            start = ready if message.last_ready is None else min(max(ready, message.last_ready), end)
            if start > ready:
                name = f"{op} ← {message.late_rank}"
                spans.append(Span.unchecked(track.rank, "waiting", name, "waiting", ready, start))
            fields = ("communication", op, "communication", start, end, message.num_bytes)
            spans.append(Span.unchecked(track.rank, *fields))
    allocations = [allocation for track in tracks.values() for allocation in track.allocations]
    return Timeline(spans=sorted(spans, key=attrgetter("start")), source="recorded", title=title, held=allocations)


def _notes(tracks: Mapping[int, RankTrack], world: int, clocks: Mapping[int, RankClock]) -> list[Words]:
    """Sentences about missing ranks, steps, clocks and messages."""
    notes = []
    if world > len(tracks):
        notes.append(words["note.ranks"].format(there=list(tracks), count=len(tracks), world=world))
    without_steps = [rank for rank, track in tracks.items() if not track.steps]
    if without_steps:
        notes.append(words["note.steps"].format(ranks=without_steps))
    # All but the first rank, whose clock counts, need a collective from which their clock can be estimated.
    own_clock = [rank for rank, clock in list(clocks.items())[1:] if not clock.num_collectives]
    if own_clock:
        notes.append(words["note.clocks"].format(ranks=own_clock))
    unknown = sum((track.unknown for track in tracks.values()), Counter())
    if unknown:
        kinds = [words["note.kind"].format(kind=kind, count=count) for kind, count in unknown.most_common()]
        notes.append(words["note.unknown"].format(kinds=kinds))
    if lacking := [rank for rank, track in tracks.items() if track.lacks_kernels]:
        notes.append(words["note.kernels"].format(ranks=lacking))
    behind = {
        rank: track.behind / (track.steps[-1].end - track.steps[0].start)
        for rank, track in tracks.items()
        if track.behind
    }
    if slow := [rank for rank, share in behind.items() if share > MUCH_BEHIND]:
        seconds = format_seconds(max(tracks[rank].behind for rank in slow))
        notes.append(words["note.behind"].format(ranks=slow, seconds=seconds))
    unmatched = sum(message.last_ready is None for track in tracks.values() for message in track.messages)
    if unmatched and len(tracks) > 1:
        notes.append(words["note.unmatched"].format(count=unmatched))
    return notes
