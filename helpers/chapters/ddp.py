"""Runs chapter 03: a small GPT under each DDP on ranks, the messages that are sent, and what one process gives.

Functions whose docstring begins with "On a rank" are for `ranks.run(f)`, which calls f in each process of a pool and
returns the list of results; the others run in the notebook's process. `characters().batch(step, rows, length, rank=…,
world_size=…)` returns this rank's share of `rows` sequences, as tokens and targets from a small text corpus; without
rank and world_size it returns all of them. `wrap` is always a function that wraps a model, such as our
`DistributedDataParallel`, our slow `NaiveDDP`, or PyTorch's class.

A `Training` says what is trained, and `training.under(Strategy, **options)` how: a strategy is a subclass of
`DataParallelRanks`, which is built on each rank with the model and the training, and trains on its own rows.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.collectives import all_reduce_ring
from helpers.observe.comms import record_comms
from helpers.observe.equality import Tensors, assert_equal, state_of
from helpers.observe.stopwatch import seconds_of, seconds_of_steps
from helpers.observe.training import KEY_BIAS_ROUNDING, DataParallelRanks, Training
from helpers.parallel.ddp import (
    DistributedDataParallel,
    DistributedSampler,
    MiniDDP,
    NaiveDDP,
    SyncBatchNorm,
)
from helpers.predict.time.data_parallel import BackwardPass
from helpers.ranks import Ranks
from helpers.records import CommLog
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, characters, digits, token_loss

TINY = GPTConfig.tiny()
LENGTHS = (4, 8, 16, 32)  # how many tokens count in the loss on each of 4 ranks, as if the others were padding
TRAINING = Training(
    model=lambda: GPT(TINY).double(),
    batch=lambda step: characters().batch(step, 16, TINY.context),
    options={"lr": 1e-3},  # of the optimizer, which is AdamW unless another is named
    seeds_by_rank=True,  # so that only what DDP sends from rank 0 makes the ranks' initial weights equal
)
SIX_LAYERS = (1024, 2048, 2048, 2048, 2048, 2048, 1024)  # of an MLP of 21 million parameters, as in benchmarks/ddp.py
Wrap = Callable[[nn.Module], nn.Module]


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the world size; (0, 1) outside a group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def sixteen_gradients() -> BackwardPass:
    """The model whose step is emulated: 16 gradients of 0.5 MiB, 7.5 ms of backward before each, 40 ms of forward."""
    names = tuple(f"gradient {number}" for number in reversed(range(16)))  # in the order of backward
    return BackwardPass(names=names, num_bytes=(2**19,) * 16, seconds=(0.0075,) * 16, forward_seconds=0.04)


# ---- equal to one process ----


class AveragedGradients(DataParallelRanks):
    """This course's DDP classes and PyTorch's: gradients are averaged in backward, or by a call after it."""

    def __init__(self, model: nn.Module, training: Training, wrap: Wrap):
        super().__init__(model, training, forward=wrap(model))

    def after_backward(self) -> None:
        if isinstance(self.forward, NaiveDDP):
            self.forward.average_gradients()
        if isinstance(self.forward, MiniDDP):
            self.forward.wait()


class AveragedWeights(DataParallelRanks):
    """Each rank steps with its own gradients, and the weights are averaged after the step."""

    def __init__(self, model: nn.Module, training: Training, average: Callable[[nn.Module], None]):
        super().__init__(NaiveDDP(model).module, training)  # NaiveDDP sends rank 0's weights, so all ranks start equal
        self.average = average

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, None]:
        result = super().step(inputs, targets)  # the loss, and no norm, since no gradients are clipped
        self.average(self.model)
        return result

    def state(self) -> Tensors:
        # A rank's gradients are those of its own rows only, so they cannot equal those of one process.
        return without_gradients(super().state())


def train(wrap: Wrap | None = None) -> Tensors:
    """Losses, weights and gradients after six steps of AdamW: on a rank with `wrap`, and without it in one process."""
    return (TRAINING.under(AveragedGradients, wrap=wrap) if wrap else TRAINING).run()


def averaged_weights(ranks: Ranks, average: Callable[[nn.Module], None]) -> list[str]:
    """For SGD with momentum and for AdamW, a line: whether averaging weights equals one process.

    average: replaces the weights of a model by their mean over the ranks; it is called after each step.
    """
    lines = []
    for optimizer, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {})):
        training = replace(TRAINING, optimizer=optimizer, options=TRAINING.options | options)
        results = ranks.run(training.under(AveragedWeights, average=average).run)
        line = equality_line(without_gradients(training.run()), results)
        lines.append(f"averaged weights, {optimizer.__name__}: {line}")
    return lines


def equality_line(alone: Tensors, results: Sequence[Tensors]) -> str:
    """A line that begins with "equal" or "not equal": whether every rank's tensors are those of one process.

    alone: what one process gives, by name. results: the same of each rank.
    """
    try:
        assert_equal(alone, results, atol=KEY_BIAS_ROUNDING)  # attention's key bias has a gradient of rounding noise
    except AssertionError:
        return f"not equal ({_difference(alone, results[0])})"
    return f"equal on all {len(results)} ranks, but for rounding"


def _difference(alone: Tensors, result: Tensors) -> str:
    """How rank 0 differs: by the last loss if losses were recorded, else by the gradients, else by all tensors."""
    if "losses" in alone:
        losses = [states["losses"][-1].item() for states in (result, alone)]
        return "the loss of step {} is {:.3f}, one process has {:.3f}".format(len(alone["losses"]), *losses)
    gradients = [name for name in alone if name.endswith(".grad")]
    found, wanted = (torch.cat([states[n].flatten() for n in gradients or alone]) for states in (result, alone))
    what = "the gradient is" if gradients else "they are"
    return f"{what} off by {100 * (found - wanted).norm().item() / wanted.norm().item():.2g}%"


def without_gradients(states: Tensors) -> Tensors:
    """The losses and weights among these tensors."""
    return {name: value for name, value in states.items() if not name.endswith(".grad")}


# ---- messages ----


def message_sizes(wrap: Wrap, steps: int = 2) -> list[list[int]]:
    """On a rank: for each step, the bytes of each gradient message of a GPT with 10,698,240 parameters, in order."""
    torch.manual_seed(0)
    model, (rank, world_size) = wrap(GPT(GPTConfig.ten_million())), rank_and_size()
    tokens, targets = characters().batch(0, 4, 16, rank=rank, world_size=world_size)
    logs = []
    for _ in range(steps):
        with record_comms() as recorder:
            token_loss(model(tokens), targets).backward()
        logs.append(_gradient_messages(recorder.log))
    return logs


def _gradient_messages(log: CommLog) -> list[int]:
    """Bytes of each message with gradients.

    Our DDP also sends integers, by which the ranks agree on the order of the buckets; they are left out.
    """
    gradients = (event for event in log.events if event.op == "all_reduce" and "float" in event.dtype)
    return [event.payload_bytes for event in sorted(gradients, key=lambda event: event.sequence)]


def count_gradient_storages(wrap: Wrap) -> int:
    """On a rank: how many storages hold the gradients after two steps.

    It is one per bucket if gradients are views of the buckets, and else one per parameter.
    """
    model = wrap(GPT(TINY))
    tokens, targets = characters().batch(0, 4, TINY.context)  # the same on all ranks, as the values do not matter
    for _ in range(2):
        token_loss(model(tokens), targets).backward()
    return len({parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()})


def sent_by_rings(sizes: Sequence[int]) -> int:
    """On a rank: bytes that it sends when fp32 messages of these sizes are all-reduced by the ring of chapter 01."""
    with record_comms() as recorder:
        for size in sizes:
            all_reduce_ring(torch.ones(size // 4))
    return recorder.log.payload_bytes("send")


def backward_with_hook(hook: Callable | None = None) -> tuple[int, Tensor]:
    """On a rank: payload in bytes of one backward with this communication hook, and all gradients, flattened.

    hook: replaces the all-reduce of a bucket, for example by one in bf16, as in PyTorch's register_comm_hook.
    """
    torch.manual_seed(0)
    model, (rank, world_size) = DistributedDataParallel(GPT(TINY)), rank_and_size()
    if hook:
        model.register_comm_hook(None, hook)  # None: the hook gets no state
    tokens, targets = characters().batch(0, 16, TINY.context, rank=rank, world_size=world_size)
    with record_comms() as recorder:
        token_loss(model(tokens), targets).backward()
    return recorder.log.payload_bytes("all_reduce"), torch.cat([p.grad.flatten() for p in model.parameters()])


def hooks_fired(pause: float = 0.05) -> list[tuple[str, str, float]]:
    """The hooks of one backward in order: the parameter's name, the hook's thread, and when it started.

    Each hook then sleeps for `pause` seconds, which shows whether backward goes on meanwhile.
    """
    model, fired = MLP([64, 96, 96, 32]), []

    def record(name: str) -> None:
        fired.append((name, threading.current_thread().name, time.perf_counter()))
        time.sleep(pause)

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: record(name))
    model(torch.ones(4, 64)).sum().backward()
    return fired


def accumulate(num_no_sync: int, num_microbatches: int = 4) -> tuple[list[int], Tensors]:
    """On a rank: the sizes of one step's messages, and its gradients.

    The first `num_no_sync` micro-batches of the step run under no_sync.
    """
    torch.manual_seed(0)
    model, (rank, world_size) = DistributedDataParallel(GPT(TINY).double()), rank_and_size()
    tokens, targets = characters().batch(0, 32, TINY.context, rank=rank, world_size=world_size)
    pieces = zip(tokens.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True)
    with record_comms() as recorder:
        for number, (x, y) in enumerate(pieces):
            with model.no_sync() if number < num_no_sync else nullcontext():
                (token_loss(model(x), y) / num_microbatches).backward()
    return _gradient_messages(recorder.log), state_of(model)


# ---- means of means ----


def gradients_by_rank(loss_of: Callable[[Tensor, int], Tensor]) -> Tensors:
    """On a rank: gradients under DDP of a batch in which rank r has LENGTHS[r] tokens that count.

    loss_of: makes this rank's loss from the sum over its tokens and their number.
    """
    torch.manual_seed(0)
    model, rank = DistributedDataParallel(GPT(TINY).double()), dist.get_rank()
    tokens, targets = characters().batch(0, 4, TINY.context, rank=rank, world_size=4)  # one sequence on each rank
    loss_of(_summed_loss(model(tokens)[0], targets[0], LENGTHS[rank]), LENGTHS[rank]).backward()
    return state_of(model)


def gradients_by_token() -> Tensors:
    """The gradients of the same batch in one process, where each token has the same weight."""
    torch.manual_seed(0)
    gpt = GPT(TINY).double()
    tokens, targets = characters().batch(0, 4, TINY.context)
    logits = gpt(tokens)
    total = sum(_summed_loss(logits[rank], targets[rank], length) for rank, length in enumerate(LENGTHS))
    (total / sum(LENGTHS)).backward()
    return state_of(gpt)


def _summed_loss(logits: Tensor, targets: Tensor, length: int) -> Tensor:
    """The summed loss of the first `length` tokens, which are those that count."""
    return F.cross_entropy(logits[:length], targets[:length], reduction="sum")


def batch_norm_gradients(*, synced: bool = False) -> Tensors:
    """Weights, gradients and running statistics of a small ResNet after one backward on 32 images, divided over ranks.

    synced: with SyncBatchNorm. BatchNorm's num_batches_tracked is left out. It counts forwards, so it is 1 in every
    case, and comparing it would say nothing.
    """
    rank, world_size = rank_and_size()
    images, labels = digits(flat=False, dtype=torch.float64)
    torch.manual_seed(0)
    net = SmallResNet(width=4).double()
    net = SyncBatchNorm.convert(net) if synced else net
    model = DistributedDataParallel(net) if world_size > 1 else net
    F.cross_entropy(model(images[rank:32:world_size]), labels[rank:32:world_size]).backward()
    return {name: value for name, value in state_of(net).items() if "num_batches" not in name}


# ---- data ----


def sampler_orders(calls_set_epoch: bool) -> list[list[list[int]]]:
    """For each of two epochs and each of four ranks: which of ten examples it gets, in its order."""
    samplers = [DistributedSampler(range(10), num_replicas=4, rank=rank) for rank in range(4)]
    epochs = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch if calls_set_epoch else 0)  # 0: as in a loop that never calls set_epoch
        epochs.append([list(sampler) for sampler in samplers])
    return epochs


# ---- time ----


def step_seconds(batch: int, steps: int = 9) -> float:
    """On a rank: median seconds of forward and backward of an MLP of 4.7 M parameters on its share of `batch` rows."""
    torch.manual_seed(0)
    model = DistributedDataParallel(MLP([256, 2048, 2048, 10]))
    x = torch.ones(batch // dist.get_world_size(), 256)
    return statistics.median(seconds_of(lambda: model(x).sum().backward()) for _ in range(steps))


def seconds_of_naive_and_overlapped(widths: Sequence[int] = SIX_LAYERS, rounds: int = 9) -> tuple[float, float]:
    """On a rank: seconds of the fastest step under NaiveDDP and under our overlapped DDP, on clocks that run freely.

    A step is forward and backward of an MLP on 64 rows, and the average of its gradients. The two take turns, and each
    step starts at a barrier. The fastest of some rounds counts, because a busy machine only ever adds time.
    """
    steps = []
    for wrap in (NaiveDDP, DistributedDataParallel):
        torch.manual_seed(0)
        steps.append(partial(_averaged_step, wrap(MLP(widths)), torch.randn(64, widths[0])))
    timed = [[seconds_of_steps(step, 1)[0] for step in steps] for _ in range(rounds + 1)]
    naive, overlapped = zip(*timed[1:], strict=True)  # the first round allocates gradients and buckets
    return min(naive), min(overlapped)


def _averaged_step(model: nn.Module, x: Tensor) -> None:
    """On a rank: one step without an optimizer."""
    model.zero_grad()
    model(x).square().mean().backward()
    if isinstance(model, NaiveDDP):
        model.average_gradients()


# ---- a layer that one rank skips ----


class SkippingModel(nn.Module):
    """A model in which rank 1 skips a layer, as happens where a branch depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:  # (B, 8)
        x = self.first(x)
        return self.last(x if dist.get_rank() == 1 else self.extra(x))
