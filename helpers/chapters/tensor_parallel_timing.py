"""Emulates the durations of tensor parallel layers for chapter 07: how long a rank waits, and what overlap hides.

Two ranks run our f and g with real messages and modelled durations. f and g are Megatron's names for the two operators
around a sharded layer: f, here `identity_all_reduce`, does nothing in forward and all-reduces in backward; g, here
`all_reduce_identity`, does the opposite.

Compute and link are slowed down by the same factor, so that the milliseconds that a small machine loses do not show,
and the recorded times are divided by that factor afterwards, as in observe/emulate.py. Messages are shrunk to MESSAGE
bytes, and the bandwidth by the same ratio. Only two ranks run, even if the layer is split over eight: their link gets
the latency and bandwidth at which their all-reduce takes as long as that of eight ranks would on the real link.
Results are labelled "emulated". A `Pace` runs operations one after another in slow motion, and records a span for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.observe.comms import CommRecorder, record_comms
from helpers.observe.emulate import scaled_back, slow_ranks
from helpers.observe.paced import Pace, PacedFunction
from helpers.parallel.tensor_parallel.conjugate import all_reduce_identity, identity_all_reduce
from helpers.predict.time.flops import forward_parts
from helpers.quantities import costs
from helpers.records import Span, Timeline
from helpers.specs import GPU, Link, ModelSpec
from helpers.specs.hardware import COMPUTE_SHARE

SECONDS = 1.5  # how long a layer takes in slow motion
MESSAGE = 65_536  # bytes of a message
COLUMNS_SLOWDOWN = 6.0  # by which factor `emulate_columns` slows down compute and link


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """What one layer does on one rank.

    compute: seconds of the forward of attention, and of that of the MLP. message: bytes of an all-reduce, of which a
    layer has four: after attention and MLP, in forward and in backward.
    """

    num_ranks: int
    link: Link
    compute: tuple[float, float]
    message: float

    @classmethod
    def of(cls, model: ModelSpec, gpu: GPU, link: Link, num_ranks: int) -> LayerTimes:
        """The times of a layer for one sequence in 16 bits.

        The head's compute is spread over the layers; the embedding is a look-up and computes nothing.
        """
        parts = forward_parts(model)  # FLOPs of "feed-forward", "head" and the other parts, of all layers together
        seconds = sum(parts.values()) / num_ranks / (COMPUTE_SHARE * gpu.flops) / model.num_layers
        mlp = seconds * parts["feed-forward"] / (sum(parts.values()) - parts["head"])
        message = 2 * model.seq * model.hidden  # 2 bytes per element of the output
        return cls(num_ranks=num_ranks, link=link, compute=(seconds - mlp, mlp), message=message)

    @property
    def send(self) -> float:
        """Seconds of an all-reduce."""
        return costs.seconds("all_reduce", self.message, self.num_ranks, self.link)

    @property
    def busy(self) -> float:
        """Seconds of compute, forward and backward. Backward takes twice as long as forward."""
        return 3 * sum(self.compute)

    @property
    def waiting_share(self) -> float:
        """The share of the time in which a rank waits for messages."""
        return waiting_share(self.busy + 4 * self.send, self.busy)


def waiting_share(duration: float, busy: float) -> float:
    """The share of `duration` in which a rank does not compute. Both are in seconds."""
    return 1 - busy / duration


def emulate_layers(layers: LayerTimes, title: str = "") -> Timeline:
    """One layer on two ranks, in the seconds of `layers`: compute, then its message. Takes some seconds.

    The two stand for all `num_ranks`: their all-reduce takes as long as one of so many ranks on the link.
    """
    slowdown = SECONDS / (layers.busy + 4 * layers.send)
    # An all-reduce of two ranks pays the latency twice, and sends as many bytes as the message has.
    latency = costs.seconds("all_reduce", 0, layers.num_ranks, layers.link)
    link = Link(latency=latency / 2, bandwidth=MESSAGE / (layers.send - latency))
    with slow_ranks(2, link, slowdown) as ranks:
        runs = [ranks.run(_layer, slowdown, layers.compute) for _ in range(3)]
    fastest = min(runs, key=lambda timelines: timelines[0].duration)  # a busy machine only ever adds time
    return scaled_back([timeline.shifted_to_zero() for timeline in fastest], slowdown, title=title)


def _layer(slowdown: float, compute: Sequence[float]) -> Timeline:
    """On a rank, one layer twice: the first time without waits, to warm up. The second time is recorded."""
    pace = Pace()
    for factor in (0.0, slowdown):
        x = torch.ones(MESSAGE // 4, requires_grad=True)
        dist.barrier()
        pace.restart(factor)
        with record_comms() as recorder:
            y = x
            for name, seconds in zip(("att", "MLP"), compute, strict=True):
                y = all_reduce_identity(_share(identity_all_reduce(y, None), name, seconds, pace), None)
            y.backward(torch.ones_like(y))
    return _timeline(pace, recorder)


def _share(x: Tensor, name: str, seconds: float, pace: Pace) -> Tensor:
    """A rank's share of attention or of the MLP, which only takes time: x over the number of ranks.

    The sum over the ranks, which the all-reduce after it computes, is then x again. Backward takes twice the seconds of
    forward.
    """
    forward = partial(pace.run, seconds=seconds, name=name, kind="forward")
    backward = partial(pace.run, seconds=2 * seconds, name=name, kind="backward")
    size = dist.get_world_size()
    return PacedFunction.apply(forward, backward, lambda x: x / size, lambda grad, x: (grad / size,), x)


def _timeline(pace: Pace, recorder: CommRecorder) -> Timeline:
    """The spans of compute that `pace` recorded, and one for each all-reduce."""
    sums = [event for event in recorder.log.events if event.op == "all_reduce"]
    sent = [_all_reduce(dist.get_rank(), event.start, event.end) for event in sums]
    return Timeline(spans=pace.spans + sent, source="emulated")


def _all_reduce(rank: int, start: float, end: float) -> Span:
    return Span(rank=rank, lane="communication", name="all-reduce", kind="communication", start=start, end=end)


# ---- backward of column-parallel layers: how much of a message hides behind compute ----


def simulate_columns(overlap: bool, *, layers: int, compute: float, send: float, title: str) -> Timeline:
    """The predicted backward: dX and dW of each layer take `compute` seconds each, and dX's all-reduce takes `send`.

    dX is the gradient of the layer's input, and dW that of its weight. overlap: dW is computed while the message is in
    flight. Otherwise the rank waits for the message first.
    """
    spans, now = [], 0.0
    for layer in reversed(range(layers)):
        done = now + compute
        spans.append(Span(rank=0, lane="compute", name=f"dX {layer}", kind="input_grad", start=now, end=done))
        spans.append(_all_reduce(0, done, done + send))
        begin = done if overlap else done + send
        now = begin + compute
        spans.append(Span(rank=0, lane="compute", name=f"dW {layer}", kind="weight_grad", start=begin, end=now))
        now = max(now, done + send)
    return Timeline(spans=spans, source="predicted", title=title)


def emulate_columns(overlap: bool, *, layers: int, compute: float, send: float, title: str) -> Timeline:
    """What `simulate_columns` predicts with the same arguments, run on two ranks."""
    link = Link(latency=0.0, bandwidth=MESSAGE / send)  # a ring of two carries all of the bytes once
    with slow_ranks(2, link, COLUMNS_SLOWDOWN) as ranks:
        return scaled_back(ranks.run(_columns, overlap, layers, compute), COLUMNS_SLOWDOWN, title=title)


def _columns(overlap: bool, layers: int, compute: float) -> Timeline:
    """On a rank: the backward of all layers, last layer first."""
    pace, dx = Pace(), torch.ones(MESSAGE // 4)
    dist.barrier()
    pace.restart(COLUMNS_SLOWDOWN)
    with record_comms() as recorder:
        for layer in reversed(range(layers)):
            pace.run(lambda: None, compute, f"dX {layer}", "input_grad")
            work = dist.all_reduce(dx, async_op=True)
            if not overlap:
                work.wait()
            pace.run(lambda: None, compute, f"dW {layer}", "weight_grad")
            work.wait()
    return _timeline(pace, recorder)
