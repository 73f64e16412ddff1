"""What chapter 05 runs and measures: what a step holds, on ranks and alone, and what each way to make room changes.

`recorded` is the one experiment: a small GPT with a vocabulary of 2,048, in fp32, on four sequences of 128 tokens. The
others change one thing in it. The functions that `ranks.run` calls take no recorder and give back plain records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import AdamW

from helpers.observe.equality import state_of
from helpers.observe.memory import MemoryRecorder, record_memory
from helpers.parallel.amp import MasterWeights
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.memory import (
    Budget,
    OffloadedOptimizer,
    checkpoint_sequential,
    chunked_token_loss,
    offload_activations,
)
from helpers.ranks import Ranks
from helpers.records import MemoryBreakdown
from helpers.workloads import GPT, GPTConfig, characters, token_loss

LITTLE = GPTConfig(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=96)
SIZES = dict(vocab_size=2048, context=128, num_layers=4, num_heads=4, hidden=128)
WIDE, WIDE_SPEC = GPTConfig(**SIZES), GPTConfig(**SIZES).spec
STATES = ("parameters", "gradients", "optimizer")


# ---- what is held of the model itself ----


def states_held(wrap: str = "ours", precision: str = "fp32") -> MemoryBreakdown:
    """On a rank after the third backward: weights, gradients, optimizer, and as buffers the buckets of DDP.

    wrap: as `wrapped` takes it. What the loss leaves, a few bytes, is left out.
    """
    torch.manual_seed(0)
    gpt = GPT(LITTLE) if precision == "fp32" else GPT(LITTLE).bfloat16()
    model = wrapped(gpt, wrap)
    optimizer = AdamW(gpt.parameters()) if precision == "fp32" else MasterWeights(gpt.parameters(), AdamW)
    tokens, targets = characters().batch(0, 4, 8, rank=dist.get_rank(), world_size=dist.get_world_size())
    with record_memory(model, optimizer) as recorder:
        for step in (1, 2, 3):
            optimizer.zero_grad()
            token_loss(model(tokens), targets).backward()
            recorder.mark(f"backward {step}")
            optimizer.step()
    made = [one for one in recorder.largest(1000, "backward 3") if one.module == "DistributedDataParallel"]
    buckets = sum(one.num_bytes for one in made if one.name == "empty")  # as torch's reducer allocates them
    return replace(recorder.at("backward 3"), activations=0, temporaries=0, buffers=buckets)


def wrapped(gpt: nn.Module, wrap: str) -> nn.Module:
    """The model "alone", under DDP of the course ("ours") or of "torch", or torch's with gradients as "views"."""
    if wrap in ("torch", "views"):
        return nn.parallel.DistributedDataParallel(gpt, gradient_as_bucket_view=wrap == "views")
    return DistributedDataParallel(gpt) if wrap == "ours" else gpt


def same_on_all(ranks: Ranks, *arguments: str) -> MemoryBreakdown:
    """`states_held` on these ranks. RuntimeError where two ranks hold different amounts."""
    one, *others = ranks.run(states_held, *arguments)
    if any(other != one for other in others):
        raise RuntimeError(f"the ranks hold different amounts, {one} and {others}")
    return one


# ---- one experiment ----


def recorded(
    config: GPTConfig = WIDE,
    *,
    batch: int = 4,
    micro_batches: int = 1,
    steps: int = 1,
    prepare: Callable[[nn.Module], object] | None = None,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda gpt, x, y: token_loss(gpt(x), y),
    update: bool = True,
    device: str = "cpu",
) -> MemoryRecorder:
    """Train `steps` steps and give back the meter. prepare: changes the model first. update: step the optimizer."""
    torch.manual_seed(0)
    gpt = GPT(config).to(device)
    optimizer = AdamW(gpt.parameters(), foreach=False)
    if prepare:
        prepare(gpt)
    tokens, targets = (one.to(device) for one in characters().batch(0, batch, config.context))
    with record_memory(gpt, optimizer) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            for x, y in zip(tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
                (loss(gpt, x, y) / micro_batches).backward()
            if update:
                optimizer.step()
    return recorder


def on_card(batch: int) -> MemoryBreakdown:
    """On a rank with a practice card: the peak of two steps. Raises torch.OutOfMemoryError where they do not fit."""
    return recorded(batch=batch, steps=2, device="card").peak


def torchs_peak() -> int:
    """Bytes at the peak of `recorded(update=False)`, by torch's own meter, which is private."""
    torch.manual_seed(0)
    gpt, tracker = GPT(WIDE), MemTracker()
    tokens, targets = characters().batch(0, 4, WIDE.context)
    tracker.track_external(gpt)
    with tracker:
        token_loss(gpt(tokens), targets).backward()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def in_slices(gpt: GPT, x: Tensor, y: Tensor) -> Tensor:
    """The loss of 128 tokens at a time."""
    return chunked_token_loss(gpt.features(x), gpt.head.weight, y, chunk_tokens=128)


def kept_for_backward(config: GPTConfig, batch: int = 4) -> dict[str, int]:
    """Module -> bytes of activations when forward has ended, all that is inside a block counted as the block's."""
    gpt = GPT(config)
    tokens, targets = characters().batch(0, batch, config.context)
    with record_memory(gpt) as recorder:
        loss = token_loss(gpt(tokens), targets)
        recorder.mark("forward")
        loss.backward()
    kept: dict[str, int] = {}
    for module, num_bytes in recorder.by_module(name="forward").items():
        owner = ".".join(module.split(".")[:2])
        kept[owner] = kept.get(owner, 0) + num_bytes
    return kept


def chain(num_segments: int, run: Callable = checkpoint_sequential) -> MemoryBreakdown:
    """The peak of 64 layers that keep their input alone, in units of one input, in so many checkpointed segments."""
    layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(64)))
    x = torch.ones(1024, 16, requires_grad=True)
    with record_memory(layers) as recorder:
        run(layers, num_segments, x).sum().backward()
    return recorder.peak


def one_backward(prepare: Callable[[nn.Module], object] = lambda gpt: None, loss: Callable | None = None) -> dict:
    """Loss and gradients of a GPT with dropout, in float64."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig.tiny(dropout=0.2)).double()
    prepare(gpt)
    tokens, targets = characters().batch(0, 8, 32)
    torch.manual_seed(1)  # the dropout masks
    value = loss(gpt, tokens, targets) if loss else token_loss(gpt(tokens), targets)
    value.backward()
    return {"loss": value.detach()} | state_of(gpt)


def each_block(run: Callable, **options) -> Callable[[nn.Module], None]:
    """A `prepare` that lets each block run inside `run(block, x, **options)`, such as torch's checkpoint."""

    def prepare(gpt: nn.Module) -> None:
        for block in gpt.blocks:
            block.forward = partial(run, block.forward, **options)

    return prepare


# ---- a device that can run out, and a list that grows ----


def within(num_bytes: int, *, activations: bool = False, optimizer: bool = False, batch: int = 4):
    """Two steps on a simulated device. Gives weights and gradients, and what the device saw. Raises OutOfBudget."""
    torch.manual_seed(0)
    gpt = GPT(WIDE)
    tokens, targets = characters().batch(0, batch, 128)
    with Budget(num_bytes, gpt.parameters()) as budget:
        adam = OffloadedOptimizer(gpt.parameters(), AdamW, budget) if optimizer else None
        adam = adam or AdamW(gpt.parameters(), foreach=False)
        for _ in range(2):
            adam.zero_grad()
            with offload_activations(budget, gpt) if activations else nullcontext():
                loss = token_loss(gpt(tokens), targets)
            loss.backward()
            adam.step()
    return state_of(gpt), budget


def held_after_steps(keep: Callable[[Tensor], object], *, backward: bool = False, grad: bool = True) -> list[int]:
    """Bytes of activations after each of four steps whose losses go into a list, as `keep` leaves them."""
    torch.manual_seed(0)
    gpt, losses = GPT(GPTConfig.tiny()), []
    tokens, targets = characters().batch(0, 16, 32)
    with record_memory(gpt) as recorder, torch.set_grad_enabled(grad):
        for step in range(4):
            loss = token_loss(gpt(tokens), targets)
            if backward:
                gpt.zero_grad()
                loss.backward()
            losses.append(keep(loss))
            del loss  # the name would hold the graph of the last step
            recorder.mark(f"step {step}")
    return [recorder.at(f"step {step}").activations for step in range(4)]


def as_it_is(loss: Tensor) -> Tensor:
    """For `keep`: the loss, with its graph."""
    return loss
