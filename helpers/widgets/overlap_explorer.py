"""The dials of chapter 03: turn the bucket size, the link and the compute, and see what overlap hides.

With `run` a button plays the same step on real ranks, and what they did stands below what was predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from helpers.draw import timeline_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.time.data_parallel import BackwardPass, gpt_backward, simulate_ddp_step
from helpers.quantities.units import format_bytes, format_count, format_seconds
from helpers.records import Timeline
from helpers.specs import Link, ModelSpec
from helpers.widgets.dials import dial
from helpers.widgets.explorer import Explorer
from helpers.widgets.runs import Runs

SMALL_GPT = ModelSpec(num_layers=6, hidden=384, num_heads=6, vocab=68, seq=64)  # 10,698,240 parameters

# What the bucket dial says -> cap in MiB. One matrix a bucket: a cap below any gradient. Everything: never full. Biases
# and norms travel with their layer's matrix, so a GPT of 100 gradients has 25 messages here.
BUCKETS = {"one weight matrix": 1e-6, "1 MiB": 1, "5 MiB": 5, "10 MiB": 10, "25 MiB": 25, "everything": math.inf}
GIGABITS = (1, 2, 5, 10, 25, 50, 100, 200, 400)
MICROSECONDS = (1, 10, 30, 100, 300, 1000, 3000)
TERAFLOPS = (1, 2, 5, 10, 20, 50, 100, 200, 400)
WORLD_SIZES = (2, 4, 8, 16, 64, 256)
say = book("timelines").section("overlap")
_SHOWN = 4  # ranks in the picture; all do the same


class OverlapExplorer(Runs, Explorer):
    """One DDP step of a GPT, predicted. Without a front end: `.bucket.value = "1 MiB"`, then `.sentence`.

    model: a ModelSpec, trained in fp32. tokens: a rank and step. Dials: bucket (a key of BUCKETS), bandwidth (Gb/s),
    latency (µs a message), ranks, compute (TFLOP/s that a rank reaches). recorded: a Timeline to draw below.
    run: takes what `simulate_ddp_step` takes (backward, link, world_size, bucket_cap_mb, first_bucket_mb) and returns
    the Timeline of a step that was run; a button calls it, and so does `run_now()`. Each setting keeps its own run.
    """

    TEXT = "[widget] OverlapExplorer: one DDP step, with dials for bucket, bandwidth, latency, ranks and compute"
    RUN = "emulate_ddp_step"

    def __init__(
        self,
        model: ModelSpec = SMALL_GPT,
        *,
        tokens: int = 16_384,
        recorded: Timeline | None = None,
        run: Callable[..., Timeline] | None = None,
    ) -> None:
        self._model, self._tokens, self._recorded = model, tokens, recorded
        self.bucket = dial([(_bucket(one), one) for one in BUCKETS], "25 MiB", say("bucket"), tooltip=say("together"))
        self.bandwidth = dial([(f"{n} Gb/s", n) for n in GIGABITS], 10, say("bandwidth"), tooltip=say("of_link"))
        self.latency = dial([(f"{n} µs", n) for n in MICROSECONDS], 300, say("latency"), tooltip=say("pays"))
        self.ranks = dial(WORLD_SIZES, 4, say("ranks"), tooltip=say("train"))
        self.compute = dial([(f"{n} TFLOP/s", n) for n in TERAFLOPS], 10, say("compute"), tooltip=say("reaches"))
        dials = (self.bucket, self.bandwidth, self.latency, self.ranks, self.compute)
        super().__init__(dials, controls=self._runs(run, say("play")))

    @property
    def timeline(self) -> Timeline:
        """The predicted step of the dials as they stand."""
        return self._step(self.bucket.value)

    @property
    def _arguments(self) -> tuple[tuple, dict]:
        return (self._backward,), self._options(self.bucket.value)

    @property
    def _backward(self) -> BackwardPass:
        return gpt_backward(self._model, tokens=self._tokens, flops_per_second=self.compute.value * 1e12)

    def _options(self, bucket: str) -> dict[str, object]:
        cap = BUCKETS[bucket]
        return {
            "link": Link.from_gigabits(self.bandwidth.value, latency=self.latency.value * 1e-6),
            "world_size": self.ranks.value,
            "bucket_cap_mb": cap,
            "first_bucket_mb": min(cap, 1) if cap < math.inf else cap,
        }

    def _step(self, bucket: str) -> Timeline:
        shown = min(self.ranks.value, _SHOWN)
        return simulate_ddp_step(self._backward, **self._options(bucket), shown_ranks=shown)

    @property
    def _below(self) -> dict[str, Timeline]:
        """What stands below the prediction, by the word for it."""
        given = {"emulated": self.emulated, "recorded": self._recorded}
        return {word: timeline for word, timeline in given.items() if timeline is not None}

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand; its axis stays while only the bucket moves."""
        longest = max(self._step(bucket).duration for bucket in ("one weight matrix", "everything"))
        shown = [self.timeline, *map(_first_ranks, self._below.values())]
        title = say("title", size=format_count(self._model.num_params), ranks=self.ranks.value)
        return timeline_scene(*shown, title=title, end=longest)

    @property
    def sentence(self) -> str:
        """What is exposed, of how much, in how many messages; beside it what the run showed."""
        step = self.timeline
        messages = [span for span in step.for_rank(0).spans if span.lane == "communication"]
        size = format_bytes(sum(span.num_bytes for span in messages))
        alike = say("alike", ranks=self.ranks.value, shown=_SHOWN) if self.ranks.value > _SHOWN else ""
        ran = say("ran", predicted=_exposed(step), emulated=_exposed(self.emulated)) if self.emulated else ""
        times = {"exposed": _exposed(step), "whole": format_seconds(step.duration)}
        return say("sentence", **times, count=len(messages), size=size, alike=alike, ran=ran)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The step in numbers: predicted, and beside it what was run."""
        shown = {"predicted": self.timeline, **self._below}
        columns = {say(f"columns.{word}"): _numbers(timeline) for word, timeline in shown.items()}
        names = next(iter(columns.values()))
        return [{say("one_step"): name} | {word: column[name] for word, column in columns.items()} for name in names]


def _first_ranks(timeline: Timeline) -> Timeline:
    ranks = timeline.ranks[:_SHOWN]
    return Timeline.merge(timeline.for_rank(rank) for rank in ranks)


def _worst(timeline: Timeline) -> int:
    """The rank with the most exposed communication: the others wait for it."""
    return max(timeline.ranks, key=timeline.exposed_communication)


def _exposed(timeline: Timeline) -> str:
    return format_seconds(timeline.exposed_communication(_worst(timeline)))


def _numbers(timeline: Timeline) -> dict[str, str]:
    """Of the rank with the most exposed communication."""
    rank = _worst(timeline)
    messages = [span for span in timeline.for_rank(rank).spans if span.lane == "communication"]
    sent, exposed = timeline.busy(rank, "communication"), timeline.exposed_communication(rank)
    numbers = {
        "whole": format_seconds(timeline.duration),
        "communication": format_seconds(sent),
        "exposed": format_seconds(exposed),
        "hidden": f"{1 - exposed / sent:.0%}" if sent else "–",
        "messages": format_count(len(messages)),
        "payload": format_bytes(sum(span.num_bytes for span in messages)),
    }
    return {say(f"rows.{name}"): number for name, number in numbers.items()}


def _bucket(name: str) -> str:
    """What the dial says."""
    return say(f"sizes.{name}") if f"sizes.{name}" in say else name
