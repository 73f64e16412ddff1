"""What each rank does in a run. Its trainer stays here between two calls; under torchrun that is this process."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from helpers.compose import Trainer
from helpers.compose.checkpoint.held import inner
from helpers.measure.axes import bytes_by_axis
from helpers.measure.comms import record_comms
from helpers.measure.memory import record_memory
from helpers.measure.timeline import record_timeline
from helpers.records import MemoryBreakdown, Timeline
from helpers.train.fits import CONFIGS
from helpers.train.options import SAID, Settings
from helpers.workloads import GPT, characters, token_loss

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_NORM = 1.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank tells of a step. asked: whether somebody wants the run to end. The rest: where it was watched."""

    loss: float
    norm: float
    seconds: float
    asked: bool
    memory: MemoryBreakdown | None = None
    timeline: Timeline | None = None
    sent: dict[str, int] | None = None


class Run:
    def __init__(self, settings: Settings, device: str):
        self.settings, self.device, self.text = settings, device, characters()
        config = CONFIGS[settings.size]
        torch.manual_seed(settings.seed)
        model = GPT(config).to(device)
        how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=MAX_NORM, dtype=DTYPES[settings.dtype])
        if settings.resume is None:
            self.trainer = Trainer(model, settings.plan, lr=settings.lr, **how)
        else:
            self.trainer = Trainer.load(settings.resume, model, settings.plan, lr=settings.lr, **how)
        for group in inner(self.trainer).param_groups if settings.new_lr else ():
            group["lr"] = settings.new_lr
        self.context = config.context

    def step(self, asked: bool) -> Report:
        """The batch depends on the seed and the step alone, so a run that is resumed sees what it would have seen."""
        told = self.settings
        batch = self.text.batch(self.trainer.steps, told.batch, self.context, seed=told.seed)
        tokens, targets = (part.to(self.device) for part in batch)
        start = time.perf_counter()
        loss = self.trainer.step(tokens, targets).item()
        return Report(
            loss=loss, norm=float(self.trainer.grad_norm), seconds=time.perf_counter() - start, asked=asked
        )  # fmt: skip

    def weighed(self, asked: bool) -> Report:
        """A step, and what was held at its peak. The meter slows it down."""
        with record_memory(self.trainer.held, inner(self.trainer)) as recorder:
            report = self.step(asked)
        return replace(report, memory=recorder.peak)

    def timed(self, asked: bool) -> Report:
        """A step, its timeline and what went over each axis. Ranks on several machines share no clock, but a barrier."""
        dist.barrier()
        zero, rank = time.perf_counter(), dist.get_rank()
        with record_comms() as comms, record_timeline(self.trainer.held, inner(self.trainer)) as recorder:
            report = self.step(asked)
        spans = [replace(one, start=one.start - zero, end=one.end - zero) for one in recorder.timeline.spans]
        timeline = replace(recorder.timeline, spans=tuple(spans))
        return replace(report, timeline=timeline, sent=bytes_by_axis(comms.log.for_rank(rank), self.trainer.mesh))


_run: Run | None = None


def new_folder(parent: Path) -> str:
    """Rank 0 makes the first of 001, 002, … that is not there; the others say nothing."""
    if dist.get_rank():
        return ""
    for number in range(1, 100_000):
        try:
            (parent / f"{number:03d}").mkdir(parents=True)
        except FileExistsError:
            continue
        return str(parent / f"{number:03d}")
    raise ValueError(f"{parent} is full of runs: give --save a folder of your own")


def start(settings: Settings, device: str) -> str:
    """What is wrong with the checkpoint, the same on every rank, or nothing."""
    global _run
    try:
        _run = Run(settings, device)
    except ValueError as problem:
        return str(problem)
    return ""


def step(how: str, asked: bool) -> Report:
    """how: "step", "weighed" or "timed"."""
    return getattr(_run, how)(asked)


def save(folder: Path) -> str:
    """Why nothing could be saved, the same on every rank, or nothing. What was there before stays."""
    settings = _run.settings
    try:
        _run.trainer.save(folder / f"step_{_run.trainer.steps:05d}")
        if dist.get_rank() == 0:
            (folder / SAID).write_text(json.dumps(settings.said, indent=1), encoding="utf-8")
    except (ValueError, OSError) as problem:
        return str(problem)
    return ""
