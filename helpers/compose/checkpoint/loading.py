"""Finds the newest undamaged checkpoint of a run, and loads a checkpoint into a Trainer under any plan.

newest   the newest checkpoint whose files are all as they were written; used by a job that resumes
load     checks the checkpoint first, then each rank takes its own ranges out of the full tensors, one at a time

A piece (StoredPiece) is a range of one tensor that this rank stores. `words(key, ...)` returns a message for the
learner, in English or Chinese. A `problem` is such a message, and "" means that there is none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from helpers.compose.checkpoint.manifest import (
    WEIGHT,
    CheckpointTensors,
    Manifest,
    checksum,
    read_manifest,
    sha256_of,
    words,
)
from helpers.compose.checkpoint.saving import checkpoint_folders, raise_on_every_rank
from helpers.compose.state import StoredPiece, TensorNames, stored_pieces, torch_optimizer


@dataclass(frozen=True, kw_only=True)
class NewestCheckpoint:
    """The newest undamaged checkpoint of a run. damaged: one sentence for each newer checkpoint, which is damaged."""

    folder: Path
    steps: int
    damaged: tuple[str, ...] = ()


def newest(folder: str | os.PathLike) -> NewestCheckpoint | None:
    """Return the newest undamaged checkpoint of a run (step_00020 …), or None where the folder has no checkpoint.

    It reads all bytes of a checkpoint, so one process calls it and sends the others the result. Raises ValueError where
    `folder` does not exist, and where every checkpoint is damaged: a job that then started again would overwrite them.
    """
    folder, problems = Path(folder), []
    if not folder.is_dir():
        raise ValueError(words("no_folder_there", folder=folder))
    for steps, path in checkpoint_folders(folder).items():
        problem = problem_of(path)
        if not problem:
            return NewestCheckpoint(folder=path, steps=steps, damaged=tuple(problems))
        problems.append(problem)
    if problems:
        raise ValueError(words("no_whole", folder=folder, problems=problems))
    return None


def problem_of(folder: Path) -> str:
    """Return a sentence about what is wrong with a checkpoint, or "" for a good one."""
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return str(error)
    return next(filter(None, (damage_of(folder, manifest, name) for name in sorted(manifest.files))), "")


def damage_of(folder: Path, manifest: Manifest, name: str) -> str:
    """Return a sentence where one file of a checkpoint is not as it was written, else ""."""
    path, written = folder / name, manifest.files[name]
    if not path.is_file():
        return words("missing", path=path)
    size = path.stat().st_size
    if size != written.get("bytes", size):  # format 1, an older manifest, has no sizes
        return words("cut", path=path, there=size, bytes=written["bytes"])
    if sha256_of(path) == written["sha256"]:
        return ""
    # the file is damaged; say which tensors are, if the file can still be opened
    tensors = _damaged_tensors(path, manifest)
    where = words("in_tensors", tensors=tensors) if tensors else words("elsewhere")
    return words("damaged", path=path, where=where)


def _damaged_tensors(path: Path, manifest: Manifest) -> list[str]:
    """Return the tensors whose own checksum is wrong; none where the file cannot be opened, and in format 1."""
    try:
        tensors = torch.load(path, weights_only=True)
    except Exception:  # damaged bytes can raise anything in the parser
        return []
    pieces = (piece for piece in manifest.pieces if piece.file == path.name and piece.crc32 is not None)
    return [f"{piece.key} of {piece.name}" for piece in pieces if checksum(tensors[piece.place]) != piece.crc32]


def with_older_checkpoint(problem: str, folder: Path) -> str:
    """Return the problem with a checkpoint, and after it the newest undamaged checkpoint in the same run, if any."""
    with suppress(ValueError, OSError):
        if older := newest(folder.parent):  # never `folder` itself, which is damaged
            return words("offer", problem=problem, folder=older.folder)
    return problem


@torch.no_grad()
def load(trainer, folder: str | os.PathLike) -> None:
    """Restore what `save` wrote, under whatever plan the trainer has; every rank calls it.

    Under the same plan the random generators continue where they were; under another plan, a trainer with a seed seeds
    them anew. Raises ValueError on every rank, before anything is changed, for a folder without a complete checkpoint,
    for a damaged file (with its name and the newest undamaged checkpoint), and for a checkpoint of another model (with
    the first tensor that differs).
    """
    manifest, problem = _checked(trainer, Path(folder))
    raise_on_every_rank(problem)
    contents, state = CheckpointTensors(Path(folder), manifest), torch_optimizer(trainer).state
    for piece in stored_pieces(trainer):
        # full tensors: the weight, and the optimizer's states by torch's names, such as exp_avg
        values = {key: contents.value(piece.name, key) for key in contents.keys(piece.name)}
        piece.flat.copy_(_local_range(trainer, piece, values.pop(WEIGHT)))
        if piece.optimizer_key is not None and values:
            state[piece.optimizer_key] = {key: _local_state(trainer, piece, value) for key, value in values.items()}
    for group in torch_optimizer(trainer).param_groups:
        group.update(manifest.extra["options"])
    # {} was saved by a scaler that was switched off: then this trainer's own stays as it is
    trainer.scaler.load_state_dict(manifest.extra["scaler"] or trainer.scaler.state_dict())
    trainer.steps, trainer.also = manifest.extra["steps"], manifest.extra.get("also", {})
    if manifest.random and manifest.plan == str(trainer.plan):
        trainer.axes.set_random_state(manifest.random[trainer.axes.rank])
    elif trainer.seed is not None:  # steps shift the seed, so that the dropout masks of the first steps do not repeat
        trainer.axes.seed(trainer.seed + trainer.steps)
    if trainer.plan.zero in (1, 2):  # so far each rank has loaded only its shards of the weights
        trainer.optimizer.gather_parameters()


def _checked(trainer, folder: Path) -> tuple[Manifest | None, str]:
    """Return the manifest and the problem, or "". Each rank checks its share of the files."""
    manifest, problem = None, ""
    try:
        manifest = read_manifest(folder)
        if difference := model_difference(trainer.names, manifest, folder):
            return manifest, difference
        share = sorted(manifest.files)[trainer.axes.rank :: trainer.plan.world_size]  # every N-th file
        problem = next(filter(None, (damage_of(folder, manifest, name) for name in share)), "")
    except (ValueError, OSError) as error:
        problem = str(error)
    return manifest, with_older_checkpoint(problem, folder) if problem else ""


def _local_range(trainer, piece: StoredPiece, full: Tensor) -> Tensor:
    """Return the elements of a full tensor that belong to this rank's piece, flat."""
    split = piece.split
    shard = full if split is None else split.take(full, trainer.axes.coordinates[split.axis])
    return shard.reshape(-1)[piece.start : piece.start + piece.flat.numel()]


def _local_state(trainer, piece: StoredPiece, value: Tensor) -> Tensor:
    """Return this rank's part of an optimizer state, on the right device and in the shape of the tensor it belongs to.

    A single number, such as a step counter, has no parts.
    """
    if value.dim() == 0:
        return value
    owner = piece.optimizer_key  # the tensor that the optimizer updates
    return _local_range(trainer, piece, value).to(owner.device).reshape(owner.shape).clone()


def model_difference(names: TensorNames, manifest: Manifest, folder: Path) -> str:
    """Return a sentence where the checkpoint is of another model than the one with these names, else ""."""
    here, there = names.shapes, manifest.shapes
    for name in dict.fromkeys([*here, *there]):
        local = f"{tuple(here[name])} {names.dtypes[name]}" if name in here else words("nothing")
        saved = f"{tuple(there[name])} {manifest.dtypes[name]}" if name in there else words("nothing")
        if local != saved:
            return words("another", folder=folder, name=name, saved=saved, mine=local)
    return ""
