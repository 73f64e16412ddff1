"""The dials of chapter 06: choose a schedule, turn stages and micro-batches, and see the bubble and the memory move.

With `run` a button plays the same schedule on real ranks, and what they did stands below what was predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from helpers.draw.pipeline import pipeline_scene
from helpers.draw.scene import Scene
from helpers.predict.pipeline import held_activations, simulate
from helpers.records import Timeline
from helpers.schedules import ORDERS, Schedule, interleaved
from helpers.units import format_bytes, format_seconds
from helpers.widgets.dials import choice, dial
from helpers.widgets.runs import Runs
from helpers.widgets.stepper import SteppedExplorer

NAMES = {
    "naive": "naive",
    "GPipe": "gpipe",
    "1F1B": "one_f_one_b",
    "interleaved 1F1B": "interleaved",
    "zero bubble H1": "zb_h1",
    "zero bubble H2": "zb_h2",
}
RANKS, MICROBATCHES, CHUNKS = (2, 3, 4, 6, 8, 16), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (2, 3, 4)
MILLISECONDS = (1, 2, 5, 8, 10, 12, 15, 20, 30)
SENDS = (0, 0.2, 0.5, 1, 2, 5, 10)
INSTANTS = 48  # steps of the play head over a step


class PipelineExplorer(Runs, SteppedExplorer):
    """One step of a pipeline, predicted. Without a front end: `.schedule.value = "zb_h1"`, then `.sentence`.

    Dials: schedule (a name of `helpers.schedules.ORDERS`), ranks, micro-batches, chunks a rank (for interleaved; the
    layers of a rank are shared out, so a chunk takes 1 / chunks of the times), the milliseconds of forward and of the
    two halves of backward, of a send, and one rank that takes twice as long. step: 1 shows the whole step and the most
    that each rank holds; from 2 on a play head, and what is held there.
    activation_bytes: of one micro-batch on one rank. run: takes what `simulate` takes and returns the Timeline of a
    step that was run, such as `helpers.measure.emulate_pipeline.emulate_pipeline_step`.
    """

    TEXT = "[widget] PipelineExplorer: one step, with dials for schedule, ranks, micro-batches, chunks and times"
    RUN = "emulate_pipeline_step"

    def __init__(
        self,
        schedule: str = "one_f_one_b",
        *,
        activation_bytes: float = 1e9,
        run: Callable[..., Timeline] | None = None,
    ) -> None:
        self._activation_bytes, self._last = activation_bytes, None
        self.schedule = choice(list(NAMES.items()), schedule, "schedule", tooltip="who does what, in which order")
        self.ranks = dial(RANKS, 4, "ranks", tooltip="stages of the pipeline, one a rank")
        self.microbatches = dial(MICROBATCHES, 8, "micro-batches", tooltip="that the batch is cut into")
        self.chunks = dial(CHUNKS, 2, "chunks", tooltip="pieces of the model a rank holds, for interleaved 1F1B only")
        self.forward = _milliseconds("forward", "one micro-batch on one rank")
        self.backward_input = _milliseconds("backward: input", "gradient of the input of one rank's layers")
        self.backward_weight = _milliseconds("backward: weight", "gradient of the weights of one rank's layers")
        self.send = dial([(f"{n:g} ms", n) for n in SENDS], 0.5, "send", tooltip="until the next rank can use it")
        slow = [("none", "none"), ("the first", 0), ("the second", 1), ("the last", -1)]
        self.slow = choice(slow, "none", "a slow rank", tooltip="takes twice as long for everything")
        dials = (self.schedule, self.ranks, self.microbatches, self.chunks, self.forward, self.backward_input)
        dials = (*dials, self.backward_weight, self.send, self.slow)
        super().__init__(dials, controls=self._runs(run, "play this schedule on real ranks"))

    @property
    def order(self) -> Schedule:
        """The schedule of the dials as they stand. ValueError where interleaving does not divide the micro-batches."""
        ranks, m = self.ranks.value, self.microbatches.value
        if self.schedule.value == "interleaved":
            return interleaved(ranks * self.chunks.value, m, self.chunks.value)
        return ORDERS[self.schedule.value](ranks, m)

    @property
    def times(self) -> dict[str, float | list[float]]:
        """What `simulate` takes, in seconds: of each virtual stage."""
        order = self.order
        factors = [1.0] * order.num_ranks
        if self.slow.value != "none":
            factors[self.slow.value] = 2.0
        stages = [factors[stage % order.num_ranks] / order.num_chunks for stage in range(order.num_stages)]
        dials = {name: getattr(self, name).value for name in ("forward", "backward_input", "backward_weight")}
        return {
            **{name: [value * 1e-3 * factor for factor in stages] for name, value in dials.items()},
            "send": self.send.value * 1e-3,
        }

    @property
    def timeline(self) -> Timeline:
        """The predicted step of the dials as they stand."""
        if self._last is None or self._last[0] != self._setting:  # asked for several times in each redrawing
            self._last = self._setting, self._with_memory(simulate(self.order, **self.times))
        return self._last[1]

    @property
    def num_steps(self) -> int:
        return 1 + INSTANTS

    @property
    def instant(self) -> float | None:
        """Where the play head stands, in seconds; None while the whole step is shown."""
        return None if self.step.value == 1 else (self.step.value - 1.5) / INSTANTS * self.timeline.duration

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand."""
        name = self.schedule.label
        title = f"{name}, {self.ranks.value} ranks, {_count(self.microbatches.value, 'micro-batch', 'es')}"
        shown = [replace(timeline, title=title) for timeline in self._shown]
        return pipeline_scene(*shown, title=title, num_ranks=self.order.num_ranks, instant=self.instant)

    @property
    def sentence(self) -> str:
        """Bubble, by both conventions, whole step and memory; beside it what the run showed."""
        timeline, order = self.timeline, self.order
        bubble = f"Bubble {timeline.bubble_fraction:.1%} of the time ({timeline.bubble_over_ideal:.1%} over ideal time)"
        peak = max(map(order.in_flight, timeline.ranks)) / order.num_chunks
        holds = (
            f"a rank holds at most {_count(peak, 'micro-batch', 'es')}, {format_bytes(peak * self._activation_bytes)}"
        )
        ran = f" Emulated bubble {self.emulated.bubble_fraction:.1%}." if self.emulated else ""
        few = self.microbatches.value < self.ranks.value
        wait = " With fewer micro-batches than ranks some rank is always idle." if few else ""
        return f"{bubble}; the step takes {format_seconds(timeline.duration)}; {holds}.{ran}{wait}"

    @property
    def rows(self) -> list[dict[str, str]]:
        """What each rank does and holds in the step, predicted."""
        timeline, order = self.timeline, self.order
        works = {rank: timeline.busy(rank) for rank in timeline.ranks}
        held = {rank: order.in_flight(rank) / order.num_chunks for rank in timeline.ranks}
        return [
            {
                "rank": str(rank),
                "works": format_seconds(works[rank]),
                "waits": format_seconds(timeline.duration - works[rank]),
                "holds at most": _count(held[rank], "micro-batch", "es"),
                "activations": format_bytes(held[rank] * self._activation_bytes),
            }
            for rank in timeline.ranks
        ]

    @property
    def _arguments(self) -> tuple[tuple, dict]:
        return (self.order,), self.times

    @property
    def _shown(self) -> list[Timeline]:
        return [self.timeline, *([self._with_memory(self.emulated)] if self.emulated else [])]

    def _with_memory(self, timeline: Timeline) -> Timeline:
        num_bytes = self._activation_bytes / self.order.num_chunks
        return replace(timeline, held=held_activations(self.order, timeline.spans, num_bytes))


def _milliseconds(description: str, what: str):
    return dial([(f"{n} ms", n) for n in MILLISECONDS], 10, description, tooltip=what)


def _count(number: float, word: str, plural: str) -> str:
    return f"{number:.3g} {word}{plural if number != 1 else ''}"
