"""When each span of a ZeRO-3 step starts and ends, simulated: compute beside one link that carries messages.

The model: a unit (a layer, or several) computes when its parameters have been gathered. With `prefetch=k` the gathers
of the next k units are asked for before it computes, so they travel meanwhile; with 0 each is asked for when it is
needed, and compute waits. Gradients are reduced and scattered behind the backward of the units before. The link
carries one message at a time, in the order in which they were asked for, each for its alpha-beta seconds
(`helpers.quantities.costs`). All ranks do the same at the same time. After Zhao et al. 2023, "PyTorch FSDP", section 3.3.

Memory: every unit's shard for the whole step, a whole unit from when its gather is asked for until it has computed, its
gradients from when backward of the unit begins until they are scattered, and their shard from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from helpers.quantities.costs import seconds as cost_seconds
from helpers.records import Holding, Span, Timeline
from helpers.specs import Link, ModelSpec
from helpers.specs.checks import check_plain


@dataclass(frozen=True, kw_only=True)
class Zero3Step:
    """What a step needs, one entry a unit, in the order of forward.

    names; num_bytes: of the whole unit, padding included; forward, backward: compute seconds.
    Raises ValueError where the lengths differ or a number is negative.
    """

    names: tuple[str, ...]
    num_bytes: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = [len(getattr(self, name)) for name in ("names", "num_bytes", "forward", "backward")]
        if len(set(lengths)) > 1 or not self.names:
            raise ValueError(
                f"Zero3Step got {lengths[0]} names, {lengths[1]} sizes, {lengths[2]} and {lengths[3]} durations: give "
                "one of each for every unit, at least one"
            )
        if min(*self.num_bytes, *self.forward, *self.backward) < 0:
            raise ValueError("Zero3Step got a negative size or duration: give bytes and seconds, 0 or more")


def gpt_zero3_step(model: ModelSpec, *, tokens: int, flops_per_second: float, bytes_per_number: int = 2) -> Zero3Step:
    """A GPT's, a unit a layer, embeddings and head in one at the front, on `tokens` tokens a rank.

    Compute time: 2 operations a parameter and token forward, 4 backward (Kaplan et al. 2020, table 1); embeddings and
    head, which are one matrix product, stand at the front with all their time.
    """
    check_plain("gpt_zero3_step", model)
    tables = model.num_params - model.num_layers * model.params_per_layer
    sizes = [tables] + [model.params_per_layer] * model.num_layers
    forward = tuple(2 * size * tokens / flops_per_second for size in sizes)
    return Zero3Step(
        names=("embeddings", *(f"block {i}" for i in range(model.num_layers))),
        num_bytes=tuple(size * bytes_per_number for size in sizes),
        forward=forward,
        backward=tuple(2 * seconds for seconds in forward),
    )


def simulate_zero3_step(
    step: Zero3Step,
    *,
    link: Link,
    world_size: int,
    prefetch: int = 1,
    limit: int = 2,
    keep_parameters: bool = False,
    shown_ranks: int | None = None,
) -> Timeline:
    """One step, forward and backward, as a predicted Timeline, in seconds from the start of forward.

    prefetch: how many units ahead are gathered while one computes; 0 hides no gather. limit: how many units are whole
    at once. keep_parameters: nothing is freed between forward and backward. All as in `Zero3`, and as there one
    reduce-scatter is under way at a time: compute waits before the next. shown_ranks: how many ranks the Timeline
    holds, all alike (default: all). Raises ValueError for a negative prefetch, a limit below 1 or too many ranks.
    """
    num_shown = world_size if shown_ranks is None else shown_ranks
    if not 1 <= num_shown <= world_size:
        raise ValueError(f"shown_ranks is {shown_ranks!r}, but it must be from 1 to the world size, {world_size}")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"prefetch is {prefetch!r}, but it must be 0 or a number of units")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(f"limit is {limit!r}, but it must be 1 unit or more")
    return _Play(step, link, world_size, prefetch, limit, keep_parameters).run(num_shown)


@dataclass
class _Play:
    """One clock for compute, one for the link."""

    step: Zero3Step
    link: Link
    world_size: int
    prefetch: int
    limit: int
    keep: bool
    now: float = 0.0
    free: float = 0.0  # when the link is
    gathered: dict[int, tuple[float, float]] = field(default_factory=dict)  # unit -> asked for at, there at
    reduced: float = 0.0  # when the last reduce-scatter will have ended
    spans: list[tuple] = field(default_factory=list)
    held: list[tuple] = field(default_factory=list)

    def run(self, num_ranks: int) -> Timeline:
        order = list(range(len(self.step.names)))
        self._pass(order, "forward", self.step.forward)
        self._pass(order[::-1], "backward", self.step.backward)
        end = max(self.now, self.free)
        for unit, size in enumerate(self.step.num_bytes):
            self.held.append((f"shard of {self.step.names[unit]}", "parameters", self._share(size), 0.0, end))
        held = [(name, kind, size, start, end if stop is None else stop) for name, kind, size, start, stop in self.held]
        return Timeline(
            spans=[Span.unchecked(rank, *span) for rank in range(num_ranks) for span in self.spans],
            source="predicted",
            title=f"ZeRO-3, {self.world_size} ranks, prefetch {self.prefetch}",
            held=[_holding(rank, *one) for rank in range(num_ranks) for one in held],
        )

    def _pass(self, order: Sequence[int], kind: str, seconds: Sequence[float]) -> None:
        for place, unit in enumerate(order):
            self._gather(unit)
            self.now = max(self.now, self.gathered[unit][1])
            for ahead in order[place + 1 : place + 1 + self.prefetch]:
                if len(self.gathered) < self.limit:
                    self._gather(ahead)
            start, self.now = self.now, self.now + seconds[unit]
            self._span("compute", self.step.names[unit], kind, start, self.now)
            if kind == "backward" or not self.keep:
                self._free(unit)
            if kind == "backward":
                self._reduce(unit, start)

    def _gather(self, unit: int) -> None:
        if unit not in self.gathered:
            end = self._message("all_gather", unit, self._share(self.step.num_bytes[unit]))
            self.gathered[unit] = (self.now, end)

    def _free(self, unit: int) -> None:
        size, asked = self.step.num_bytes[unit], self.gathered.pop(unit)[0]
        self.held.append((self.step.names[unit], "parameters", size, asked, self.now))

    def _reduce(self, unit: int, began: float) -> None:
        name, size = self.step.names[unit], self.step.num_bytes[unit]
        self.now = max(self.now, self.reduced)
        self.reduced = end = self._message("reduce_scatter", unit, size)
        self.held.append((f"gradients of {name}", "gradients", size, began, end))
        self.held.append((f"gradient shard of {name}", "gradients", self._share(size), end, None))

    def _message(self, op: str, unit: int, payload: int) -> float:
        start = max(self.now, self.free)
        self.free = start + cost_seconds(op, self.step.num_bytes[unit], self.world_size, self.link)
        self._span("communication", f"{op} {self.step.names[unit]}", "communication", start, self.free, payload)
        return self.free

    def _share(self, size: int) -> int:
        return -(-size // self.world_size)

    def _span(self, lane: str, name: str, kind: str, start: float, end: float, num_bytes: int = 0) -> None:
        if end > start:
            self.spans.append((lane, name, kind, start, end, num_bytes))


def _holding(rank: int, name: str, kind: str, num_bytes: int, start: float, end: float) -> Holding:
    return Holding(rank=rank, name=name, kind=kind, num_bytes=num_bytes, start=start, end=end)


def compare_stages(
    model: ModelSpec,
    gigabits: Sequence[float],
    *,
    num_microbatches: int,
    tokens: int = 4096,
    flops_per_second: float = 0.4 * 989e12,
    world_size: int = 64,
) -> dict[int, dict[float, float]]:
    """Seconds of a step of stages 1 and 3: stage -> Gb/s of the link that a ring crosses -> seconds. 16 bits.

    Stage 3 with prefetch; of stage 1 nothing is hidden, which favours stage 3. The default rate is 40 % of an H100.
    """
    step = gpt_zero3_step(model, tokens=tokens, flops_per_second=flops_per_second)
    compute = num_microbatches * (sum(step.forward) + sum(step.backward))
    seconds: dict[int, dict[float, float]] = {1: {}, 3: {}}
    for speed in gigabits:
        link = Link.from_gigabits(speed, latency=1e-5)
        sent = [cost_seconds(op, 2 * model.num_params, world_size, link) for op in ("reduce_scatter", "all_gather")]
        third = simulate_zero3_step(step, link=link, world_size=world_size, shown_ranks=1)
        seconds[1][speed], seconds[3][speed] = compute + sum(sent), num_microbatches * third.duration
    return seconds
