"""Tensor parallel layers that were simulated, played by real ranks: our f and g, real messages, modelled durations.

All of it is slowed down alike: compute, the latency of the link, and its bandwidth. Messages are shrunk to UNIT bytes,
and the bandwidth once more with them. Two ranks stand for all, on a link that is slower by as much. So the share of the
messages stays what it is at full speed. What comes out is labelled "emulated", and is never speed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.observe.comms import record_comms
from helpers.observe.paced import paced
from helpers.parallel.tensor_parallel.conjugate import all_reduce_identity, identity_all_reduce
from helpers.predict.time.flops import forward_parts
from helpers.quantities import costs
from helpers.ranks import Ranks
from helpers.records import Span, Timeline
from helpers.specs import GPU, Link, ModelSpec

PLAYED, UNIT = 1.5, 65_536  # seconds that the layers take on the ranks, bytes of a message
EFFICIENCY = 0.4  # of the peak rate, as in every prediction of this course
_PARTS = (("att", 0, 1), ("MLP", 1, 1), ("MLP", 1, 2), ("att", 0, 2))  # in their order; backward takes twice as long


@dataclass(frozen=True, kw_only=True)
class Layers:
    """compute: seconds of forward, of attention and of the MLP. message: bytes of an all-reduce."""

    num_ranks: int
    link: Link
    compute: tuple[float, float]
    message: float

    @classmethod
    def of(cls, model: ModelSpec, gpu: GPU, link: Link, num_ranks: int) -> Layers:
        """Of one sequence in 16 bits. The embedding and the head are spread over the layers."""
        parts = forward_parts(model)
        seconds = sum(parts.values()) / num_ranks / (EFFICIENCY * gpu.flops) / model.num_layers
        mlp = seconds * parts["feed-forward"] / (sum(parts.values()) - parts["head"])
        message = 2 * model.seq * model.hidden
        return cls(num_ranks=num_ranks, link=link, compute=(seconds - mlp, mlp), message=message)

    @property
    def send(self) -> float:
        return costs.seconds("all_reduce", self.message, self.num_ranks, self.link)

    @property
    def busy(self) -> float:
        """Seconds of compute, forward and backward."""
        return 3 * sum(self.compute)

    @property
    def share(self) -> float:
        """Of the time, what a rank waits for messages."""
        return share_of(self.busy + 4 * self.send, self.busy)


def share_of(duration: float, busy: float) -> float:
    return 1 - busy / duration


def emulate_layers(layers: Layers, title: str = "") -> Timeline:
    """One layer on two live ranks, in the seconds of `layers`: compute, then its message. Takes some seconds.

    The two stand for all `num_ranks`: an all-reduce of theirs takes as long as one of so many ranks on the link.
    """
    slow = PLAYED / (layers.busy + 4 * layers.send)
    rounds = costs.seconds("all_reduce", 0, layers.num_ranks, layers.link)
    link = Link(latency=rounds * slow / 2, bandwidth=UNIT / (layers.send - rounds) / slow)
    with Ranks(2, device="cpu", link=link, quiet=True) as ranks:
        plays = [ranks.run(_played, [one * slow for one in layers.compute]) for _ in range(3)]
    timelines = min(plays, key=lambda play: play[0].duration)  # a busy machine only ever adds time
    spans = [
        replace(span, start=span.start / slow, end=span.end / slow)
        for timeline in timelines
        for span in timeline.shifted_to_zero().spans
    ]
    return Timeline(spans=spans, source="emulated", title=title)


def _played(seconds: Sequence[float]) -> Timeline:
    """On a rank, twice; the second time is kept."""
    for pace in ((0.0, 0.0), seconds):
        spans: list[Span] = []
        x = torch.ones(UNIT // 4, requires_grad=True)
        dist.barrier()
        with record_comms() as recorder:
            y = x
            for name, half, _times in _PARTS[:2]:
                y = all_reduce_identity(_Compute.apply(identity_all_reduce(y, None), name, pace[half], spans), None)
            y.backward(torch.ones_like(y))
    sums = [event for event in recorder.log.events if event.op == "all_reduce"]
    return Timeline(spans=spans + [_sent(dist.get_rank(), event.start, event.end) for event in sums], source="emulated")


class _Compute(torch.autograd.Function):
    """A share of x, so that the sum over ranks is x again; forward takes `seconds`, and backward twice that."""

    @staticmethod
    def forward(ctx, x: Tensor, name: str, seconds: float, spans: list[Span]) -> Tensor:
        ctx.told = name, seconds, spans
        return _timed(x, name, 1, seconds, spans)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        name, seconds, spans = ctx.told
        return _timed(grad, name, 2, seconds, spans), None, None, None


def _timed(x: Tensor, name: str, times: int, seconds: float, spans: list[Span]) -> Tensor:
    start = time.perf_counter()
    result = paced(lambda: x / dist.get_world_size(), times * seconds)
    spans.append(_computed(dist.get_rank(), name, times, start, time.perf_counter()))
    return result


def _computed(rank: int, name: str, times: int, start: float, end: float) -> Span:
    kind = "forward" if times == 1 else "backward"
    return Span(rank=rank, lane="compute", name=name, kind=kind, start=start, end=end)


def _sent(rank: int, start: float, end: float) -> Span:
    return Span(rank=rank, lane="communication", name="all-reduce", kind="communication", start=start, end=end)


# ---- backward of layers cut by columns: what hides behind what ----


def simulate_columns(overlap: bool, *, layers: int, compute: float, send: float, title: str) -> Timeline:
    """dX and dW of each layer take `compute` seconds each, and dX's all-reduce takes `send`."""
    spans, now = [], 0.0
    for layer in reversed(range(layers)):
        done = now + compute
        spans.append(Span(rank=0, lane="compute", name=f"dX {layer}", kind="input_grad", start=now, end=done))
        spans.append(_sent(0, done, done + send))
        begin = done if overlap else done + send
        now = begin + compute
        spans.append(Span(rank=0, lane="compute", name=f"dW {layer}", kind="weight_grad", start=begin, end=now))
        now = max(now, done + send)
    return Timeline(spans=spans, source="predicted", title=title)


def emulate_columns(overlap: bool, *, layers: int, compute: float, send: float, title: str) -> Timeline:
    """The same on two live ranks, six times slower, and scaled back."""
    slow = 6.0
    link = Link(latency=0.0, bandwidth=UNIT / (send * slow))  # a ring of two carries all of the bytes once
    with Ranks(2, device="cpu", link=link, quiet=True) as ranks:
        spans = [span for found in ranks.run(_columns, overlap, layers, compute * slow) for span in found]
    scaled = [replace(span, start=span.start / slow, end=span.end / slow) for span in spans]
    return Timeline(spans=scaled, source="emulated", title=title)


def _columns(overlap: bool, layers: int, seconds: float) -> list[Span]:
    spans, dx, rank = [], torch.ones(UNIT // 4), dist.get_rank()

    def product(name: str, kind: str) -> None:
        start = time.perf_counter()
        paced(lambda: None, seconds)
        spans.append(Span(rank=rank, lane="compute", name=name, kind=kind, start=start, end=time.perf_counter()))

    dist.barrier()
    with record_comms() as recorder:
        for layer in reversed(range(layers)):
            product(f"dX {layer}", "input_grad")
            work = dist.all_reduce(dx, async_op=True)
            if not overlap:
                work.wait()
            product(f"dW {layer}", "weight_grad")
            work.wait()
    return spans + [_sent(rank, event.start, event.end) for event in recorder.log.events]
