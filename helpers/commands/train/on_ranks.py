"""What each rank does in a run. Its trainer stays here between two calls; under torchrun that is this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from helpers.commands.train.fits import CONFIGS
from helpers.commands.train.options import SAID, Settings
from helpers.compose import Trainer
from helpers.compose.checkpoint.held import inner
from helpers.compose.parts import Stages
from helpers.elastic.chaos import Kill, arm, strike
from helpers.observe.comms import record_comms
from helpers.observe.memory import record_memory
from helpers.observe.timeline import TimelineRecorder, communication_span, record_timeline
from helpers.predict.time.pipeline import KINDS
from helpers.records import AxisTraffic, MemoryBreakdown, Timeline, axes_along, traffic_by_axis
from helpers.schedules import Action
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
    sent: AxisTraffic | None = None


class Run:
    def __init__(self, settings: Settings, device: str):
        self.settings, self.device, self.text = settings, device, characters()
        config = replace(CONFIGS[settings.size], dropout=settings.dropout)
        torch.manual_seed(settings.seed)
        model = GPT(config).to(device)
        how = dict(loss=token_loss, optimizer=torch.optim.AdamW, max_norm=MAX_NORM, dtype=DTYPES[settings.dtype])
        how["seed"] = settings.seed if settings.dropout else None
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
        return Report(loss=loss, norm=float(self.trainer.grad_norm), seconds=time.perf_counter() - start, asked=asked)

    def watched(self, asked: bool, *, weigh: bool, clock: bool) -> Report:
        """A step: what was held at its peak, which slows it down; when what ran, and what went over each axis.

        Ranks on several machines share no clock, but they leave a barrier together.
        """
        report = {}
        dist.barrier()
        zero = time.perf_counter()
        with ExitStack() as stack:
            memory = stack.enter_context(record_memory(self.trainer.held, inner(self.trainer))) if weigh else None
            comms = stack.enter_context(record_comms()) if clock else None
            recorder = stack.enter_context(_recorded(self.trainer)) if clock else None
            said = self.step(asked)
        if weigh:
            report |= {"memory": memory.peak}
        if clock:
            mesh, line = self.trainer.mesh, recorder.timeline
            spans = [span for span in line.spans if span.lane == "compute"]
            for event in comms.log.events:
                if axes := axes_along(mesh, event.group_ranks):  # none where a rank is alone
                    spans.append(communication_span(event, f"{axes} {event.op}"))
            spans = [replace(one, start=one.start - zero, end=one.end - zero) for one in spans]
            report |= {"timeline": replace(line, spans=spans), "sent": traffic_by_axis(comms.log, mesh)}
        return replace(said, **report)


@contextmanager
def _recorded(trainer: Trainer) -> Iterator[TimelineRecorder]:
    """Of a pipeline it marks each action, as in F0 and B0: what lies between them is waiting."""
    part, is_row = trainer.part, isinstance(trainer.part, Stages)
    with record_timeline(trainer.held, inner(trainer), by_part=not is_row) as recorder:
        if is_row:
            part.compute = partial(_marked, recorder, part.compute, len(part.chunks) > 1)
        yield recorder
    if is_row:
        del part.compute


def _marked(recorder: TimelineRecorder, compute: Callable, has_chunks: bool, action: Action, given: Any) -> Any:
    recorder.enter(str(action) if has_chunks else f"{action.kind}{action.microbatch}", KINDS[action.kind])
    made = compute(action, given)
    recorder.leave()
    return made


_run: Run | None = None


def start(settings: Settings, device: str) -> tuple[str, Path]:
    """What is wrong, or nothing; and the folder of the run, which rank 0 makes and in which it notes what was said."""
    global _run
    folder = settings.folder
    try:
        _run = Run(settings, device)
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SAID).write_text(json.dumps(settings.said, indent=1), encoding="utf-8")
    except ValueError as problem:
        return str(problem), folder
    except OSError as problem:
        return f"--save {folder}: {problem.strerror}; give a folder that can be written", folder
    return "", folder


def step(asked: bool, weigh: bool, clock: bool, kill: Kill | None = None, usual: float = 0.0) -> Report:
    with _dying(kill, usual):
        return _run.watched(asked, weigh=weigh, clock=clock) if weigh or clock else _run.step(asked)


def save(folder: Path, kill: Kill | None = None, usual: float = 0.0) -> str:
    """Why nothing could be saved, the same on every rank, or nothing. What was there before stays."""
    try:
        with _dying(kill, usual):
            _run.trainer.save(folder)
    except ValueError as problem:
        return str(problem)
    return ""


@contextmanager
def _dying(kill: Kill | None, usual: float) -> Iterator[None]:
    """Within, the rank that is to die does so at its moment; at the end at the latest, if it was faster than usual."""
    is_mine = kill is not None and kill.rank == dist.get_rank()
    if is_mine:
        arm(kill, usual)
    yield
    if is_mine:
        strike(kill)
