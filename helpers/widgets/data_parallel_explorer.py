"""Provides explorers of one data-parallel step: DataParallelExplorer of chapter 02, OverlapExplorer of chapter 03.

DataParallelExplorer predicts a step of nn.DataParallel, OverlapExplorer one of DistributedDataParallel. With `run`, a
button of OverlapExplorer emulates the same step on real ranks and draws it below the prediction.

Explorer, the base class, shows `sentence`, `scene` (a picture as plain data) and `rows` (a table), and computes them
anew whenever a dial changes. A ValueError in one of them becomes a message instead of the picture. A saved notebook
keeps TEXT and a picture. RunButton adds a button that calls `run`, and keeps what it returned as `emulated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from helpers.draw import timeline_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.time.data_parallel import (
    BackwardPass,
    DataParallelStep,
    gpt_backward,
    simulate_data_parallel_step,
    simulate_ddp_step,
)
from helpers.quantities.units import format_bytes, format_count, format_seconds
from helpers.records import Timeline
from helpers.specs import Link, ModelSpec
from helpers.widgets.controls import dial
from helpers.widgets.explorer import Explorer, RunButton

dp_words = book("timelines").section("data_parallel")  # the texts that are shown, by name: learner/words/timelines.yaml
# The values of the dials of DataParallelExplorer, and the sizes of its step. The course's character GPT has 10,698,240
# parameters.
PARAMETERS = (1_000_000, 10_698_240, 25_000_000, 124_000_000, 350_000_000)
LOCK_TIMES = (0, 1, 2, 5, 10, 20)  # milliseconds
GIGABYTES = (3, 6, 12, 25, 50, 100)  # per second; PCIe 3.0 x16 carries about 12
TOKENS, VOCABULARY = 16_384, 68  # tokens of the whole batch; the vocabulary of the course's character GPT
FLOPS_PER_SECOND = 10e12  # what a device reaches


class DataParallelExplorer(Explorer):
    """One DataParallel step of a GPT in fp32, predicted. Without a front end: `.devices.value = 8`, then `.sentence`.

    Dials: devices (1 to 8, the first is the master), link (GB/s of the master's link), parameters, python
    (milliseconds for which one replica's forward holds Python's lock). The batch always has 16,384 tokens.
    """

    TEXT = "[widget] DataParallelExplorer: one step, with dials for devices, link, parameters and Python's share"

    def __init__(self) -> None:
        # The texts named as tooltips say in a few words what each dial means.
        counts = [(format_count(n), n) for n in PARAMETERS]
        self.devices = dial(range(1, 9), 4, dp_words("devices"), tooltip=dp_words("of_one"))
        self.link = dial(GIGABYTES, 12, dp_words("link"), label="{} GB/s".format, tooltip=dp_words("carries"))
        self.parameters = dial(counts, 10_698_240, dp_words("parameters"), tooltip=dp_words("of_model"))
        self.python = dial(LOCK_TIMES, 2, dp_words("lock"), label="{} ms".format, tooltip=dp_words("holds"))
        super().__init__((self.devices, self.link, self.parameters, self.python))

    def step(self, num_devices: int) -> Timeline:
        """The predicted step on this many devices, with the other dials' values. Seconds."""
        # A forward needs 2 FLOPs per parameter and token (Kaplan et al. 2020, table 1), a backward twice as many.
        forward = 2 * self.parameters.value * TOKENS / FLOPS_PER_SECOND
        step = DataParallelStep(
            num_devices=num_devices,
            parameter_bytes=4 * self.parameters.value,  # fp32
            input_bytes=8 * TOKENS,  # token numbers in int64
            output_bytes=4 * TOKENS * VOCABULARY,  # logits in fp32
            forward_seconds=forward,
            backward_seconds=2 * forward,
            python_seconds=self.python.value * 1e-3,
        )
        # A latency of 10 µs per message is assumed.
        return simulate_data_parallel_step(step, link=Link(latency=10e-6, bandwidth=self.link.value * 1e9))

    @property
    def scene(self) -> Scene:
        """The predicted step; the axis reaches at least to the end of the step of one device."""
        num_devices, size = self.devices.value, format_count(self.parameters.value)
        title = dp_words("title", size=size, devices=num_devices)
        names = [dp_words("the_master"), *(dp_words("of_number", number=n) for n in range(1, num_devices))]
        return timeline_scene(self.step(num_devices), title=title, end=self.step(1).duration, names=names)

    @property
    def sentence(self) -> str:
        """Speed-up over one device, and how long the master's link is busy while no device computes."""
        step = self.step(self.devices.value)
        gain = self.step(1).duration / step.duration
        busy, whole = format_seconds(step.exposed_communication(0)), format_seconds(step.duration)
        return dp_words("sentence", gain=gain, busy=busy, whole=whole)

    @property
    def rows(self) -> list[dict[str, str]]:
        """What each device does in the step."""
        step = self.step(self.devices.value)
        return [self._row(step, rank) for rank in range(self.devices.value)]

    def _row(self, step: Timeline, rank: int) -> dict[str, str]:
        """What one device does, in seconds."""
        computes = step.busy(rank, "compute")  # seconds
        return {
            # None is the learner's language.
            dp_words("device"): dp_words["master"].say(None, rank) if rank == 0 else str(rank),
            dp_words("computes"): format_seconds(computes),
            dp_words("sends"): format_seconds(step.busy(rank, "communication")),
            dp_words("waits"): format_seconds(step.duration - computes - step.exposed_communication(rank)),
        }


SMALL_GPT = ModelSpec(num_layers=6, hidden=384, num_heads=6, vocab=68, seq=64)  # 10,698,240 parameters

# The name of a bucket size -> bucket_cap_mb. "one weight matrix": a cap that every gradient exceeds. "everything": a
# bucket that is never full. The prediction counts biases and norms as a part of a weight matrix of their layer, so a
# GPT whose 100 parameters each have a gradient sends 25 messages with the smallest cap.
BUCKETS = {"one weight matrix": 1e-6, "1 MiB": 1, "5 MiB": 5, "10 MiB": 10, "25 MiB": 25, "everything": math.inf}
GIGABITS = (1, 2, 5, 10, 25, 50, 100, 200, 400)
MICROSECONDS = (1, 10, 30, 100, 300, 1000, 3000)
TERAFLOPS = (1, 2, 5, 10, 20, 50, 100, 200, 400)
WORLD_SIZES = (2, 4, 8, 16, 64, 256)
ddp_words = book("timelines").section("overlap")  # the texts that are shown, by name: learner/words/timelines.yaml
_SHOWN_RANKS = 4  # in the picture; all ranks do the same


class OverlapExplorer(RunButton, Explorer):
    """One DDP step of a GPT, predicted. Without a front end: `.bucket.value = "1 MiB"`, then `.sentence`.

    model: a ModelSpec, trained in fp32. tokens: per rank and step. Dials: bucket (a key of BUCKETS), bandwidth (Gb/s),
    latency (µs per message), ranks, compute (TFLOP/s that a rank reaches).
    run: takes what `simulate_ddp_step` takes (backward, link, world_size, bucket_cap_mb, first_bucket_mb) and returns
    the Timeline of a step that was run; a button calls it, and so does `run_now()`. Each setting keeps its own run.
    """

    TEXT = "[widget] OverlapExplorer: one DDP step, with dials for bucket, bandwidth, latency, ranks and compute"
    RUN_EXAMPLE = "emulate_ddp_step"

    def __init__(
        self,
        model: ModelSpec = SMALL_GPT,
        *,
        tokens: int = 16_384,
        run: Callable[..., Timeline] | None = None,
    ) -> None:
        self._model, self._tokens = model, tokens
        # The texts named as tooltips say in a few words what each dial means.
        rates = [(f"{n} TFLOP/s", n) for n in TERAFLOPS]
        bandwidths = [(f"{n} Gb/s", n) for n in GIGABITS]
        self.bucket = dial(BUCKETS, "25 MiB", ddp_words("bucket"), label=_bucket_text, tooltip=ddp_words("together"))
        self.bandwidth = dial(bandwidths, 10, ddp_words("bandwidth"), tooltip=ddp_words("of_link"))
        self.latency = dial(MICROSECONDS, 300, ddp_words("latency"), label="{} µs".format, tooltip=ddp_words("pays"))
        self.ranks = dial(WORLD_SIZES, 4, ddp_words("ranks"), tooltip=ddp_words("train"))
        self.compute = dial(rates, 10, ddp_words("compute"), tooltip=ddp_words("reaches"))
        dials = (self.bucket, self.bandwidth, self.latency, self.ranks, self.compute)
        super().__init__(dials, controls=self._run_controls(run, ddp_words("play")))

    @property
    def timeline(self) -> Timeline:
        """The predicted step for the dials' values."""
        return self._step(self.bucket.value)

    @property
    def _run_arguments(self) -> tuple[tuple, dict]:
        """The arguments of `run`, positional and by keyword, for the base class RunButton, which calls it."""
        return (self._backward,), self._options(self.bucket.value)

    @property
    def _backward(self) -> BackwardPass:
        """How many seconds each module's backward takes, and the bytes of its gradients."""
        return gpt_backward(self._model, tokens=self._tokens, flops_per_second=self.compute.value * 1e12)

    def _options(self, bucket: str) -> dict[str, object]:
        """The keyword arguments of `simulate_ddp_step` for the dials, with this choice of buckets."""
        cap = BUCKETS[bucket]
        return {
            "link": Link.from_gigabits(self.bandwidth.value, latency=self.latency.value * 1e-6),
            "world_size": self.ranks.value,
            "bucket_cap_mb": cap,
            # DDP's first bucket has at most 1 MiB, except where all gradients shall be in one bucket.
            "first_bucket_mb": min(cap, 1) if cap < math.inf else cap,
        }

    def _step(self, bucket: str) -> Timeline:
        """The predicted step with this choice of buckets, on the ranks that are drawn."""
        shown = min(self.ranks.value, _SHOWN_RANKS)
        return simulate_ddp_step(self._backward, **self._options(bucket), shown_ranks=shown)

    @property
    def scene(self) -> Scene:
        """The prediction, and below it the step that the button ran.

        The axis reaches to the end of the slowest choice of buckets, so it stays while only the bucket changes.
        """
        longest = max(self._step(bucket).duration for bucket in ("one weight matrix", "everything"))
        shown = [self.timeline, *([_first_ranks(self.emulated)] if self.emulated else [])]
        title = ddp_words("title", size=format_count(self._model.num_params), ranks=self.ranks.value)
        return timeline_scene(*shown, title=title, end=longest)

    @property
    def sentence(self) -> str:
        """The exposed communication, the messages, and what the run on ranks showed."""
        step = self.timeline
        messages = [span for span in step.for_rank(0).spans if span.lane == "communication"]
        size = format_bytes(sum(span.num_bytes for span in messages))
        ranks = self.ranks.value
        alike = ddp_words("alike", ranks=ranks, shown=_SHOWN_RANKS) if ranks > _SHOWN_RANKS else ""
        ran = ddp_words("ran", predicted=_exposed(step), emulated=_exposed(self.emulated)) if self.emulated else ""
        times = {"exposed": _exposed(step), "whole": format_seconds(step.duration)}
        return ddp_words("sentence", **times, count=len(messages), size=size, alike=alike, ran=ran)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The step in numbers: predicted and, once the button was pressed, emulated."""
        shown = {"predicted": self.timeline} | ({"emulated": self.emulated} if self.emulated else {})
        columns = {ddp_words(f"columns.{word}"): _numbers(timeline) for word, timeline in shown.items()}
        names = next(iter(columns.values()))  # all columns have the same rows
        return [
            {ddp_words("one_step"): name} | {word: column[name] for word, column in columns.items()} for name in names
        ]


def _first_ranks(timeline: Timeline) -> Timeline:
    """The part of a timeline that is drawn."""
    ranks = timeline.ranks[:_SHOWN_RANKS]
    return Timeline.merge(timeline.for_rank(rank) for rank in ranks)


def _slowest_rank(timeline: Timeline) -> int:
    """The rank with the most exposed communication: the others wait for it."""
    return max(timeline.ranks, key=timeline.exposed_communication)


def _exposed(timeline: Timeline) -> str:
    """The exposed communication of the slowest rank, as text."""
    return format_seconds(timeline.exposed_communication(_slowest_rank(timeline)))


def _numbers(timeline: Timeline) -> dict[str, str]:
    """A column of the table, by the names of its rows, for the rank with the most exposed communication."""
    rank = _slowest_rank(timeline)
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
    return {ddp_words(f"rows.{name}"): number for name, number in numbers.items()}


def _bucket_text(name: str) -> str:
    """The name of a bucket size as the dial displays it."""
    return ddp_words(f"sizes.{name}") if f"sizes.{name}" in ddp_words else name
