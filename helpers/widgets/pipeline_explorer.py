"""Provides PipelineExplorer: the timeline, the bubble and the activation memory of any pipeline schedule.

Dials choose the schedule, ranks, micro-batches and times. With `run`, a button emulates the same schedule on real ranks
and draws it below the prediction. Chapter 06 uses it.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture. SteppedExplorer adds buttons and a slider `step`, from 1 to `num_steps`; RunButton adds a
button that calls `run`, and keeps what it returned as `emulated`.
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
from helpers.widgets.controls import Control, choice, dial
from helpers.widgets.explorer import RunButton, SteppedExplorer

words = book("timelines").section("pipeline")  # the texts that are shown, by name: learner/words/timelines.yaml
RANKS, MICROBATCHES, CHUNKS = (2, 3, 4, 6, 8, 16), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (2, 3, 4)
# Values of the dials: milliseconds of forward and of each half of backward, and milliseconds of a send.
MILLISECONDS = (1, 2, 5, 8, 10, 12, 15, 20, 30)
SENDS = (0, 0.2, 0.5, 1, 2, 5, 10)
INSTANTS = 48  # positions of the play head within a training step


class PipelineExplorer(RunButton, SteppedExplorer):
    """One step of a pipeline, predicted. Without a front end: `.schedule.value = "zb_h1"`, then `.sentence`.

    Dials: schedule (a name of `helpers.schedules.ORDERS`), ranks, micro-batches, chunks per rank (for interleaved; they
    divide the layers of a rank, so a chunk takes 1 / chunks of the times), the milliseconds of forward, of the two
    halves of backward (gradients of the inputs, and of the weights) and of a send, and one rank that takes twice as
    long. step: 1 shows the whole step and the peak memory of each rank; from 2 on a play head, and the memory at that
    instant.
    activation_bytes: of one micro-batch on one rank. run: takes what `simulate` takes and returns the Timeline of a
    step that was run, such as `helpers.observe.emulate.emulate_pipeline_step`.
    """

    TEXT = "[widget] PipelineExplorer: one step, with dials for schedule, ranks, micro-batches, chunks and times"
    RUN_EXAMPLE = "emulate_pipeline_step"
    num_steps = 1 + INSTANTS

    def __init__(
        self,
        schedule: str = "one_f_one_b",
        *,
        activation_bytes: float = 1e9,
        run: Callable[..., Timeline] | None = None,
    ) -> None:
        self._activation_bytes = activation_bytes
        self._cached: tuple[tuple, Timeline] | None = None  # the dials' values, and the step predicted for them
        # The texts named as tooltips say in a few words what each dial means.
        names = [(words(f"names.{name}"), name) for name in ORDERS]
        self.schedule = choice(names, schedule, words("schedule"), tooltip=words("who"))
        self.ranks = dial(RANKS, 4, words("ranks"), tooltip=words("stages"))
        self.microbatches = dial(MICROBATCHES, 8, words("microbatches"), tooltip=words("cut"))
        self.chunks = dial(CHUNKS, 2, words("chunks"), tooltip=words("pieces"))
        self.forward = _milliseconds("forward")
        self.backward_input = _milliseconds("input")
        self.backward_weight = _milliseconds("weight")
        self.send = dial(SENDS, 0.5, words("send"), label="{:g} ms".format, tooltip=words("until"))
        slow = [(words(f"slows.{rank}"), rank) for rank in ("none", 0, 1, -1)]  # -1 is the last rank
        self.slow = choice(slow, "none", words("slow"), tooltip=words("twice"))
        dials = (self.schedule, self.ranks, self.microbatches, self.chunks, self.forward, self.backward_input)
        dials = (*dials, self.backward_weight, self.send, self.slow)
        super().__init__(dials, controls=self._run_controls(run, words("play")))

    def _draw(self, turned: Control | None = None) -> None:
        """First switch off the dial for chunks where the schedule has none."""
        self.chunks.disabled = self.schedule.value != "interleaved"
        super()._draw(turned)

    @property
    def order(self) -> Schedule:
        """The schedule of the dials. Raises ValueError where the ranks do not divide interleaved micro-batches."""
        ranks, m = self.ranks.value, self.microbatches.value  # m: the number of micro-batches
        if self.schedule.value == "interleaved":
            return interleaved(ranks * self.chunks.value, m, self.chunks.value)
        return ORDERS[self.schedule.value](ranks, m)

    @property
    def times(self) -> dict[str, float | list[float]]:
        """The times that `simulate` takes, in seconds, for each virtual stage."""
        order = self.order
        factors = [1.0] * order.num_ranks
        if self.slow.value != "none":
            factors[self.slow.value] = 2.0
        stages = [factors[stage % order.num_ranks] / order.num_chunks for stage in range(order.num_stages)]
        dials = {name: getattr(self, name).value for name in ("forward", "backward_input", "backward_weight")}
        times = {name: [value * 1e-3 * factor for factor in stages] for name, value in dials.items()}
        return times | {"send": self.send.value * 1e-3}

    @property
    def timeline(self) -> Timeline:
        """The predicted step for the dials' values."""
        if self._cached is None or self._cached[0] != self._setting:  # it is needed several times per drawing
            self._cached = self._setting, self._with_memory(simulate(self.order, **self.times))
        return self._cached[1]

    @property
    def instant(self) -> float | None:
        """The position of the play head in seconds; None while the whole step is shown."""
        if self.step.value == 1:
            return None
        return (self.step.value - 1.5) / INSTANTS * self.timeline.duration  # the middle of one of INSTANTS equal parts

    @property
    def scene(self) -> Scene:
        """The predicted step, and below it the emulated one."""
        name = words(f"names.{self.schedule.value}")
        title = words("title", name=name, ranks=self.ranks.value, count=self.microbatches.value)
        timelines = [self.timeline, *([self._with_memory(self.emulated)] if self.emulated else [])]
        shown = [replace(timeline, title=title) for timeline in timelines]
        return pipeline_scene(*shown, title=title, num_ranks=self.order.num_ranks, instant=self.instant)

    @property
    def sentence(self) -> str:
        """The bubble, the step's duration and memory, and what the run on ranks showed.

        The bubble is given by both conventions: idle time as a share of all time, and of the time without any bubble.
        """
        timeline, order = self.timeline, self.order
        bubble = {"bubble": timeline.bubble_fraction, "ideal": timeline.bubble_over_ideal}
        # A rank holds the activations of this many micro-batches; those of one chunk count as a part of one.
        peak = max(map(order.in_flight, timeline.ranks)) / order.num_chunks
        memory = {"peak": words("count", count=peak), "size": format_bytes(peak * self._activation_bytes)}
        ran = words("ran", bubble=self.emulated.bubble_fraction) if self.emulated else ""
        # A remark for fewer micro-batches than ranks.
        few = words("few") if self.microbatches.value < self.ranks.value else ""
        return words("sentence", **bubble, whole=format_seconds(timeline.duration), **memory, ran=ran, few=few)

    @property
    def rows(self) -> list[dict[str, str]]:
        """One row per rank, predicted: how long it works and waits, and its peak activation memory."""
        timeline, order = self.timeline, self.order
        busy = {rank: timeline.busy(rank) for rank in timeline.ranks}
        in_flight = {rank: order.in_flight(rank) / order.num_chunks for rank in timeline.ranks}
        return [
            {
                "rank": str(rank),
                words("works"): format_seconds(busy[rank]),
                words("waits"): format_seconds(timeline.duration - busy[rank]),
                words("holds"): words("count", count=in_flight[rank]),
                words("activations"): format_bytes(in_flight[rank] * self._activation_bytes),
            }
            for rank in timeline.ranks
        ]

    @property
    def _run_arguments(self) -> tuple[tuple, dict]:
        """The arguments of `run`, positional and by keyword, for the base class RunButton, which calls it."""
        return (self.order,), self.times

    def _with_memory(self, timeline: Timeline) -> Timeline:
        """The timeline with what each rank holds: the activations between a forward and its backward."""
        num_bytes = self._activation_bytes / self.order.num_chunks
        return replace(timeline, held=held_activations(timeline.spans, num_bytes))


def _milliseconds(name: str):
    """The dial of a time in milliseconds, 10 at first."""
    return dial(MILLISECONDS, 10, words(name), label="{} ms".format, tooltip=words(f"of_{name}"))
