"""Provides TraceExplorer, which shows the profiler traces of a run, step by step and rank by rank.

A trace has a timeline of each rank, divided into steps, and each step into PARTS such as compute, communication and
waiting. The straggler is the rank that the others wait for; one of the parts that are CAUSES then takes it longer than
the others. The explorer says which rank this is, and why. Dials choose the step and the part of it to draw. Chapter 10
uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from helpers.commands.traces import TraceRun, read
from helpers.commands.traces.example import example
from helpers.commands.traces.waterfall import PARTS, Waterfall, excess_of, find_straggler
from helpers.draw.scene import Scene
from helpers.draw.timelines import trace_scene
from helpers.learner.words import book
from helpers.quantities.units import format_seconds
from helpers.widgets.controls import dial
from helpers.widgets.explorer import Explorer, Rows

trace_words = book("traces")  # what a reader sees, by name, in the learner's language: learner/words/traces.yaml
words = trace_words.section("viewer")  # those of this explorer alone
LENGTHS = (5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02)  # of the part that is drawn, in steps
BEGINNINGS = [number / 20 for number in range(20)]  # fractions of a step
NUM_SHOWN_RANKS = 4


class TraceExplorer(Explorer):
    """The steps of a run, rank by rank. Without a front end: `.step.value, .stretch.value = 3, 0.2`, then `.text`.

    trace: a recorded run, or what `helpers.commands.traces.read` takes; by default an example with made-up seconds.
    ranks: those to draw; by default the first four, with the one that is waited for. step: its number; by default a
    slow one. Dials: step, stretch (length of the part that is drawn, in steps), begins (its start within the step).
    Raises ValueError for a trace that cannot be read, and for ranks and steps that it does not have.
    """

    TEXT = "[widget] TraceExplorer: a run's traces step by step, rank by rank, in lanes; who waits for whom, how long"
    STRETCHES_DIALS = True

    def __init__(
        self, trace: TraceRun | str | Path | None = None, *, ranks: Sequence[int] = (), step: int | None = None
    ) -> None:
        run = example(words("example")) if trace is None else trace  # the argument of `example` is its title
        self.run = run if isinstance(run, TraceRun) else read(run)
        self._waterfall = Waterfall.of(self.run)  # the seconds of each part of each step
        self._tables = self._waterfall.tables  # rank -> for each step a dict from each of PARTS to its seconds
        # rank -> for each step the sum of the seconds for which each other rank waits for it.
        self._waited_for = self._waterfall.waited_for
        # The rank that is waited for most, and its slow steps; None where no rank stands out.
        found = find_straggler(self._waterfall)
        self.ranks = tuple(ranks) or self._default_ranks(found.rank if found else None)
        unknown = set(self.ranks) - set(self.run.ranks)
        if unknown:
            raise ValueError(words("no_rank", ranks=sorted(unknown), there=self.run.ranks))
        # A trace that names no steps is one step with the number -1.
        steps = [(str(number) if number >= 0 else words("whole"), number) for number in self._waterfall.steps]
        slow = found.steps if found else self._waterfall.steps
        first = slow[len(slow) // 2]
        self.step = dial(steps, first if step is None else step, words("step"), tooltip=words("which"))
        # A part of less than a step is called "1/5 step", where `of` is the 5.
        parts = [(words("steps" if size >= 1 else "part", size=size, of=round(1 / size)), size) for size in LENGTHS]
        self.stretch = dial(parts, 1, words("stretch"), tooltip=words("how_much"))
        self.begins = dial(BEGINNINGS, 0.0, words("begins"), label="{:.0%}".format, tooltip=words("where"))
        super().__init__((self.step, self.stretch, self.begins))

    def _default_ranks(self, straggler: int | None) -> tuple[int, ...]:
        """The first ranks; the one that is waited for takes the place of the last of them."""
        ranks = self.run.ranks[:NUM_SHOWN_RANKS]
        return ranks if straggler is None or straggler in ranks else (*ranks[:-1], straggler)

    @property
    def _step_index(self) -> int:
        """The place of the chosen step in the lists that have an entry per step."""
        return self._waterfall.steps.index(self.step.value)

    def _bounds(self, number: int) -> tuple[float, float]:
        """When the first rank starts a step and when the last one ends it, in seconds."""
        steps = [step for rank in self.ranks for step in self.run.steps[rank] if step.number == number]
        return min(step.start for step in steps), max(step.end for step in steps)

    @property
    def window(self) -> tuple[float, float]:
        """The part of the run that is drawn: start and end, in seconds."""
        start, end = self._bounds(self.step.value)
        begins = start + self.begins.value * (end - start)
        # The part may reach into later steps, but not beyond the end of the run.
        return begins, min(begins + self.stretch.value * (end - start), max(end, self.run.timeline.end))

    @property
    def straggler(self) -> tuple[int, float]:
        """The rank that the others wait for most in this step, and for how many seconds each of them waits."""
        others = max(1, len(self.run.ranks) - 1)
        rank = max(self._waited_for, key=lambda rank: self._waited_for[rank][self._step_index])
        return rank, self._waited_for[rank][self._step_index] / others

    @property
    def scene(self) -> Scene:
        """The lanes of the chosen ranks in the window."""
        start, end = self.window
        # Where each step begins, and its name. A trace that names no steps has none to mark.
        numbered = {rank: [step for step in self.run.steps[rank] if step.number >= 0] for rank in self.ranks}
        steps = {
            rank: [(step.start, words("name", step=step.number)) for step in row] for rank, row in numbered.items()
        }
        what = {"title": self.run.timeline.title, "step": self._name, "count": len(self._waterfall.steps)}
        title = words("title", **what, shown=format_seconds(end - start))
        return trace_scene(
            self.run.timeline, start=start, end=end, ranks=self.ranks, steps=steps, title=title, summary=self.sentence
        )

    @property
    def _name(self) -> str:
        """The chosen step in words."""
        return words("name", step=self.step.value) if self.step.value >= 0 else words("whole")

    @property
    def sentence(self) -> str:
        """How long the step takes, which rank is waited for and why, exposed communication, and notes on the trace."""
        rows = {rank: table[self._step_index] for rank, table in self._tables.items()}
        mean = {part: statistics.fmean(row[part] for row in rows.values()) for part in PARTS}
        exposed, waiting = mean["communication"] + mean["waiting"], mean["waiting"]
        takes = words("takes", step=self._name, seconds=format_seconds(sum(mean.values())))
        if self._waterfall.matched:
            shares = words("exposed", exposed=format_seconds(exposed), waiting=format_seconds(waiting))
            said = [self._cause_sentence(), shares]
        else:
            said = [words("unmatched", exposed=format_seconds(exposed))]
        return words("sentence", said=[takes, *said, *map(str, self.run.notes)])

    def _cause_sentence(self) -> str:
        """Which rank the others wait for, and the part of its step that takes longest compared with the others."""
        rank, seconds = self.straggler
        if not seconds:
            return words("nobody")
        extra = {part: excess_of(self._tables, rank, part)[self._step_index] for part in self._waterfall.causes}
        cause = max(extra, key=extra.get)
        more = {"part": trace_words(f"part.{cause}"), "more": format_seconds(max(0.0, extra[cause]))}
        return words("late", rank=rank, seconds=format_seconds(seconds), **more)

    @property
    def rows(self) -> Rows:
        """One row per rank, in milliseconds: the parts of its step, their sum, and how long the others wait for it."""
        others, index = max(1, len(self.run.ranks) - 1), self._step_index
        return [
            {words("column.rank"): str(rank)}
            | {trace_words(f"part.{part}"): _ms(table[index][part]) for part in PARTS}
            | {trace_words("part.step"): _ms(sum(table[index].values()))}
            | {words("column.waited_for"): _ms(self._waited_for[rank][index] / others)}
            for rank, table in self._tables.items()
        ]


def _ms(seconds: float) -> str:
    """Milliseconds as text, for seconds."""
    return f"{1e3 * seconds:,.1f}" if seconds >= 1e-3 or not seconds else f"{1e3 * seconds:.2g}"
