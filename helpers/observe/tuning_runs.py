"""What station E of chapter 10 runs: 16 paced layers under DDP on a slow emulated link, tuned in several ways.

Functions that say "on a rank" are for `ranks.run`, on ranks whose link is LINK.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.observe.paced import PacedLinear
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.time.ddp import BackwardPass, simulate_ddp_step
from helpers.specs import Link

LINK = Link(latency=5e-3, bandwidth=12.5e6)
LAYERS, WIDTH, FORWARD, BACKWARD = 16, 128, 0.004, 0.015  # seconds of a layer
LAYER_BYTES = 4 * WIDTH * (WIDTH + 1)


class Stack(nn.Module):
    """16 paced layers. in_order: whether they are registered in the order in which forward uses them."""

    def __init__(self, in_order: bool = True) -> None:
        super().__init__()
        pace = {"forward_seconds": FORWARD, "backward_seconds": BACKWARD}
        self.layers = nn.ModuleList(PacedLinear(WIDTH, WIDTH, **pace) for _ in range(LAYERS))
        self.in_order = in_order

    def forward(self, x: Tensor) -> Tensor:  # (B, WIDTH) to the same
        for layer in self.layers if self.in_order else reversed(self.layers):
            x = layer(x)
        return x


def cap_of(num_layers: int) -> float:
    """The bucket_cap_mb, in MiB, that closes a bucket after so many layers, whether a weight ends them or a bias."""
    return (num_layers * LAYER_BYTES - 2 * WIDTH) / 2**20


def predicted_seconds(num_layers: int, strategy: str = "overlapped") -> float:
    backward = BackwardPass(
        names=tuple(f"layer {number}" for number in reversed(range(LAYERS))),
        num_bytes=(LAYER_BYTES,) * LAYERS, seconds=(BACKWARD,) * LAYERS, forward_seconds=LAYERS * FORWARD,
    )  # fmt: skip
    caps = {"bucket_cap_mb": cap_of(num_layers), "first_bucket_mb": cap_of(num_layers)}
    return simulate_ddp_step(backward, link=LINK, world_size=4, strategy=strategy, **caps).duration


def step_seconds(model: nn.Module, steps: int) -> list[float]:
    """On a rank: of each step, from a barrier to the end of backward."""
    took = []
    for _ in range(steps):
        model.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        model(torch.ones(2, WIDTH)).sum().backward()
        took.append(time.perf_counter() - began)
    return took


def bucketed(num_layers: int) -> list[float]:
    """On a rank: three steps of torch's DDP, whose buckets hold so many layers."""
    return step_seconds(nn.parallel.DistributedDataParallel(Stack(), bucket_cap_mb=cap_of(num_layers)), 3)


def ordered(num_layers: int, *, overlap: bool = True, in_order: bool = True) -> list[float]:
    """On a rank: three steps of our DDP, with or without overlap, its layers registered in forward's order or not."""
    caps = {"bucket_cap_mb": cap_of(num_layers), "first_bucket_mb": cap_of(num_layers)}
    return step_seconds(DistributedDataParallel(Stack(in_order), overlap=overlap, **caps), 3)
