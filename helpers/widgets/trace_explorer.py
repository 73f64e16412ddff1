"""The dials of chapter 10: a step of a run's traces, how much of it and from where; four ranks, and who waits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from helpers.commands.traces import Run, read
from helpers.commands.traces.example import example
from helpers.commands.traces.stragglers import CAUSES, beyond, find_straggler
from helpers.commands.traces.waterfall import PARTS, Waterfall
from helpers.draw.scene import Scene
from helpers.draw.timelines import trace_scene
from helpers.learner.words import book
from helpers.quantities.units import format_seconds
from helpers.widgets.dials import dial
from helpers.widgets.explorer import Explorer, Rows

SAYS = book("traces")
say = SAYS.section("viewer")
STRETCHES = (5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02)  # steps
PLACES = [number / 20 for number in range(20)]  # parts of a step
SHOWN = 4  # ranks
_DIAL = 300  # pixels at least: two beside each other in a narrow window


class TraceExplorer(Explorer):
    """The steps of a run, rank by rank. Without a front end: `.step.value, .stretch.value = 3, 0.2`, then `.text`.

    trace: a Run, or what `helpers.commands.traces.read` takes; without one, an example with made-up seconds. ranks: those that
    are drawn; the first four and the one that is waited for, if none are given. step: its number; one of the slow ones,
    if none is given. Dials: step, stretch (in steps), begins (at which part of the step).
    ValueError, as a sentence, for a trace that cannot be read, and for ranks and steps that it has not.
    """

    TEXT = "[widget] TraceExplorer: a run's traces step by step, rank by rank, in lanes; who waits for whom, how long"

    def __init__(
        self, trace: Run | str | Path | None = None, *, ranks: Sequence[int] = (), step: int | None = None
    ) -> None:
        self.run = example(say("example")) if trace is None else trace if isinstance(trace, Run) else read(trace)
        self._fall = Waterfall.of(self.run)
        self._tables = self._fall.tables
        self._waits, found = self._fall.waited_for, find_straggler(self._fall)
        self.ranks = tuple(ranks) or self._first(found.rank if found else None)
        if unknown := set(self.ranks) - set(self.run.ranks):
            raise ValueError(say("no_rank", ranks=sorted(unknown), there=self.run.ranks))
        steps = [(str(number) if number >= 0 else say("whole"), number) for number in self._fall.steps]
        slow = found.steps if found else self._fall.steps
        first = slow[len(slow) // 2]
        self.step = dial(steps, first if step is None else step, say("step"), tooltip=say("which"))
        parts = [(say("steps" if size >= 1 else "part", size=size, of=round(1 / size)), size) for size in STRETCHES]
        self.stretch = dial(parts, 1, say("stretch"), tooltip=say("how_much"))
        self.begins = dial([(f"{part:.0%}", part) for part in PLACES], 0.0, say("begins"), tooltip=say("where"))
        super().__init__((self.step, self.stretch, self.begins))
        for each in self.dials:
            each.layout.width = "auto"
        self.children[0].layout.grid_template_columns = f"repeat(auto-fit, minmax({_DIAL}px, 1fr))"

    def _first(self, straggler: int | None) -> tuple[int, ...]:
        ranks = self.run.ranks[:SHOWN]
        return ranks if straggler is None or straggler in ranks else (*ranks[:-1], straggler)

    @property
    def _place(self) -> int:
        return self._fall.steps.index(self.step.value)

    def _bounds(self, number: int) -> tuple[float, float]:
        """From the first rank's start of a step to the last one's end, seconds."""
        steps = [step for rank in self.ranks for step in self.run.steps[rank] if step.number == number]
        return min(step.start for step in steps), max(step.end for step in steps)

    @property
    def window(self) -> tuple[float, float]:
        """The stretch that is shown, in seconds of the run."""
        start, end = self._bounds(self.step.value)
        begins = start + self.begins.value * (end - start)
        return begins, min(begins + self.stretch.value * (end - start), max(end, self.run.timeline.end))

    @property
    def late(self) -> tuple[int, float]:
        """The rank that is waited for most in this step, and how long each of the others waits for it, seconds."""
        others = max(1, len(self.run.ranks) - 1)
        rank = max(self._waits, key=lambda one: self._waits[one][self._place])
        return rank, self._waits[rank][self._place] / others

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand."""
        start, end = self.window
        numbered = {rank: [step for step in self.run.steps[rank] if step.number >= 0] for rank in self.ranks}
        steps = {rank: [(step.start, say("name", step=step.number)) for step in row] for rank, row in numbered.items()}
        what = {"title": self.run.timeline.title, "step": self._name, "count": len(self._fall.steps)}
        title = say("title", **what, shown=format_seconds(end - start))
        return trace_scene(
            self.run.timeline, start=start, end=end, ranks=self.ranks, steps=steps, title=title, summary=self.sentence
        )

    @property
    def _name(self) -> str:
        return say("name", step=self.step.value) if self.step.value >= 0 else say("whole")

    @property
    def sentence(self) -> str:
        """How long the step takes, who is waited for and why, the exposed communication, and what the trace lacks."""
        rows = {rank: table[self._place] for rank, table in self._tables.items()}
        mean = {part: statistics.fmean(row[part] for row in rows.values()) for part in PARTS}
        exposed, waiting = mean["communication"] + mean["waiting"], mean["waiting"]
        told = [say("takes", step=self._name, seconds=format_seconds(sum(mean.values()))), self._blame()]
        told.append(say("exposed", exposed=format_seconds(exposed), waiting=format_seconds(waiting)))
        return say("sentence", said=[*told, *map(str, self.run.notes)])

    def _blame(self) -> str:
        rank, seconds = self.late
        if not seconds:
            return say("nobody")
        longer = {part: beyond(self._tables, rank, part)[self._place] for part in CAUSES}
        cause = max(longer, key=longer.get)
        more = {"part": SAYS(f"part.{cause}"), "more": format_seconds(max(0.0, longer[cause]))}
        return say("late", rank=rank, seconds=format_seconds(seconds), **more)

    @property
    def rows(self) -> Rows:
        """Each rank's step, whose parts add up to it, and how long each other rank waits for it: milliseconds."""
        others, place = max(1, len(self.run.ranks) - 1), self._place
        return [
            {say("column.rank"): str(rank)}
            | {SAYS(f"part.{part}"): _ms(table[place][part]) for part in PARTS}
            | {SAYS("part.step"): _ms(sum(table[place].values()))}
            | {say("column.waited_for"): _ms(self._waits[rank][place] / others)}
            for rank, table in self._tables.items()
        ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds >= 1e-3 or not seconds else f"{1e3 * seconds:.2g}"
