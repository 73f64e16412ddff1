"""Checks that model, data, plan and checkpoint fit together, before any rank starts.

Each check raises ValueError with a sentence for the user, which names the option to change. The model is built on the
meta device, so the checks cost no memory.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from helpers.commands.train.options import TrainOptions, checkpoints_of
from helpers.compose import refused
from helpers.compose.checkpoint.loading import model_difference, newest
from helpers.compose.checkpoint.manifest import read_manifest
from helpers.compose.checkpoint.saving import checkpoint_folders
from helpers.compose.context import tokens_of_ranks
from helpers.compose.experts import plan_of_tensors
from helpers.compose.forward_backward import schedule_of
from helpers.compose.state import TensorNames
from helpers.learner.words import book
from helpers.parallel.experts import with_experts
from helpers.parallel.pipeline.partition import partition
from helpers.parallel.tensor_parallel import GPT_PLAN
from helpers.parallel.tensor_parallel.shard import resolve_plan
from helpers.specs import ModelSpec
from helpers.workloads import GPT, GPTConfig

CONFIGS = {  # value of --size -> the model
    "tiny": GPTConfig.tiny(),
    "small": GPTConfig.tiny(context=64, num_layers=4, num_heads=8, hidden=128),
    "10m": GPTConfig.ten_million(),
}


BALANCE = 0.01  # the factor of the auxiliary loss of experts, as in Switch Transformers


def model_of(settings: TrainOptions) -> GPT:
    """The GPT of this size, with experts if there are any. ValueError where a token cannot choose so many."""
    model = GPT(replace(CONFIGS[settings.size], dropout=settings.dropout))
    if settings.experts:
        with_experts(model, num_experts=settings.experts, top_k=settings.top_k, alpha=BALANCE)
    return model


def spec_of(settings: TrainOptions) -> ModelSpec:
    """The shape of the same model."""
    experts = dict(num_experts=settings.experts, top_k=settings.top_k) if settings.experts else {}
    return replace(CONFIGS[settings.size].spec, **experts)


def num_parameters(settings: TrainOptions) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in model_of(settings).parameters())


def resume_from_undamaged(settings: TrainOptions, report: Callable[[str], None] | None) -> TrainOptions:
    """With --go-on, these options with the newest undamaged checkpoint as `resume`; otherwise the options unchanged.

    The rank that has a `report` function renames newer, damaged checkpoints, since the run will write their steps
    again, and reports each. Under torchrun that is rank 0; the other ranks get None. Raises ValueError where all
    checkpoints are damaged.
    """
    if not settings.go_on or settings.resume is None:
        return settings
    found, words = newest(settings.folder), book("train")  # found.damaged: a sentence per newer, damaged checkpoint
    if report is not None:
        newer = [path for steps, path in checkpoint_folders(settings.folder).items() if steps > found.steps]
        for path, problem in zip(newer, found.damaged, strict=True):
            aside = tempfile.mkdtemp(prefix=f"{path.name}.damaged.", dir=settings.folder)
            os.replace(path, aside)
            report(words("aside", problem=problem, aside=aside, checkpoint=found.folder))
    return replace(settings, resume=found.folder)


def check(settings: TrainOptions) -> int:
    """Returns the step after which this run starts. Raises ValueError for what would fail on the ranks."""
    plan = settings.plan
    with torch.device("meta"):
        model = model_of(settings)
    refused.check(model, plan)  # raises for combinations that training does not support
    _check_heads(settings.by_name["plan"], plan.tp, CONFIGS[settings.size])
    # The results of these calls are not used: each raises ValueError for what the plan cannot do with this model.
    for entry in resolve_plan(model, plan_of_tensors(model) or GPT_PLAN):
        entry.split(plan.tp)  # the parameter must divide by tp
    if plan.pp > 1:
        partition(model, plan.pp * plan.num_chunks)
        schedule_of(plan)
    if plan.cp > 1:  # a batch has sequences as long as the model's context
        tokens_of_ranks(CONFIGS[settings.size].context, plan)
    parts = plan.dp * plan.num_microbatches
    if settings.batch % parts:
        below = settings.batch // parts * parts
        above = below + parts
        near = f"nearest that work are {below} and {above}" if below else f"smallest that works is {above}"
        raise ValueError(
            f"--batch {settings.batch}: dp * microbatches = {plan.dp} * {plan.num_microbatches} = {parts} does not "
            f"divide it; the {near}"
        )
    done = 0 if settings.resume is None else _steps_of(settings, model)
    _check_folder(settings.folder, done, settings.go_on)
    return done


def _check_heads(plan_text: str, tp: int, config: GPTConfig) -> None:
    """Raises ValueError unless tp divides the heads, and names the nearest tp that does. plan_text: as it was typed."""
    heads = config.num_heads
    if heads % tp == 0:
        return
    divisors = [size for size in range(1, heads + 1) if heads % size == 0]
    below = bisect(divisors, tp) - 1  # index of the largest divisor below tp
    near = [str(size) for size in divisors[below : below + 2]]
    raise ValueError(
        f"--plan {plan_text}: {heads} heads cannot be shared equally by {tp} ranks, since a head stays whole; the "
        f"nearest that works is tp {' or '.join(near)}"
    )


def _steps_of(settings: TrainOptions, model: GPT) -> int:
    """The step at which the checkpoint was saved. Raises ValueError for another model, or if all steps are done."""
    manifest = read_manifest(settings.resume)
    if problem := model_difference(TensorNames(model), manifest, settings.resume):
        raise ValueError(f"{problem} (--size, --experts)")
    done = manifest.extra["steps"]
    if settings.steps <= done and not settings.go_on:
        raise ValueError(f"{settings.resume} is at step {done} already: give --steps above {done} to go on")
    return done


def _check_folder(folder: Path, done: int, go_on: bool) -> None:
    """Raises ValueError if this run would overwrite a later checkpoint in its folder."""
    last = max(checkpoints_of(folder), default=0)
    if last > done and not go_on:
        raise ValueError(
            f"{folder} holds a checkpoint of step {last} already, and this run begins after step {done}: go on from "
            f"there with --resume {folder}, or give --save another folder"
        )
