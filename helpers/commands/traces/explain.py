"""`explain`: what the traces of a run say, as numbers. `compare`: what differs between two. Words: screen.py."""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import itemgetter

from helpers.commands.traces.run import Run, uncollected
from helpers.commands.traces.stragglers import Straggler, find_straggler
from helpers.commands.traces.waterfall import PARTS, Segment, Waterfall
from helpers.learner.words import Words
from helpers.records import Span

MOST = 8  # gaps and operators that are kept


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A stretch in which a rank neither computed nor loaded nor waited. name: what it was in, or what came next."""

    rank: int
    step: int
    seconds: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """seconds and calls: per step and rank, without what it called. On a GPU the time of its kernels."""

    name: str
    shapes: str
    seconds: float
    calls: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Seconds are per step and, where no rank is named, the mean over the ranks.

    parts: part -> seconds; they add up to `seconds`. by_rank: the same of each rank. hidden: communication and waiting
    behind compute. waited_for: rank -> what each of the others waited for it. path: the critical path across ranks,
    (rank, part, seconds). peak: rank -> most bytes that the window's own allocations held; empty where nobody looked.
    """

    title: str
    ranks: tuple[int, ...]
    world_size: int
    steps: tuple[int, ...]
    seconds: float
    parts: Mapping[str, float]
    by_rank: Mapping[int, Mapping[str, float]]
    hidden: float
    waited_for: Mapping[int, float]
    straggler: Straggler | None
    path: tuple[tuple[int, str, float], ...]
    gaps: tuple[Gap, ...]
    operators: tuple[Operator, ...]
    clocks: Mapping[int, tuple[float, float]]  # rank -> seconds and seconds per second that its clock was ahead
    spread: float  # seconds within which the clocks are known
    peak: Mapping[int, int]
    on_gpu: bool
    notes: tuple[Words, ...]

    @property
    def exposed(self) -> float:
        """Communication, with its waiting, that nothing hides."""
        return self.parts["communication"] + self.parts["waiting"]

    def as_dict(self) -> dict:
        """For JSON: sentences in the language that is read."""
        return asdict(self) | {"exposed": self.exposed, "notes": [str(note) for note in self.notes]}


@uncollected()
def explain(run: Run) -> Explanation:
    """Raises ValueError, as a sentence, where the ranks' steps have nothing in common."""
    fall = Waterfall.of(run)
    by_rank = {
        rank: {part: statistics.fmean(step[part] for step in table) for part in PARTS}
        for rank, table in fall.tables.items()
    }
    parts = {part: statistics.fmean(row[part] for row in by_rank.values()) for part in PARTS}
    others, count = max(1, len(run.ranks) - 1), len(fall.steps)
    waited_for = {rank: sum(row) / others / count for rank, row in fall.waited_for.items()}
    path = sorted(fall.path().items(), key=lambda item: -item[1])
    return Explanation(
        title=run.timeline.title, ranks=run.ranks, world_size=run.world_size, steps=fall.steps,
        seconds=sum(parts.values()), parts=parts, by_rank=by_rank, hidden=fall.hidden(), waited_for=waited_for,
        straggler=find_straggler(fall), path=tuple((*key, seconds) for key, seconds in path),
        gaps=_gaps(run, fall), operators=_operators(run),
        clocks={rank: (clock.offset, clock.drift) for rank, clock in run.clocks.items()},
        spread=max((clock.spread or 0.0 for clock in run.clocks.values()), default=0.0),
        peak=_peaks(run), on_gpu=run.on_gpu, notes=run.notes,
    )  # fmt: skip


def compare(one: Explanation, other: Explanation) -> dict[str, tuple[float, float]]:
    """What both have, first one's and other's seconds per step: the step, its parts, and each operator by name."""
    rows = {"step": (one.seconds, other.seconds)}
    rows |= {part: (one.parts[part], other.parts[part]) for part in PARTS}
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for place, each in enumerate((one, other)):
        for operator in each.operators:
            names[operator.name][place] += operator.seconds
    changed = sorted(names.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:MOST]
    return rows | {name: (before, after) for name, (before, after) in changed}


def _gaps(run: Run, fall: Waterfall) -> tuple[Gap, ...]:
    gaps = ((one.seconds, rank, one) for rank, row in fall.segments.items() for one in row if one.part == "host")
    longest = heapq.nlargest(MOST, gaps, key=itemgetter(0))
    hosts = [one for one in run.timeline.spans if one.lane == "host" and one.name]
    return tuple(
        Gap(rank=rank, step=run.steps[rank][one.step].number, seconds=seconds, name=_inside(hosts, rank, one))
        for seconds, rank, one in longest
    )


def _inside(hosts: list[Span], rank: int, gap: Segment) -> str:
    """What the host was in for most of a gap, by name."""
    within = [one for one in hosts if one.start < gap.end and one.end > gap.start and one.rank == rank]
    over = {one.name: min(one.end, gap.end) - max(one.start, gap.start) for one in within}
    return max(over, key=over.get, default="")


def _operators(run: Run) -> tuple[Operator, ...]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for table in run.operators.values():
        for key, (seconds, calls) in table.items():
            sums[key][0] += seconds
            sums[key][1] += calls
    turns = sum(map(len, run.steps.values())) or 1
    made = (
        Operator(name=name, shapes=shapes, seconds=seconds / turns, calls=calls / turns)
        for (name, shapes), (seconds, calls) in sums.items()
    )
    return tuple(sorted(made, key=lambda one: -one.seconds)[: 4 * MOST])


def _peaks(run: Run) -> dict[int, int]:
    peaks: dict[int, int] = {}
    changes = [(one.start, one.num_bytes, one.rank) for one in run.timeline.held]
    changes += [(one.end, -one.num_bytes, one.rank) for one in run.timeline.held]
    now: dict[int, int] = defaultdict(int)
    for _, num_bytes, rank in sorted(changes):
        now[rank] += num_bytes
        peaks[rank] = max(peaks.get(rank, 0), now[rank])
    return peaks
