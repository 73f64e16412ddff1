"""For how long a save stops a training step, beside how long the same save takes when the step waits for all of it.

    python -m benchmarks.saves [pairs]

GPT of 10.7 million parameters with AdamW, 128 MB in all. Both kinds of save in turn, down to the disk (fsync), each as
long as its slowest rank takes. While a thread writes, it takes a part of the machine from the steps: the row of steps
says by how much. torch: torch.distributed.checkpoint with its
defaults on the same tensors.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.paired import Ratio, ratio_of, write_table
from helpers.compose import Plan, Trainer
from helpers.compose.checkpoint import AsyncSaver
from helpers.ranks import Ranks
from helpers.workloads import GPT, GPTConfig, token_loss

PAIRS, STEPS = 9, 3
CONFIG = GPTConfig.ten_million()


def trainer_of(plan: Plan) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(GPT(CONFIG), plan, loss=token_loss, optimizer=torch.optim.AdamW, lr=1e-3)
    step(trainer)
    return trainer


def step(trainer: Trainer) -> None:
    tokens = torch.randint(0, CONFIG.vocab_size, (4, 64), generator=torch.Generator().manual_seed(0))
    trainer.step(tokens, tokens)


def seconds(work: Callable[[], object]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def ours(plan: Plan, place: Path, pairs: int) -> list[list[float]]:
    """On a rank: of each pair the stall, the synchronous save, the steps during a save, and the steps alone."""
    trainer, rows = trainer_of(plan), []
    saver = AsyncSaver(trainer)
    steps = lambda: [step(trainer) for _ in range(STEPS)]  # noqa: E731
    for _ in range(pairs + 1):
        at_once = seconds(lambda: trainer.save(place / "at_once"))
        stall = seconds(lambda: saver.save(place / "later"))
        during = seconds(steps)
        saver.wait()
        rows.append([stall, at_once, during, seconds(steps)])
        cleared(place)
    return rows[1:]


def torchs(plan: Plan, place: Path, pairs: int) -> list[list[float]]:
    import torch.distributed.checkpoint as dcp

    trainer, rows, made = trainer_of(plan), [], []
    state = {"model": trainer.local_model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
    for _ in range(pairs + 1):
        at_once = seconds(lambda: dcp.save(state, checkpoint_id=place / "at_once"))
        stall = seconds(lambda: made.append(dcp.async_save(state, checkpoint_id=place / "later")))
        made.pop().result()
        rows.append([stall, at_once])
        cleared(place)
    return rows[1:]


def cleared(place: Path) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        for folder in place.iterdir():
            shutil.rmtree(folder)
    dist.barrier()


def measured(what: Callable, plan: Plan, pairs: int) -> list[list[float]]:
    """By column, each entry of the slowest rank."""
    with Ranks(plan.world_size, device="cpu", quiet=True) as ranks, tempfile.TemporaryDirectory(dir=".") as place:
        by_rank = ranks.run(what, plan, Path(place).resolve(), pairs)
    return [[max(values) for values in zip(*one, strict=True)] for one in zip(*map(columns, by_rank), strict=True)]


def columns(rows: list[list[float]]) -> list[tuple[float, ...]]:
    return list(zip(*rows, strict=True))


def row(what: str, ratio: Ratio, goal: str) -> dict[str, object]:
    each = f"{ratio.a_seconds:.3f} / {ratio.b_seconds:.3f}"
    print(what, ratio, each, flush=True)
    return {"what": what, "ratio": ratio, "seconds of each": each, "goal": goal, "load": f"{os.getloadavg()[0]:.1f}"}


def main(pairs: int = PAIRS) -> None:
    rows = []
    for plan in (Plan(), Plan(dp=2, zero=1)):
        stall, at_once, during, alone = measured(ours, plan, pairs)
        name = f"{plan.world_size} rank{'s, ZeRO-1' if plan.world_size > 1 else ''}"
        rows.append(row(f"{name}: stall / synchronous save", ratio_of(stall, at_once), "must 0.4, aim 0.2"))
        rows.append(row(f"{name}: {STEPS} steps behind the call / alone", ratio_of(during, alone), "reported"))
    stall, at_once = measured(torchs, Plan(), pairs)
    rows.append(row("torch, 1 rank: stall / synchronous save", ratio_of(stall, at_once), "reported"))
    print(write_table("saves", rows, "python -m benchmarks.saves").read_text())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
