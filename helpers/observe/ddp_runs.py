"""What chapter 03 runs on its ranks: a small GPT under each DDP, what is sent, and what one process gives.

Functions that say "on a rank" are for `ranks.run`; those that take no part in a group train in this process alone.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.collectives import all_reduce_ring
from helpers.observe.comms import record_comms
from helpers.observe.equality import assert_equal, state_of
from helpers.parallel.ddp import (
    DistributedDataParallel,
    DistributedSampler,
    NaiveDDP,
    SyncBatchNorm,
    count_tokens,
    token_mean,
)
from helpers.predict.time.ddp import BackwardPass
from helpers.ranks import Ranks
from helpers.records import CommLog
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, characters, digits, token_loss

TINY = GPTConfig.tiny()
ZERO_IN_THEORY = {"*key.bias*": 1e-9}  # gradients that are rounding noise: an absolute tolerance
LENGTHS = (4, 8, 16, 32)  # tokens that count on each rank
States = dict[str, Tensor]
Wrap = Callable[[nn.Module], nn.Module]


def place() -> tuple[int, int]:
    """This process's rank and the world size; (0, 1) outside a group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def sixteen_gradients() -> BackwardPass:
    """The model whose step is played: gradients of 0.5 MiB, 7.5 ms of backward before each, 40 ms of forward."""
    names = tuple(f"gradient {number}" for number in reversed(range(16)))
    return BackwardPass(names=names, num_bytes=(2**19,) * 16, seconds=(0.0075,) * 16, forward_seconds=0.04)


# ---- equal to one process ----


def trained(
    wrap: Wrap | None = None,
    *,
    steps: int = 6,
    optimizer: type = torch.optim.AdamW,
    after_step: Callable[[nn.Module], None] | None = None,
    **options: float,
) -> States:
    """Losses, and weights and gradients after the last step. Every rank draws other initial weights, on purpose."""
    rank, world_size = place()
    torch.manual_seed(rank)
    gpt = GPT(TINY).double()
    model = wrap(gpt) if wrap else gpt
    steps_of = optimizer(gpt.parameters(), **({"lr": 1e-3} | options))
    losses = []
    for step in range(steps):
        tokens, targets = characters().batch(step, 16, TINY.context, rank=rank, world_size=world_size)
        steps_of.zero_grad()
        loss = token_loss(model(tokens), targets)
        loss.backward()
        if isinstance(model, NaiveDDP):
            model.average_gradients()
        steps_of.step()
        if after_step:
            after_step(gpt)
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)} | state_of(gpt)


def told(alone: States, results: Sequence[States]) -> str:
    """Whether every rank's tensors are those of one process, in a line that begins with "equal" or "not equal".

    Of the losses the mean over the ranks counts: that of the whole batch.
    """
    if "losses" in alone:
        mean = torch.stack([result["losses"] for result in results]).mean(0)
        results = [result | {"losses": mean} for result in results]
    try:
        assert_equal(alone, results, atol=ZERO_IN_THEORY)
    except AssertionError:
        return f"not equal ({_how_far(alone, results[0])})"
    return f"equal on all {len(results)} ranks, but for rounding"


def _how_far(alone: States, result: States) -> str:
    if "losses" in alone:
        numbers = [states["losses"][-1].item() for states in (result, alone)]
        return "the loss of step {} is {:.3f}, one process has {:.3f}".format(len(alone["losses"]), *numbers)
    gradients, wanted = (torch.cat([s[n].flatten() for n in alone if n.endswith(".grad")]) for s in (result, alone))
    return f"the gradient is off by {(gradients - wanted).norm() / wanted.norm():.0%}"


def averaging_weights(optimizer: type, **options: float) -> States:
    """On a rank: as `trained`, but each rank steps with its own gradients, and the weights are averaged after it."""
    options |= {"optimizer": optimizer, "after_step": _average_weights}
    return without_gradients(trained(lambda gpt: NaiveDDP(gpt).module, **options))  # they start equal


def averaged_weights(ranks: Ranks) -> list[str]:
    """For SGD with momentum and for AdamW, a line: whether averaging weights equals one process."""
    lines = []
    for optimizer, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {})):
        alone = without_gradients(trained(optimizer=optimizer, **options))
        said = told(alone, ranks.run(averaging_weights, optimizer, **options))
        lines.append(f"averaged weights, {optimizer.__name__}: {said}")
    return lines


def without_gradients(states: States) -> States:
    return {name: value for name, value in states.items() if not name.endswith(".grad")}


@torch.no_grad()
def _average_weights(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter)
        parameter /= dist.get_world_size()


# ---- messages ----


def messages(wrap: Wrap, steps: int = 2) -> list[list[int]]:
    """On a rank: bytes of the messages of each backward of a GPT with 10,698,240 parameters, as they were issued."""
    torch.manual_seed(0)
    model, (rank, world_size) = wrap(GPT(GPTConfig.ten_million())), place()
    tokens, targets = characters().batch(0, 4, 16, rank=rank, world_size=world_size)
    logs = []
    for _ in range(steps):
        with record_comms() as recorder:
            token_loss(model(tokens), targets).backward()
        logs.append(_carried(recorder.log))
    return logs


def _carried(log: CommLog) -> list[int]:
    """Bytes of each message with gradients. DDP sends others too: its ranks also agree on an order."""
    gradients = (event for event in log.events if event.op == "all_reduce" and "float" in event.dtype)
    return [event.payload_bytes for event in sorted(gradients, key=lambda event: event.sequence)]


def storages(wrap: Wrap) -> int:
    """On a rank: in how many pieces of memory the gradients lie after two steps: one per bucket if they are views."""
    model = wrap(GPT(TINY))
    tokens, targets = characters().batch(0, 4, TINY.context)
    for _ in range(2):
        token_loss(model(tokens), targets).backward()
    return len({parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()})


def sent_by_rings(sizes: Sequence[int]) -> int:
    """On a rank: bytes sent when messages of these bytes (fp32) are all-reduced by the ring of chapter 01."""
    with record_comms() as recorder:
        for size in sizes:
            all_reduce_ring(torch.ones(size // 4))
    return recorder.log.payload_bytes("send")


def compressed(hook: Callable | None = None) -> tuple[int, Tensor]:
    """On a rank: payload of one backward with this communication hook, and all gradients as one line."""
    torch.manual_seed(0)
    model, (rank, world_size) = DistributedDataParallel(GPT(TINY)), place()
    if hook:
        model.register_comm_hook(None, hook)
    tokens, targets = characters().batch(0, 16, TINY.context, rank=rank, world_size=world_size)
    with record_comms() as recorder:
        token_loss(model(tokens), targets).backward()
    return recorder.log.payload_bytes("all_reduce"), torch.cat([p.grad.flatten() for p in model.parameters()])


def hooks_fired() -> list[tuple[str, str]]:
    """In the order of a backward: the name of each parameter, and the thread in which its hook ran."""
    model, fired = MLP([64, 96, 96, 32]), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: fired.append((name, threading.current_thread().name))
        )
    model(torch.ones(4, 64)).sum().backward()
    return fired


def accumulated(quiet: int, num_microbatches: int = 4) -> tuple[list[int], States]:
    """On a rank: bytes of a step's messages, whose first `quiet` micro-batches run under no_sync, and its gradients."""
    torch.manual_seed(0)
    model, (rank, world_size) = DistributedDataParallel(GPT(TINY).double()), place()
    tokens, targets = characters().batch(0, 32, TINY.context, rank=rank, world_size=world_size)
    pieces = zip(tokens.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True)
    with record_comms() as recorder:
        for number, (x, y) in enumerate(pieces):
            with model.no_sync() if number < quiet else nullcontext():
                (token_loss(model(x), y) / num_microbatches).backward()
    return _carried(recorder.log), state_of(model)


# ---- means of means ----


def by_rank(*, counts_tokens: bool) -> States:
    """On a rank: gradients of a batch in which rank r has LENGTHS[r] tokens that count."""
    torch.manual_seed(0)
    model, rank = DistributedDataParallel(GPT(TINY).double()), dist.get_rank()
    tokens, targets = characters().batch(0, 4, TINY.context, rank=rank, world_size=4)
    sums = _summed(model(tokens)[0], targets[0], LENGTHS[rank])
    loss = token_mean(sums, count_tokens(LENGTHS[rank])) if counts_tokens else sums / LENGTHS[rank]
    loss.backward()
    return state_of(model)


def by_token() -> States:
    """In one process: the same batch, each token with the same weight."""
    torch.manual_seed(0)
    gpt = GPT(TINY).double()
    tokens, targets = characters().batch(0, 4, TINY.context)
    logits = gpt(tokens)
    total = sum(_summed(logits[rank], targets[rank], length) for rank, length in enumerate(LENGTHS))
    (total / sum(LENGTHS)).backward()
    return state_of(gpt)


def _summed(logits: Tensor, targets: Tensor, length: int) -> Tensor:
    return F.cross_entropy(logits[:length], targets[:length], reduction="sum")


def normalised(*, synced: bool = False) -> States:
    """Gradients of a small ResNet on 32 images, of which each rank has its share."""
    rank, world_size = place()
    images, labels = digits(flat=False, dtype=torch.float64)
    torch.manual_seed(0)
    net = SmallResNet(width=4).double()
    net = SyncBatchNorm.convert(net) if synced else net
    model = DistributedDataParallel(net) if world_size > 1 else net
    F.cross_entropy(model(images[rank:32:world_size]), labels[rank:32:world_size]).backward()
    return {name: value for name, value in state_of(net).items() if "num_batches" not in name}


# ---- data ----


def orders(calls_set_epoch: bool) -> list[list[list[int]]]:
    """The shares of four ranks of ten examples, in two epochs."""
    samplers = [DistributedSampler(range(10), num_replicas=4, rank=rank) for rank in range(4)]
    found = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch if calls_set_epoch else 0)
        found.append([list(sampler) for sampler in samplers])
    return found


# ---- time ----


def step_seconds(batch: int, steps: int = 9) -> float:
    """On a rank: median seconds of forward and backward of an MLP of 4.7 M parameters on its share of batch."""
    torch.manual_seed(0)
    model, times = DistributedDataParallel(MLP([256, 2048, 2048, 10])), []
    x = torch.ones(batch // dist.get_world_size(), 256)
    for _ in range(steps):
        start = time.perf_counter()
        model(x).sum().backward()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# ---- a layer that one rank skips ----


class Skips(nn.Module):
    """Rank 1 leaves out a layer, as a model does whose branch depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:  # (B, 8)
        x = self.first(x)
        return self.last(x if dist.get_rank() == 1 else self.extra(x))


def two_steps(wrap: Callable, **options: bool) -> str:
    """On a rank: two backward passes of it."""
    model = wrap(Skips(), **options)
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
    return "done"
