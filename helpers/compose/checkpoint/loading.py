"""Load: whole tensors out of the pieces of any plan, one at a time, and of each what this rank holds."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from helpers.compose.checkpoint.checks import damage, offered
from helpers.compose.checkpoint.held import Held, held, inner
from helpers.compose.checkpoint.manifest import SAYS, WEIGHT, Contents, Manifest, read
from helpers.compose.checkpoint.saving import agree
from helpers.compose.state import Names


@torch.no_grad()
def load(trainer, folder: str | os.PathLike) -> None:
    """Go on from `save`, under whatever plan the trainer has; every rank calls it.

    Random numbers go on where they were if the plan is the same; under another, a trainer with a seed draws new ones.
    Raises ValueError on every rank, before anything is changed, for a folder without a whole checkpoint and for a
    damaged file, with its name and that of the newest whole checkpoint beside it; and for a checkpoint of another
    model, with the first tensor that differs.
    """
    folder = Path(folder)
    manifest, problem = _checked(trainer, folder)
    agree(problem)
    contents, state = Contents(folder, manifest), inner(trainer).state
    for piece in held(trainer):
        values = {key: contents.value(piece.name, key) for key in contents.keys(piece.name)}
        piece.flat.copy_(_own(trainer, piece, values.pop(WEIGHT)))
        if piece.owner is not None and values:
            state[piece.owner] = {key: _own_state(trainer, piece, value) for key, value in values.items()}
    for group in inner(trainer).param_groups:
        group.update(manifest.extra["options"])
    trainer.scaler.load_state_dict(manifest.extra["scaler"] or trainer.scaler.state_dict())
    trainer.steps, trainer.also = manifest.extra["steps"], manifest.extra.get("also", {})
    if manifest.random and manifest.plan == str(trainer.plan):
        trainer.axes.set_random_state(manifest.random[trainer.axes.rank])
    elif trainer.seed is not None:  # not the masks of the first steps once more
        trainer.axes.seed(trainer.seed + trainer.steps)
    if trainer.plan.zero in (1, 2):
        trainer.optimizer.gather_parameters()


def _checked(trainer, folder: Path) -> tuple[Manifest | None, str]:
    """What is wrong, or nothing. Each rank looks at its share of the files."""
    manifest, problem = None, ""
    try:
        manifest = read(folder)
        if other := another_model(trainer.names, manifest, folder):
            return manifest, other
        share = sorted(manifest.files)[trainer.axes.rank :: trainer.plan.world_size]
        problem = next(filter(None, (damage(folder, manifest, name) for name in share)), "")
    except (ValueError, OSError) as error:
        problem = str(error)
    return manifest, offered(problem, folder) if problem else ""


def _own(trainer, piece: Held, whole: Tensor) -> Tensor:
    """What this rank holds of a whole tensor, flat."""
    part = whole if piece.cut is None else piece.cut.take(whole, trainer.axes.place["tp"])
    return part.reshape(-1)[piece.start : piece.start + piece.flat.numel()]


def _own_state(trainer, piece: Held, value: Tensor) -> Tensor:
    if value.dim() == 0:
        return value
    return _own(trainer, piece, value).to(piece.owner.device).reshape(piece.owner.shape).clone()


def another_model(names: Names, manifest: Manifest, folder: Path) -> str:
    """A sentence where the checkpoint is not of the model with these names; else ""."""
    here, there = names.shapes, manifest.shapes
    for name in dict.fromkeys([*here, *there]):
        mine = f"{tuple(here[name])} {names.dtypes[name]}" if name in here else SAYS("nothing")
        saved = f"{tuple(there[name])} {manifest.dtypes[name]}" if name in there else SAYS("nothing")
        if mine != saved:
            return SAYS("another", folder=folder, name=name, saved=saved, mine=mine)
    return ""
