"""Explains the traces of a run as numbers: the parts of a step, gaps, operators, the straggler and the critical path.

`explain` makes an Explanation of one run and `compare` puts two of them side by side. `cli.py` writes them as text. The
parts of a step (PARTS) are compute, communication, waiting, data loading and host time. A straggler is a rank that the
others wait for. The critical path is the chain of work that decides how long the steps take.
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate

from helpers.commands.traces.run import TraceRun
from helpers.commands.traces.waterfall import PARTS, Segment, Straggler, Waterfall, find_straggler
from helpers.learner.words import Words
from helpers.records import Span
from helpers.records.timeline import garbage_collector_paused

MAX_GAPS, MAX_CHANGED, MAX_OPERATORS = 8, 8, 32  # how many an explanation lists; CHANGED: operators of a comparison


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A stretch in which a rank neither computed nor loaded data nor waited for a message.

    step: the number of the step. name: of the host's span that covered most of the gap. A span between two operators is
    named "→" and the next operator.
    """

    rank: int
    step: int
    seconds: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator with these shapes. seconds and calls are per step and rank.

    The seconds exclude the operators that it called. On a GPU they are those of its kernels.
    """

    name: str
    shapes: str
    seconds: float
    calls: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What the traces of a run say. Seconds are per step and, where no rank is named, the mean over the ranks.

    ranks: those whose traces were read. world_size: of the run. steps: the numbers of the steps that all ranks have.
    seconds: of a step. parts: part -> seconds; they add up to `seconds`. by_rank: rank -> its parts.
    hidden: communication and waiting behind compute or data loading.
    matched: which share of the messages' time is of messages whose part on the other ranks was found; 1 without any.
    waited_for: rank -> how long each of the others waits for it.
    path: the critical path across ranks, as (rank, part, seconds).
    clocks: rank -> offset in seconds and drift in seconds per second. spread: how exactly they are known, seconds.
    peak: rank -> the most bytes that were allocated in the window at one time; empty where memory was not profiled.
    on_gpu: whether the traces have kernels. notes: sentences about what the files lack.
    """

    title: str
    ranks: tuple[int, ...]
    world_size: int
    steps: tuple[int, ...]
    seconds: float
    parts: Mapping[str, float]
    by_rank: Mapping[int, Mapping[str, float]]
    hidden: float
    matched: float
    waited_for: Mapping[int, float]
    straggler: Straggler | None
    path: tuple[tuple[int, str, float], ...]
    gaps: tuple[Gap, ...]
    operators: tuple[Operator, ...]
    clocks: Mapping[int, tuple[float, float]]
    spread: float
    peak: Mapping[int, int]
    on_gpu: bool
    notes: tuple[Words, ...]

    @property
    def exposed(self) -> float:
        """Communication and waiting that no compute hides."""
        return self.parts["communication"] + self.parts["waiting"]

    @property
    def knows_waiting(self) -> bool:
        """Whether any message met its other side, so that waiting can be told from moving bytes."""
        return self.matched > 0

    @property
    def has_steps(self) -> bool:
        """Whether the trace names its steps; if not, the whole trace counts as one step with the number -1."""
        return self.steps != (-1,)

    def as_dict(self) -> dict:
        """For JSON, with the notes in the reader's language, and only the operators that take longest."""
        operators = [asdict(operator) for operator in self.operators[:MAX_OPERATORS]]
        more = {"operators": operators, "operators_left_out": len(self.operators) - len(operators)}
        return (
            asdict(replace(self, operators=())) | more | {"exposed": self.exposed, "notes": list(map(str, self.notes))}
        )


@garbage_collector_paused()  # it makes very many objects and no reference cycles
def explain(run: TraceRun) -> Explanation:
    """The explanation of a run. Raises ValueError, with a sentence, where the ranks have no step in common."""
    waterfall = Waterfall.of(run)
    by_rank = {
        rank: {part: statistics.fmean(step[part] for step in table) for part in PARTS}
        for rank, table in waterfall.tables.items()
    }
    parts = {part: statistics.fmean(row[part] for row in by_rank.values()) for part in PARTS}
    num_others, num_steps = max(1, len(run.ranks) - 1), len(waterfall.steps)
    waited_for = {rank: sum(row) / num_others / num_steps for rank, row in waterfall.waited_for.items()}
    path = sorted(waterfall.critical_path().items(), key=lambda item: -item[1])
    return Explanation(
        title=run.timeline.title, ranks=run.ranks, world_size=run.world_size, steps=waterfall.steps,
        seconds=sum(parts.values()), parts=parts, by_rank=by_rank, hidden=waterfall.hidden(), waited_for=waited_for,
        matched=waterfall.matched, straggler=find_straggler(waterfall),
        path=tuple((*key, seconds) for key, seconds in path),
        gaps=_gaps(run, waterfall), operators=_operators(run),
        clocks={rank: (clock.offset, clock.drift) for rank, clock in run.clocks.items()},
        spread=max((clock.spread or 0.0 for clock in run.clocks.values()), default=0.0),
        peak=_peaks(run), on_gpu=run.on_gpu, notes=run.notes,
    )  # fmt: skip


def compare(one: Explanation, other: Explanation) -> dict[str, tuple[float, float]]:
    """Name -> seconds per step in the first and in the second run.

    The names are "step", the parts, and the operators that changed most.
    """
    rows = {"step": (one.seconds, other.seconds)} | {part: (one.parts[part], other.parts[part]) for part in PARTS}
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for column, explanation in enumerate((one, other)):
        for operator in explanation.operators:
            seconds[operator.name][column] += operator.seconds
    changed = sorted(seconds.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:MAX_CHANGED]
    return rows | {name: (before, after) for name, (before, after) in changed}


def _gaps(run: TraceRun, waterfall: Waterfall) -> tuple[Gap, ...]:
    """The longest stretches that belong to the host."""
    gaps = ((rank, segment) for rank, row in waterfall.segments.items() for segment in row if segment.part == "host")
    longest = heapq.nlargest(MAX_GAPS, gaps, key=lambda gap: gap[1].seconds)
    host_spans = [span for span in run.timeline.spans if span.lane == "host" and span.name]
    found = []
    for rank, gap in longest:
        number, name = run.steps[rank][gap.step].number, _host_name(host_spans, rank, gap)
        found.append(Gap(rank=rank, step=number, seconds=gap.seconds, name=name))
    return tuple(found)


def _host_name(host_spans: list[Span], rank: int, gap: Segment) -> str:
    """The name of the host span that covers most of a gap."""
    overlapping = [span for span in host_spans if span.start < gap.end and span.end > gap.start and span.rank == rank]
    seconds = {span.name: min(span.end, gap.end) - max(span.start, gap.start) for span in overlapping}
    return max(seconds, key=seconds.get, default="")


def _operators(run: TraceRun) -> tuple[Operator, ...]:
    """All operators that take time, the longest first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])  # (name, shapes) -> [seconds, calls]
    for table in run.operators.values():
        for key, (seconds, calls) in table.items():
            sums[key][0] += seconds
            sums[key][1] += calls
    num_steps = sum(map(len, run.steps.values())) or 1  # of all ranks together
    longest = sorted(((key, sums) for key, sums in sums.items() if sums[0]), key=lambda item: -item[1][0])
    return tuple(
        Operator(name=name, shapes=shapes, seconds=seconds / num_steps, calls=calls / num_steps)
        for (name, shapes), (seconds, calls) in longest
    )


def _peaks(run: TraceRun) -> dict[int, int]:
    """Rank -> its largest sum of live allocations, in bytes."""
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for holding in run.timeline.held:
        changes[holding.rank] += [(holding.start, holding.num_bytes), (holding.end, -holding.num_bytes)]
    return {rank: max(accumulate(num_bytes for _, num_bytes in sorted(row))) for rank, row in changes.items()}
