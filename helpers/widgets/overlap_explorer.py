"""The dials of chapter 03: turn the bucket size, the link and the compute, and see what overlap hides."""

from __future__ import annotations

import math

import ipywidgets

from helpers.draw import timeline_scene
from helpers.draw.scene import Scene
from helpers.predict.timeline import gpt_backward, simulate_ddp_step
from helpers.records import Timeline
from helpers.specs import Link, ModelSpec
from helpers.units import format_bytes, format_count, format_seconds
from helpers.widgets.explorer import Explorer

SMALL_GPT = ModelSpec(num_layers=6, hidden=384, num_heads=6, vocab=68, seq=64)  # 10,698,240 parameters

# What the bucket dial says -> cap in MiB. One gradient a bucket: a cap below any gradient. Everything: never full.
BUCKETS = {"one gradient": 1e-6, "1 MiB": 1, "5 MiB": 5, "10 MiB": 10, "25 MiB": 25, "everything": math.inf}
GIGABITS = (1, 2, 5, 10, 25, 50, 100, 200, 400)
MICROSECONDS = (1, 10, 30, 100, 300, 1000, 3000)
TERAFLOPS = (1, 2, 5, 10, 20, 50, 100, 200, 400)
WORLD_SIZES = (2, 4, 8, 16, 64, 256)
_SHOWN = 4  # ranks in the picture; all do the same


def _dial(options: list[tuple[str, object]], value: object, description: str) -> ipywidgets.SelectionSlider:
    layout = ipywidgets.Layout(width="340px")
    return ipywidgets.SelectionSlider(options=options, value=value, description=description, layout=layout)


class OverlapExplorer(Explorer):
    """One DDP step of a GPT, predicted. Without a front end: `.bucket.value = "1 MiB"`, then `.sentence`.

    model: a ModelSpec, trained in fp32. tokens: a rank and step. Dials: bucket (a key of BUCKETS), bandwidth (Gb/s),
    latency (µs a message), ranks, compute (TFLOP/s that a rank reaches). recorded: a Timeline to draw below.
    """

    TEXT = "[widget] OverlapExplorer: one DDP step, with dials for bucket, bandwidth, latency, ranks and compute"

    def __init__(self, model: ModelSpec = SMALL_GPT, *, tokens: int = 16_384, recorded: Timeline | None = None) -> None:
        self._model, self._tokens, self._recorded = model, tokens, recorded
        self.bucket = _dial([(name, name) for name in BUCKETS], "25 MiB", "bucket")
        self.bandwidth = _dial([(f"{n} Gb/s", n) for n in GIGABITS], 10, "bandwidth")
        self.latency = _dial([(f"{n} µs", n) for n in MICROSECONDS], 300, "latency")
        self.ranks = _dial([(str(n), n) for n in WORLD_SIZES], 4, "ranks")
        self.compute = _dial([(f"{n} TFLOP/s", n) for n in TERAFLOPS], 10, "compute")
        super().__init__((self.bucket, self.bandwidth, self.latency, self.ranks, self.compute))

    @property
    def timeline(self) -> Timeline:
        """The predicted step of the dials as they stand."""
        return self._step(self.bucket.value)

    def _step(self, bucket: str) -> Timeline:
        backward = gpt_backward(self._model, tokens=self._tokens, flops_per_second=self.compute.value * 1e12)
        link = Link.from_gigabits(self.bandwidth.value, latency=self.latency.value * 1e-6)
        cap = BUCKETS[bucket]
        return simulate_ddp_step(
            backward,
            link=link,
            world_size=self.ranks.value,
            bucket_cap_mb=cap,
            first_bucket_mb=min(cap, 1) if cap < math.inf else cap,
            shown_ranks=min(self.ranks.value, _SHOWN),
        )

    @property
    def scene(self) -> Scene:
        """The picture of the dials as they stand; its axis stays while only the bucket moves."""
        longest = max(self._step(bucket).duration for bucket in ("one gradient", "everything"))
        shown = [self.timeline] + ([self._recorded] if self._recorded else [])
        size = format_count(self._model.num_params)
        return timeline_scene(*shown, title=f"GPT, {size} parameters, {self.ranks.value} ranks", end=longest)

    @property
    def sentence(self) -> str:
        """What is exposed, of how much, in how many messages."""
        step = self.timeline
        messages = [span for span in step.for_rank(0).spans if span.lane == "communication"]
        count = f"{len(messages)} message" + ("s" if len(messages) > 1 else "")
        size = format_bytes(sum(span.num_bytes for span in messages))
        alike = f" All {self.ranks.value} ranks do the same; {_SHOWN} are shown." if self.ranks.value > _SHOWN else ""
        return (
            f"exposed communication {format_seconds(step.exposed_communication(0))} of "
            f"{format_seconds(step.duration)}, {count} for {size} of gradients.{alike}"
        )
