"""Trains small models in fp16 with a loss scaler, in one process and on ranks, for the runs that chapter 04 compares.

amp.py calls these functions. `characters().batch(step, rows, length)` returns tokens and targets of a small text
corpus, the same for the same step. `GradScaler` is this course's own and works like PyTorch's.
A scaler multiplies the loss by its scale. Where a gradient then is inf or NaN, it skips the step and halves the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import AdamW

from helpers.observe.equality import Tensors, state_of
from helpers.parallel.amp import GradScaler
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.workloads import GPT, GPTConfig, characters, token_loss


class ScaledStep(NamedTuple):
    """A step of training with a loss scaler: its loss, and the loss scale and all weights, flattened, after it."""

    loss: float
    scale: float
    weights: Tensor


def scaled_steps(
    scaler, region: Callable = nullcontext, optimizer_class: type = AdamW, *, lr: float = 1e-3, steps: int = 12,
    batch: int = 8, unscale_first: bool = True,
) -> Iterator[ScaledStep]:  # fmt: skip
    """Train a small GPT with a loss scaler, ours or PyTorch's, and yield what each step gave.

    region: makes the context in which the forward runs, such as autocast. batch: sequences per step. unscale_first:
    whether gradients are unscaled before they are clipped, as they must be.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny())
    optimizer = optimizer_class(model.parameters(), lr=lr)
    for step in range(steps):
        tokens, targets = characters().batch(step, batch, 32)
        optimizer.zero_grad()
        with region():
            loss = token_loss(model(tokens), targets)
        scaler.scale(loss).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # unscales now if it was not done before; steps only if all gradients are finite
        scaler.update()
        yield ScaledStep(loss.item(), scaler.get_scale(), parameters_to_vector(model.parameters()).detach())


def zero_by_hand(group=None) -> tuple[float, int, float]:
    """On a rank: three steps with sharded gradients, in the second of which those in rank 3's shard overflow.

    Returns log2 of the loss scale, the number of skipped steps, and the gradient that the rank sees in the last step,
    divided by the true one. group: the ranks that tell each other of an overflow; with None each rank decides alone.
    """
    rank, size = dist.get_rank(), dist.get_world_size()  # size is 4, so a shard has two of the eight weights
    weights = torch.ones(8)
    shard = nn.Parameter(weights.chunk(size)[rank].clone())  # (2,)
    optimizer, scaler = torch.optim.SGD([shard], lr=0.1), GradScaler(2.0**15, group=group)
    for step in range(3):
        full, x = weights.clone().requires_grad_(), torch.full((8,), 0.125)
        if (rank, step) == (0, 1):
            x[7] = 4.0  # overflows, in rank 3's shard
        loss = (full.half() * x.half()).float().sum()  # its true gradient is x
        scaler.scale(loss).backward()
        shard.grad = torch.empty(2)
        dist.reduce_scatter(shard.grad, list((full.grad / size).chunk(size)))
        scaler.unscale_(optimizer)
        factor = shard.grad[0].item() / 0.125  # 1 as long as all ranks have the same loss scale
        scaler.step(optimizer)
        scaler.update()
        dist.all_gather(list(weights.chunk(size)), shard.detach())
    return math.log2(scaler.get_scale()), scaler.skipped, factor


def train_float64(wrap: Callable, scaler: GradScaler, micro_batches: int = 1, rank: int = 0, size: int = 1) -> Tensors:
    """Weights and gradients after three steps with accumulation, a scaler and clipping, on rank `rank` of `size`.

    wrap: makes of the GPT the model that is called, such as DistributedDataParallel.
    """
    torch.manual_seed(0)
    gpt = GPT(GPTConfig.tiny()).double()
    model, optimizer = wrap(gpt), torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        batch = characters().batch(step, 16, 32, rank=rank, world_size=size)
        for number, micro in enumerate(zip(*(tensor.chunk(micro_batches) for tensor in batch), strict=True)):
            is_last = number == micro_batches - 1
            with nullcontext() if is_last else model.no_sync():
                loss = token_loss(model(micro[0]), micro[1]) / micro_batches
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # once, after the last micro-batch
        clip_grad_norm_(gpt.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return state_of(gpt)
