"""The dials of chapter 06: choose a schedule, turn stages and micro-batches, and see the bubble and the memory move.

With `run` a button plays the same schedule on real ranks, and what they did stands below what was predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from helpers.draw.pipeline import pipeline_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.time.pipeline import held_activations, simulate
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import Timeline
from helpers.schedules import ORDERS, Schedule, interleaved
from helpers.widgets.dials import choice, dial
from helpers.widgets.runs import Runs
from helpers.widgets.stepper import SteppedExplorer

say = book("timelines").section("pipeline")
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
    step that was run, such as `helpers.observe.emulate.emulate_pipeline_step`.
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
        self.schedule = choice(
            [(say(f"names.{name}"), name) for name in ORDERS], schedule, say("schedule"), tooltip=say("who")
        )
        self.ranks = dial(RANKS, 4, say("ranks"), tooltip=say("stages"))
        self.microbatches = dial(MICROBATCHES, 8, say("microbatches"), tooltip=say("cut"))
        self.chunks = dial(CHUNKS, 2, say("chunks"), tooltip=say("pieces"))
        self.forward = _milliseconds("forward")
        self.backward_input = _milliseconds("input")
        self.backward_weight = _milliseconds("weight")
        self.send = dial([(f"{n:g} ms", n) for n in SENDS], 0.5, say("send"), tooltip=say("until"))
        slow = [(say(f"slows.{rank}"), rank) for rank in ("none", 0, 1, -1)]
        self.slow = choice(slow, "none", say("slow"), tooltip=say("twice"))
        dials = (self.schedule, self.ranks, self.microbatches, self.chunks, self.forward, self.backward_input)
        dials = (*dials, self.backward_weight, self.send, self.slow)
        super().__init__(dials, controls=self._runs(run, say("play")))

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
        name = say(f"names.{self.schedule.value}")
        title = say("title", name=name, ranks=self.ranks.value, count=self.microbatches.value)
        shown = [replace(timeline, title=title) for timeline in self._shown]
        return pipeline_scene(*shown, title=title, num_ranks=self.order.num_ranks, instant=self.instant)

    @property
    def sentence(self) -> str:
        """Bubble, by both conventions, whole step and memory; beside it what the run showed."""
        timeline, order = self.timeline, self.order
        bubble = {"bubble": timeline.bubble_fraction, "ideal": timeline.bubble_over_ideal}
        peak = max(map(order.in_flight, timeline.ranks)) / order.num_chunks
        holds = {"peak": say("count", count=peak), "size": format_bytes(peak * self._activation_bytes)}
        ran = say("ran", bubble=self.emulated.bubble_fraction) if self.emulated else ""
        few = say("few") if self.microbatches.value < self.ranks.value else ""
        return say("sentence", **bubble, whole=format_seconds(timeline.duration), **holds, ran=ran, few=few)

    @property
    def rows(self) -> list[dict[str, str]]:
        """What each rank does and holds in the step, predicted."""
        timeline, order = self.timeline, self.order
        works = {rank: timeline.busy(rank) for rank in timeline.ranks}
        held = {rank: order.in_flight(rank) / order.num_chunks for rank in timeline.ranks}
        return [
            {
                "rank": str(rank),
                say("works"): format_seconds(works[rank]),
                say("waits"): format_seconds(timeline.duration - works[rank]),
                say("holds"): say("count", count=held[rank]),
                say("activations"): format_bytes(held[rank] * self._activation_bytes),
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


def _milliseconds(name: str):
    return dial([(f"{n} ms", n) for n in MILLISECONDS], 10, say(name), tooltip=say(f"of_{name}"))
