"""When each span of a training step starts and ends, simulated: backward compute beside one link that carries messages.

The model: gradients become ready one after the other while backward computes; a link carries one message at a time,
in the order in which they were sent, and each all-reduce takes its alpha-beta seconds (`helpers.quantities.costs`). All ranks do
the same at the same time. After Li et al. 2020, "PyTorch Distributed", section 3.2.3. Legend: P = parameters.

Memory: parameters for the whole step, as many bytes as their gradients (one precision). A gradient from the moment it
is ready until the step ends, since zero_grad comes with the next step. Buckets are views of gradients here and cost
nothing. Activations and optimizer state are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from helpers.parallel.shared.bucket_rule import MIB, split_into_buckets
from helpers.quantities.costs import seconds as cost_seconds
from helpers.records import Holding, Span, Timeline
from helpers.specs import Link, ModelSpec
from helpers.specs.checks import check_plain

STRATEGIES = ("naive", "flat", "bucketed", "overlapped")


@dataclass(frozen=True, kw_only=True)
class BackwardPass:
    """What a backward pass delivers, in the order in which it delivers it.

    names, num_bytes, seconds: of each gradient its name, its bytes, and the compute time between it and the one before.
    forward_seconds: of the whole forward pass before it. Raises ValueError where the lengths differ.
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
    """The backward pass of a GPT on `tokens` tokens a rank, one gradient a weight matrix, last layer first.

    Compute time: 2 operations a parameter and token forward, 4 backward (Kaplan et al. 2020, table 1; attention's own
    products left out). flops_per_second: those that the device reaches. Biases and norms travel with their layer.
    """
    check_plain("gpt_backward", model)
    h, kv, ffn = model.hidden, model.kv_heads * model.head_dim, model.ffn
    ups = 2 if model.gated else 1
    block = {"down": ffn * h, "up": ups * h * ffn, "projection": h * h, "query, key, value": h * (h + 2 * kv)}
    rest = model.params_per_layer - sum(block.values())
    layers = [
        (f"block {i} {name}", count + (rest if name == "query, key, value" else 0))
        for i in reversed(range(model.num_layers))
        for name, count in block.items()
    ]
    table = model.num_params - model.num_layers * model.params_per_layer
    sizes = [*layers, ("embeddings", table)]
    per_parameter = 4 * tokens / flops_per_second
    return BackwardPass(
        names=tuple(name for name, _ in sizes),
        num_bytes=tuple(count * bytes_per_gradient for _, count in sizes),
        seconds=tuple(count * per_parameter for _, count in sizes),
        forward_seconds=sum(count for _, count in sizes) * per_parameter / 2,
    )


def simulate_ddp_step(
    backward: BackwardPass,
    *,
    link: Link,
    world_size: int,
    strategy: str = "overlapped",
    bucket_cap_mb: float = 25,
    first_bucket_mb: float = 1,
    optimizer_seconds: float = 0.0,
    algorithm: str = "ring",
    shown_ranks: int | None = None,
) -> Timeline:
    """One training step of data parallelism as a predicted Timeline, in seconds from the start of forward.

    strategy: "naive" sends each gradient after backward, "flat" one message after backward, "bucketed" the buckets
    after backward, "overlapped" each bucket as soon as it is full. Caps in MiB, as in torch. shown_ranks: how many
    ranks the Timeline holds, all alike (default: all). Raises ValueError for an unknown strategy or too many ranks.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}, but it must be one of {', '.join(STRATEGIES)}")
    num_shown = world_size if shown_ranks is None else shown_ranks
    if not 1 <= num_shown <= world_size:
        raise ValueError(f"shown_ranks is {shown_ranks!r}, but it must be from 1 to the world size, {world_size}")
    compute = _compute_spans(backward)
    end_of_backward = compute[-1].end
    caps = {"bucket_cap": bucket_cap_mb * MIB, "first_bucket_cap": first_bucket_mb * MIB}
    messages = [
        (sum(backward.num_bytes[i] for i in bucket), _ready(compute, bucket) if strategy == "overlapped" else None)
        for bucket in _messages(backward, strategy, caps)
    ]
    sent = _on_the_link(messages, end_of_backward, link, world_size, algorithm)
    last = max([end_of_backward, *(span.end for span in sent)])
    end = last + optimizer_seconds
    step = [span for span in (*compute, *sent, _span("optimizer", "optimizer", last, end)) if span.duration > 0]
    return Timeline(
        spans=_on_each_rank(step, num_shown),
        source="predicted",
        title=f"{strategy}, {world_size} ranks",
        held=_on_each_rank(_held(backward, compute, end), num_shown),
    )


def _on_each_rank(items: Sequence[Span] | Sequence[Holding], num_ranks: int) -> tuple:
    return tuple(replace(item, rank=rank) for rank in range(num_ranks) for item in items)


def _held(backward: BackwardPass, compute: Sequence[Span], end: float) -> list[Holding]:
    """What a rank holds until the step's end: its parameters all along, each gradient once it is ready."""
    ready = zip(backward.names, backward.num_bytes, compute[1:], strict=True)  # compute[0] is forward
    gradients = [_holding(name, "gradients", size, span.end, end) for name, size, span in ready]
    return [_holding("parameters", "parameters", sum(backward.num_bytes), 0.0, end), *gradients]


def _holding(name: str, kind: str, num_bytes: int, start: float, end: float) -> Holding:
    return Holding(rank=0, name=name, kind=kind, num_bytes=num_bytes, start=start, end=end)


def _span(name: str, kind: str, start: float, end: float, num_bytes: int = 0) -> Span:
    lane = "communication" if kind == "communication" else "compute"
    return Span(rank=0, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes)


def _compute_spans(backward: BackwardPass) -> list[Span]:
    """Forward, then one span a gradient."""
    edges = list(accumulate(backward.seconds, initial=backward.forward_seconds))
    pieces = zip(backward.names, edges[:-1], edges[1:], strict=True)
    return [_span("forward", "forward", 0.0, edges[0]), *(_span(n, "backward", a, b) for n, a, b in pieces)]


def _messages(backward: BackwardPass, strategy: str, caps: dict[str, float]) -> list[list[int]]:
    """The gradients of each message, by position."""
    positions = list(range(len(backward.names)))
    if strategy == "flat":
        return [positions]
    return [[i] for i in positions] if strategy == "naive" else split_into_buckets(backward.num_bytes, **caps)


def _ready(compute: Sequence[Span], bucket: Sequence[int]) -> float:
    return compute[1 + max(bucket)].end  # compute[0] is forward


def _on_the_link(
    messages: Sequence[tuple[int, float | None]], end_of_backward: float, link: Link, world_size: int, algorithm: str
) -> list[Span]:
    """One message at a time: each starts when it is ready and the one before has arrived."""
    spans, free = [], 0.0
    for index, (num_bytes, ready) in enumerate(messages):
        start = max(free, end_of_backward if ready is None else ready)
        free = start + cost_seconds("all_reduce", num_bytes, world_size, link, algorithm)
        spans.append(_span(f"all_reduce {index}", "communication", start, free, num_bytes))
    return spans
