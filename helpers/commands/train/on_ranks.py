"""What each rank does in a run of `train`: start, step and save.

The loop of the main process (loop.py) calls `start`, `step` and `save` on every rank. The trainer of a rank stays in
the global _run between two calls. Under torchrun there is no main process, and the loop runs in each rank.
"""

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

from helpers.commands.train.checks import CONFIGS, model_of
from helpers.commands.train.options import OPTIONS_FILE, TrainOptions
from helpers.compose import Trainer
from helpers.compose.forward_backward import PipelineModel
from helpers.compose.state import torch_optimizer
from helpers.elastic.chaos import Kill, arm, strike
from helpers.observe.comms import record_comms
from helpers.observe.memory import record_memory
from helpers.observe.timeline import TimelineRecorder, communication_span, record_timeline
from helpers.parallel.experts import expert_layers
from helpers.predict.time.pipeline import KINDS
from helpers.records import AxisTraffic, MemoryBreakdown, Timeline, axes_along, traffic_by_axis
from helpers.schedules import Action
from helpers.workloads import characters, token_loss

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}  # the dtype of autocast; None: without autocast
MAX_NORM = 1.0  # to which the norm of the gradients is clipped


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one rank measured in one step.

    loss: of the whole batch, equal on all ranks. norm: of all gradients before clipping. seconds: of the step.
    stop_requested: whether a stop signal came before this step. Under torchrun each rank has its own answer, so the
    loop asks all of them. Otherwise the main process gives all ranks the same answer, and nobody reads this field.
    memory, timeline, sent: peak memory by kind, spans, and bytes sent on each axis, only where they were recorded.
    expert_rows: how many rows the experts of this rank got, recorded with `sent`; None without experts.
    """

    loss: float
    norm: float
    seconds: float
    stop_requested: bool
    memory: MemoryBreakdown | None = None
    timeline: Timeline | None = None
    sent: AxisTraffic | None = None
    expert_rows: int | None = None


class TrainingRun:
    """The model, data and trainer of one rank. text: the characters on which the GPT trains, in batches."""

    def __init__(self, settings: TrainOptions, device: str):
        self.settings, self.device, self.text = settings, device, characters()
        torch.manual_seed(settings.seed)
        model = model_of(settings).to(device)
        trainer_options = dict(
            loss=token_loss, optimizer=torch.optim.AdamW, max_norm=MAX_NORM, dtype=DTYPES[settings.dtype]
        )
        trainer_options["seed"] = settings.seed if settings.dropout else None  # the seed from which dropout draws
        if settings.resume is None:
            self.trainer = Trainer(model, settings.plan, lr=settings.lr, **trainer_options)
        else:
            self.trainer = Trainer.load(settings.resume, model, settings.plan, lr=settings.lr, **trainer_options)
        for group in torch_optimizer(self.trainer).param_groups if settings.new_lr else ():
            group["lr"] = settings.new_lr
        self.context = CONFIGS[settings.size].context

    def step(self, stop_requested: bool) -> StepReport:
        """Trains one step. The batch depends on seed and step alone, so a resumed run sees the same batches."""
        options = self.settings
        batch = self.text.batch(self.trainer.steps, options.batch, self.context, seed=options.seed)
        tokens, targets = (part.to(self.device) for part in batch)
        start = time.perf_counter()
        loss = self.trainer.step(tokens, targets).item()
        norm, seconds = float(self.trainer.grad_norm), time.perf_counter() - start
        return StepReport(loss=loss, norm=norm, seconds=seconds, stop_requested=stop_requested)

    def recorded_step(self, stop_requested: bool, *, with_memory: bool, with_timeline: bool) -> StepReport:
        """Trains one step and records its peak memory, or its timeline and the bytes sent on each axis.

        Recording memory slows the step down. The timeline counts from a barrier, which all ranks leave at about the
        same time, because ranks on several machines share no clock.
        """
        dist.barrier()
        zero = time.perf_counter()
        with ExitStack() as stack:
            if with_memory:
                memory = stack.enter_context(record_memory(self.trainer.local_model, torch_optimizer(self.trainer)))
            if with_timeline:
                comms = stack.enter_context(record_comms())
                recorder = stack.enter_context(_recorded(self.trainer))
                expert_rows = stack.enter_context(_counted_rows(self.trainer))
            report = self.step(stop_requested)
        if with_memory:
            report = replace(report, memory=memory.peak)
        if with_timeline:
            mesh, timeline = self.trainer.mesh, recorder.timeline
            spans = [span for span in timeline.spans if span.lane == "compute"]
            for event in comms.log.events:
                # The axes of the mesh along which the group lies, such as "dp"; "" for a group of one rank.
                if axes := axes_along(mesh, event.group_ranks):
                    spans.append(communication_span(event, f"{axes} {event.op}"))
            spans = [replace(one, start=one.start - zero, end=one.end - zero) for one in spans]
            report = replace(report, timeline=replace(timeline, spans=spans), sent=traffic_by_axis(comms.log, mesh))
            if self.settings.experts:
                report = replace(report, expert_rows=sum(expert_rows))
        return report


@contextmanager
def _counted_rows(trainer: Trainer) -> Iterator[list[int]]:
    """Counts the rows that this rank's experts get in each forward, without those that backward computes again."""
    rows: list[int] = []

    def count(module: torch.nn.Module, arguments: tuple[torch.Tensor, torch.Tensor], _: torch.Tensor) -> None:
        recomputed = trainer.plan.recompute == "full" and torch.is_grad_enabled()  # the first forward records no graph
        if not recomputed:
            rows.append(int(arguments[1].sum()))

    handles = [layer.experts.register_forward_hook(count) for layer in expert_layers(trainer.local_model)]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _recorded(trainer: Trainer) -> Iterator[TimelineRecorder]:
    """Records the timeline of a step. Each action of a pipeline stage gets a span of its own, such as F0 or B0.

    F0 is the forward of micro-batch 0 and B0 its backward. For that, the stage's `compute` is replaced meanwhile.
    """
    stage, is_pipeline = trainer.runner, isinstance(trainer.runner, PipelineModel)
    # by_part: without a pipeline, each part of the model gets a span.
    with record_timeline(trainer.local_model, torch_optimizer(trainer), by_part=not is_pipeline) as recorder:
        if is_pipeline:
            stage.compute = partial(_compute_in_span, recorder, stage.compute, len(stage.chunks) > 1)
        try:
            yield recorder
        finally:
            if is_pipeline:
                del stage.compute  # the method of the class is visible again


def _compute_in_span(
    recorder: TimelineRecorder, compute: Callable, has_chunks: bool, action: Action, stage_input: Any
) -> Any:
    """Runs an action within a span that is named after it. KINDS: "F" -> "forward", and so on."""
    recorder.enter(str(action) if has_chunks else f"{action.kind}{action.microbatch}", KINDS[action.kind])
    result = compute(action, stage_input)
    recorder.leave()
    return result


_run: TrainingRun | None = None  # the run of this rank, from `start` on


def start(settings: TrainOptions, device: str) -> tuple[str, Path]:
    """Makes this rank's trainer. Returns what is wrong, or "", and the folder of the run.

    Rank 0 makes the folder and writes the options into it.
    """
    global _run
    folder = settings.folder
    try:
        _run = TrainingRun(settings, device)
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / OPTIONS_FILE).write_text(json.dumps(settings.by_name, indent=1), encoding="utf-8")
    except ValueError as problem:
        return str(problem), folder
    except OSError as problem:
        return f"--save {folder}: {problem.strerror}; give a folder that can be written", folder
    return "", folder


def step(
    stop_requested: bool, with_memory: bool, with_timeline: bool, kill: Kill | None = None, usual_seconds: float = 0.0
) -> StepReport:
    """Trains one step on this rank. kill: the death that is planned in it, if there is one.

    usual_seconds: how long a step usually takes. With --chaos a rank is killed at a planned moment within the step,
    which is given as a fraction of this time.
    """
    with _killed_as_planned(kill, usual_seconds):
        if with_memory or with_timeline:
            return _run.recorded_step(stop_requested, with_memory=with_memory, with_timeline=with_timeline)
        return _run.step(stop_requested)


def save(folder: Path, kill: Kill | None = None, usual_seconds: float = 0.0) -> str:
    """Saves a checkpoint. Returns why it could not be saved, the same text on every rank, or "".

    kill, usual_seconds: as in `step`, for the save.
    """
    try:
        with _killed_as_planned(kill, usual_seconds):
            _run.trainer.save(folder)
    except ValueError as problem:
        return str(problem)
    return ""


@contextmanager
def _killed_as_planned(kill: Kill | None, usual_seconds: float) -> Iterator[None]:
    """Kills this process inside the block if the plan says so: at the planned moment, or at the end of the block."""
    is_mine = kill is not None and kill.rank == dist.get_rank()
    if is_mine:
        arm(kill, usual_seconds)  # starts a timer, which carries out the kill after a fraction of the usual time
    yield
    if is_mine:
        strike(kill)  # now, because the block was over before the timer
