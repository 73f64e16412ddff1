"""Our autocast and scaler beside torch's: one training step of the same model on the same batch, in turn.

    python -m benchmarks.amp

Every row is time(ours) / time(torch's) of a whole step: forward under autocast, scaled backward, unscale, clip, AdamW,
update. The models are tiny, so a step is short and what the region costs a call shows. One thread, since operations of
this size gain nothing from two. On CPU 16-bit arithmetic is emulated and slow: these are costs of our Python, not
speed-ups. "scaler alone" is a float32 step, where unscaling is the largest part of what the two do differently.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.paired import paired_ratio, write_table
from helpers.parallel.amp import GradScaler, autocast
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet, digits, synthetic, synthetic_tokens, token_loss

PAIRS, WARMUP = 60, 5


def step_of(model: nn.Module, batch: tuple, loss_of: Callable, region: Callable, scaler) -> Callable[[], None]:
    """A call without arguments that trains `model` by one step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = batch

    def step() -> None:
        optimizer.zero_grad()
        with region():
            loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def images() -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = digits(flat=False)
    return features[:16], labels[:16]


WORKLOADS = {
    "GPT 28,672": (lambda: GPT(GPTConfig.tiny()), lambda: synthetic_tokens(8, 32, 68), token_loss),
    "MLP 0.4 M": (lambda: MLP([64, 512, 512, 10]), lambda: synthetic(32), F.cross_entropy),
    "SmallResNet 77 k": (SmallResNet, images, F.cross_entropy),
}
LARGE = (lambda: GPT(GPTConfig.ten_million()), lambda: synthetic_tokens(2, 32, 68), token_loss)
REGIONS = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def compare(workload: tuple, ours: Callable, theirs: Callable, pairs: int = PAIRS):
    """Ratio of a step in two regions, each with its own scaler."""
    build, batch, loss_of = workload
    sides = []
    for region, scaler in ((ours, GradScaler()), (theirs, torch.amp.GradScaler("cpu"))):
        torch.manual_seed(0)
        sides.append(step_of(build(), batch(), loss_of, region, scaler))
    return paired_ratio(*sides, pairs=pairs, warmup=WARMUP)


def row(model: str, what: str, ratio) -> dict[str, object]:
    found = {"model": model, "what": what, "ratio": ratio, "goal": "1.10",
             "ours (ms)": ratio.a_seconds * 1e3, "torch's (ms)": ratio.b_seconds * 1e3}  # fmt: skip
    print(found, flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for model, workload in WORKLOADS.items():
        for name, low in REGIONS.items():
            ours, theirs = functools.partial(autocast, low), functools.partial(torch.autocast, "cpu", dtype=low)
            rows.append(row(model, f"autocast {name} and scaler", compare(workload, ours, theirs)))
        rows.append(row(model, "scaler alone", compare(workload, contextlib.nullcontext, contextlib.nullcontext)))
    rows.append(row("GPT 10.7 M", "scaler alone", compare(LARGE, contextlib.nullcontext, contextlib.nullcontext, 30)))
    print(write_table("amp", rows, "python -m benchmarks.amp"))


if __name__ == "__main__":
    main()
