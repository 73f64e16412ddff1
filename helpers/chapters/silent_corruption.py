"""Trains four replicas of which one computes a wrong product once, and lets four alarms look for it, for chapter 12.

`train_with_flip` runs on each rank of a pool. One bit of one element flips on rank 2 in step 6: in the product of a
layer ("product"), so before the all-reduce, or in a weight after the update ("weight"). `alarms` says which of four
alarms went off, and after how many steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.draw import Part, Scene, parts_scene

LIAR, AT_STEP, STEPS = 2, 6, 12  # the rank whose bit flips, in which step of how many
ROWS, WIDTH = 32, 64  # rows per rank and step, and the width of a layer
ELEMENT = 101  # the element whose bit flips; in the product it is above 0, so GELU keeps it
TOLERANCE = 1e-5  # relative; sums of float32 in another order differ by about 1e-7
NORM_FACTOR = 3.0  # an alarm goes off where the gradient's norm is so many times that of the step before
# An alarm, and its name in the picture.
SHORT = {
    "loss is not finite": "loss",
    "gradient norm jumps": "norm",
    "weights differ between ranks": "weights",
    "checksum of the product": "product",
}


def flip_bit(tensor: Tensor, index: int, bit: int) -> None:
    """Flip one bit of one float32 element, in place. Bits 0 to 22: fraction; 23 to 30: exponent; 31: sign."""
    bits = tensor.detach().view(-1).view(torch.int32)  # the same memory
    bits[index] ^= torch.tensor(1, dtype=torch.int32) << bit


def product_error(x: Tensor, weight: Tensor, product: Tensor) -> float:
    """By how much `product`, (m, n), fails the checksum of x @ weight.T, relative to the size of its sums.

    The sum over the m rows of the product must be the product of the sum over the rows of x, (m, k).
    """
    expected = x.sum(0) @ weight.T  # (n,): 2kn operations instead of 2mkn
    scale = product.abs().sum(0).max()
    return ((product.sum(0) - expected).abs().max() / scale).nan_to_num(float("inf")).item()


def same_weights_everywhere(model: nn.Module) -> bool:
    """Whether all ranks hold the same weights: each computes a checksum of 32 bits, and they are gathered."""
    own = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    checksums = [None] * dist.get_world_size()
    dist.all_gather_object(checksums, own)
    return len(set(checksums)) == 1


class TrainedStep(NamedTuple):
    """What the alarms saw in a step. error: of the product, the largest of all ranks."""

    loss: float
    norm: float
    is_same: bool
    error: float


def train_with_flip(where: str = "", bit: int = 0) -> list[TrainedStep]:
    """Train on this rank with data parallelism. where: "product", "weight", or "" for no flip."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH, bias=False), nn.GELU(), nn.Linear(WIDTH, 1))
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    rank, errors = dist.get_rank(), torch.zeros(1)

    def check_product(layer: nn.Module, inputs: tuple[Tensor], product: Tensor) -> None:
        if where == "product" and rank == LIAR and len(seen) + 1 == AT_STEP:
            flip_bit(product, ELEMENT, bit)
        errors.fill_(product_error(inputs[0], layer.weight, product))

    model[0].register_forward_hook(check_product)
    for step in range(1, STEPS + 1):
        x = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(4 * step + rank))
        loss = F.mse_loss(model(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        for tensor in (loss.data, *(p.grad for p in model.parameters())):
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
        dist.all_reduce(errors, op=dist.ReduceOp.MAX)
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        optimizer.step()
        if where == "weight" and rank == LIAR and step == AT_STEP:
            flip_bit(model[0].weight, ELEMENT, bit)
        seen.append(TrainedStep(loss.item(), norm, same_weights_everywhere(model), errors.item()))
    return seen


def alarms_scene(found: Mapping[str, Mapping[str, int | None]], *, title: str) -> Scene:
    """A row per case and a field per alarm, which is coloured where the alarm went off."""

    def field(name: str, steps: int | None) -> Part:
        is_off = steps is not None
        return Part(text=SHORT[name], kind="communication" if is_off else "other", size=1)

    rows = {case: [field(*one) for one in of_case.items()] for case, of_case in found.items()}
    first = {case: [steps for steps in of_case.values() if steps is not None] for case, of_case in found.items()}
    ends = {
        case: ("same step" if min(steps) == 0 else f"{min(steps)} steps later") if steps else "never"
        for case, steps in first.items()
    }
    legend = {"communication": "the alarm goes off", "other": "the alarm stays silent"}
    return parts_scene(rows, ends=ends, legend=legend, title=title)


def alarms(steps: Sequence[TrainedStep]) -> dict[str, int | None]:
    """For each alarm, how many steps after the flip it goes off: 0 in the same step, None for never."""
    norms = [steps[0].norm, *(one.norm for one in steps)]
    off = {
        "loss is not finite": [not torch.tensor(one.loss).isfinite() for one in steps],
        "gradient norm jumps": [
            not norm <= NORM_FACTOR * before for before, norm in zip(norms, norms[1:], strict=False)
        ],
        "weights differ between ranks": [not one.is_same for one in steps],
        "checksum of the product": [one.error > TOLERANCE for one in steps],
    }
    return {
        name: next((n - AT_STEP + 1 for n, is_off in enumerate(flags) if is_off), None) for name, flags in off.items()
    }


def when_weights_differ(found: Mapping[str, Mapping[str, int | None]]) -> str:
    """Say when the weights differ after a flip in a product, as a choice of 12.flip. found: see `alarms`."""
    steps = {of_case["weights differ between ranks"] for case, of_case in found.items() if "product" in case}
    if steps == {None}:
        return "never"
    return "after the same step" if steps == {0} else "some steps later"


def nearest_share(share: float) -> str:
    """Find the choice of 12.check that is nearest to a share of operations."""
    choices = {"about 0.05 %": 0.0005, "about 5 %": 0.05, "about 50 %": 0.5}
    return min(choices, key=lambda name: abs(choices[name] - share))
