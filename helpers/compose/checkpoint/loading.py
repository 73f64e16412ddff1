"""Load: whole tensors out of the pieces of any plan, one at a time, and of each what this rank holds."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from helpers.compose.checkpoint.held import Held, held, inner
from helpers.compose.checkpoint.manifest import WEIGHT, Contents, Manifest, digest, read
from helpers.compose.checkpoint.saving import agree
from helpers.compose.state import Names


@torch.no_grad()
def load(trainer, folder: str | os.PathLike) -> None:
    """Go on from `save`, under whatever plan the trainer has; every rank calls it.

    Raises ValueError on every rank, before anything is changed, for a folder without a whole checkpoint, for a damaged
    file, with its name, and for a checkpoint of another model, with the first tensor that differs.
    """
    folder, manifest, problem = Path(folder), None, ""
    try:
        manifest = read(folder)
        problem = another_model(trainer.names, manifest, folder) or _damaged(trainer, manifest, folder)
    except ValueError as error:
        problem = str(error)
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
    trainer.steps = manifest.extra["steps"]
    if trainer.plan.zero in (1, 2):
        trainer.optimizer.gather_parameters()


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
        mine = f"{tuple(here[name])} {names.dtypes[name]}" if name in here else "nothing"
        saved = f"{tuple(there[name])} {manifest.dtypes[name]}" if name in there else "nothing"
        if mine != saved:
            return f"{folder} is of another model: its {name} is {saved}, here {mine}; build the one that was saved"
    return ""


def _damaged(trainer, manifest: Manifest, folder: Path) -> str:
    """Each rank looks at its share of the files."""
    for name in sorted(manifest.files)[trainer.axes.rank :: trainer.plan.world_size]:
        if not (folder / name).is_file():
            return f"{folder / name} is missing: the checkpoint is not whole, take an older one"
        if digest(folder / name) != manifest.files[name]:
            return f"{folder / name} is damaged: its SHA-256 is not the one in the manifest; take an older checkpoint"
    return ""
