"""Simulates one training step of DistributedDataParallel and of nn.DataParallel as a Timeline of compute and messages.

Chapters 02 and 03 and their explorers draw these timelines and compare them with measured ones.

DDP: gradients become ready one after the other while backward computes. A link carries one message at a time, in the
order in which they were sent. Each all-reduce takes its alpha-beta seconds: latency times rounds, plus bytes over
bandwidth (`helpers.quantities.costs`). All ranks do the same at the same time. After Li et al. 2020, "PyTorch
Distributed", section 3.2.3.
Memory in DDP: parameters take as many bytes as their gradients (one precision) for the whole step. A gradient is held
from the moment it is ready until the step ends, since zero_grad comes with the next step. Buckets are views of
gradients here and cost nothing. Activations and optimizer state are not modelled.

nn.DataParallel: device 0 is the master. Every byte crosses the master's link, and nothing hides behind compute. The
link carries one message at a time, each for its alpha-beta seconds (`Link.seconds`). Python launches the replicas'
forwards one after the other, because only one thread at a time holds the interpreter's lock; what they launched then
runs side by side. Backward is launched by C++ threads, one per device, and needs no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from helpers.parallel.shared.bucket_rule import MIB, split_into_buckets
from helpers.quantities.costs import seconds as cost_seconds
from helpers.records import Holding, Span, Timeline
from helpers.specs import Link, ModelSpec
from helpers.specs.checks import refuse_unmodelled_fields

STRATEGIES = ("naive", "flat", "bucketed", "overlapped")  # `simulate_ddp_step` says what each of them sends


@dataclass(frozen=True, kw_only=True)
class BackwardPass:
    """The gradients of a backward pass, in the order in which they become ready.

    names, num_bytes, seconds: of each gradient its name, its bytes, and the compute seconds since the one before it.
    forward_seconds: of the forward pass before. Raises ValueError where the lengths differ.
    """

    names: tuple[str, ...]
    num_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    forward_seconds: float = 0.0

    def __post_init__(self) -> None:
        lengths = len(self.names), len(self.num_bytes), len(self.seconds)
        if len(set(lengths)) > 1 or not self.names:
            raise ValueError(
                f"BackwardPass got {lengths[0]} names, {lengths[1]} sizes and {lengths[2]} durations: "
                "give one of each for every gradient, at least one"
            )
        if min(*self.num_bytes, *self.seconds, self.forward_seconds) < 0:
            raise ValueError("BackwardPass got a negative size or duration: give bytes and seconds, 0 or more")


def gpt_backward(
    model: ModelSpec, *, tokens: int, flops_per_second: float, bytes_per_gradient: int = 4
) -> BackwardPass:
    """The backward pass of a GPT with `tokens` tokens per rank: one gradient per weight matrix, last layer first.

    Compute time: 2 operations per parameter and token in forward, 4 in backward (Kaplan et al. 2020, table 1; without
    attention's own products). flops_per_second: the rate that the device reaches. Biases and norms are added to the
    matrix of query, key and value of their layer. The embeddings (and the head, unless it shares their table) count as
    one gradient, which is ready last.
    """
    refuse_unmodelled_fields("gpt_backward", model)
    h, kv, ffn = model.hidden, model.kv_heads * model.head_dim, model.ffn
    ups = 2 if model.gated else 1
    block = {"down": ffn * h, "up": ups * h * ffn, "projection": h * h, "query, key, value": h * (h + 2 * kv)}
    block["query, key, value"] += model.params_per_layer - sum(block.values())
    sizes = {f"block {i} {name}": count for i in reversed(range(model.num_layers)) for name, count in block.items()}
    sizes["embeddings"] = model.num_params - model.num_layers * model.params_per_layer
    per_parameter = 4 * tokens / flops_per_second  # seconds of backward; forward takes half
    return BackwardPass(
        names=tuple(sizes),
        num_bytes=tuple(count * bytes_per_gradient for count in sizes.values()),
        seconds=tuple(count * per_parameter for count in sizes.values()),
        forward_seconds=sum(sizes.values()) * per_parameter / 2,
    )


def simulate_ddp_step(
    backward: BackwardPass, *, link: Link, world_size: int, strategy: str = "overlapped", bucket_cap_mb: float = 25,
    first_bucket_mb: float = 1, optimizer_seconds: float = 0.0, algorithm: str = "ring",
    shown_ranks: int | None = None,
) -> Timeline:  # fmt: skip
    """One training step of data parallelism as a predicted Timeline, in seconds from the start of forward.

    strategy: "naive" sends each gradient after backward, "flat" one message after backward, "bucketed" the buckets
    after backward, "overlapped" each bucket as soon as it is full. bucket_cap_mb, first_bucket_mb: the largest bucket
    and the largest first bucket in MiB, as in torch. algorithm: of the all-reduce, a name that costs.py knows.
    shown_ranks: how many identical ranks the Timeline has (default: all). Raises ValueError for an unknown strategy or
    too many ranks.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}, but it must be one of {', '.join(STRATEGIES)}")
    num_shown = world_size if shown_ranks is None else shown_ranks  # fewer ranks make a picture that can be read
    if not 1 <= num_shown <= world_size:
        raise ValueError(f"shown_ranks is {shown_ranks!r}, but it must be from 1 to the world size, {world_size}")
    compute = _compute_spans(backward)
    end_of_backward = compute[-1].end
    caps = {"bucket_cap": bucket_cap_mb * MIB, "first_bucket_cap": first_bucket_mb * MIB}
    messages = []  # (bytes, when they may be sent)
    for bucket in _messages(backward, strategy, caps):
        ready = _ready(compute, bucket) if strategy == "overlapped" else end_of_backward
        messages.append((sum(backward.num_bytes[i] for i in bucket), ready))
    sent = _on_the_link(messages, link, world_size, algorithm)
    reduced = max([end_of_backward, *(span.end for span in sent)])
    end = reduced + optimizer_seconds
    step = [span for span in (*compute, *sent, _span("optimizer", "optimizer", reduced, end)) if span.duration > 0]
    return Timeline(
        spans=_on_each_rank(step, num_shown),
        source="predicted",
        title=f"{strategy}, {world_size} ranks",
        held=_on_each_rank(_holdings(backward, compute, end), num_shown),
    )


def _on_each_rank(items: Sequence[Span] | Sequence[Holding], num_ranks: int) -> tuple:
    """The spans or holdings of rank 0, repeated for every rank, because all ranks do the same."""
    return tuple(replace(item, rank=rank) for rank in range(num_ranks) for item in items)


def _holdings(backward: BackwardPass, compute: Sequence[Span], end: float) -> list[Holding]:
    """What a rank holds in memory: its parameters for the whole step, each gradient from when it is ready."""
    ready = zip(backward.names, backward.num_bytes, compute[1:], strict=True)  # compute[0] is forward
    gradients = [_holding(name, "gradients", size, span.end, end) for name, size, span in ready]
    return [_holding("parameters", "parameters", sum(backward.num_bytes), 0.0, end), *gradients]


def _holding(name: str, kind: str, num_bytes: int, start: float, end: float) -> Holding:
    return Holding(rank=0, name=name, kind=kind, num_bytes=num_bytes, start=start, end=end)


def _span(name: str, kind: str, start: float, end: float, num_bytes: int = 0) -> Span:
    """A span of rank 0, in the lane of its kind."""
    lane = "communication" if kind == "communication" else "compute"
    return Span(rank=0, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes)


def _compute_spans(backward: BackwardPass) -> list[Span]:
    """Forward, then one span of backward per gradient."""
    edges = list(accumulate(backward.seconds, initial=backward.forward_seconds))  # when forward and each span end
    pieces = zip(backward.names, edges[:-1], edges[1:], strict=True)
    gradients = [_span(name, "backward", start, end) for name, start, end in pieces]
    return [_span("forward", "forward", 0.0, edges[0]), *gradients]


def _messages(backward: BackwardPass, strategy: str, caps: dict[str, float]) -> list[list[int]]:
    """The gradients of each message, by position. split_into_buckets is the rule by which DDP fills its buckets."""
    positions = list(range(len(backward.names)))
    if strategy == "flat":
        return [positions]
    return [[i] for i in positions] if strategy == "naive" else split_into_buckets(backward.num_bytes, **caps)


def _ready(compute: Sequence[Span], bucket: Sequence[int]) -> float:
    """When the last gradient of a bucket is ready."""
    return compute[1 + max(bucket)].end  # compute[0] is forward


def _on_the_link(messages: Sequence[tuple[int, float]], link: Link, world_size: int, algorithm: str) -> list[Span]:
    """The spans of the messages (bytes, when ready), of which the link carries one at a time."""
    spans, link_free = [], 0.0
    for index, (num_bytes, ready) in enumerate(messages):
        start = max(link_free, ready)
        link_free = start + cost_seconds("all_reduce", num_bytes, world_size, link, algorithm)
        spans.append(_span(f"all_reduce {index}", "communication", start, link_free, num_bytes))
    return spans


@dataclass(frozen=True, kw_only=True)
class DataParallelStep:
    """The inputs of a simulated step of nn.DataParallel. Sizes in bytes, times in seconds.

    parameter_bytes: all parameters. input_bytes, output_bytes: of the full batch. forward_seconds, backward_seconds: of
    the full batch on one device. python_seconds: the part of one replica's forward that holds Python's lock; it does
    not shrink with the batch.
    Raises ValueError for a negative size or time, or fewer than 1 device.
    """

    num_devices: int
    parameter_bytes: float
    input_bytes: float
    output_bytes: float
    forward_seconds: float
    backward_seconds: float
    python_seconds: float = 0.0
    optimizer_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"DataParallelStep(num_devices={self.num_devices}): expected 1 or more")
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"DataParallelStep({name}={value!r}): expected 0 or more")


def simulate_data_parallel_step(step: DataParallelStep, *, link: Link) -> Timeline:
    """One step of nn.DataParallel as a predicted Timeline with one rank per device, in seconds from the scatter on."""
    clock = _Clock(step.num_devices, link)
    devices = step.num_devices  # each gets an equal part of the batch
    clock.messages("scatter", step.input_bytes / devices)
    clock.messages("replicate", step.parameter_bytes)
    clock.side_by_side("forward", step.forward_seconds / devices, stagger=step.python_seconds)
    clock.messages("gather", step.output_bytes / devices)
    clock.messages("scatter gradients", step.output_bytes / devices)
    clock.side_by_side("backward", step.backward_seconds / devices)
    clock.messages("reduce", step.parameter_bytes)
    clock.compute(0, "optimizer", clock.now, clock.now + step.optimizer_seconds)
    shown = tuple(span for span in clock.spans if span.duration > 0)
    return Timeline(spans=shown, source="predicted", title=f"DataParallel, {step.num_devices} devices")


@dataclass
class _Clock:
    """Collects the spans of a step whose phases follow each other; `now` is when the last phase ended."""

    num_devices: int
    link: Link
    now: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def messages(self, name: str, num_bytes: float) -> None:
        """One message between the master and each other device, one after the other, as spans on both devices."""
        seconds, size = self.link.seconds(num_bytes), round(num_bytes)
        for other in range(1, self.num_devices):
            for device in (0, other):
                self._add(device, "communication", name, "communication", self.now, self.now + seconds, size)
            self.now += seconds

    def side_by_side(self, kind: str, duration: float, stagger: float = 0.0) -> None:
        """The same work on every device, `duration` seconds each.

        stagger: seconds for which a device holds Python's lock before its work begins, one device after the other.
        """
        start = self.now
        for device in range(self.num_devices):
            begin = start + device * stagger
            self.compute(device, kind, begin, begin + stagger + duration)
        self.now = start + self.num_devices * stagger + duration

    def compute(self, device: int, kind: str, start: float, end: float) -> None:
        self._add(device, "compute", kind, kind, start, end, 0)

    def _add(self, device: int, lane: str, name: str, kind: str, start: float, end: float, num_bytes: int) -> None:
        self.spans.append(Span(rank=device, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes))
