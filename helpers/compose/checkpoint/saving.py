"""Save: every rank its file, rank 0 the manifest; beside the folder, which appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.compose.checkpoint.held import Held, held, inner, is_first
from helpers.compose.checkpoint.manifest import MANIFEST, WEIGHT, Manifest, Piece, digest

PARTIAL = ".partial"


def save(trainer, folder: str | os.PathLike) -> None:
    """Every rank calls it; the folder is one that all see. Between two steps.

    Raises ValueError if the folder holds a checkpoint already, on every rank.
    """
    folder, rank = Path(folder), trainer.axes.rank
    agree(
        f"{folder} holds a checkpoint already: give each its own folder, such as step_100"
        if (folder / MANIFEST).exists()
        else ""
    )
    partial = folder.with_name(folder.name + PARTIAL)
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of a save that was interrupted
        partial.mkdir(parents=True)
    dist.barrier()
    problem, mine, file = "", [], f"rank_{rank}.pt"
    try:
        mine = _write(trainer, partial / file)
    except OSError as error:
        problem = (
            f"rank {rank} could not write {partial / file} ({error.strerror}): nothing was saved, training can go on"
        )
    agree(problem)
    by_rank: list = [None] * trainer.plan.world_size
    dist.all_gather_object(by_rank, (mine, {file: digest(partial / file)}))
    if rank == 0:
        _manifest(trainer, by_rank).write(partial)
        os.replace(partial, folder)
    dist.barrier()


def _write(trainer, path: Path) -> list[Piece]:
    pieces, tensors = [], []
    for piece, key, tensor in _contents(trainer):
        cut = None if piece.cut is None else asdict(piece.cut)
        single = tensor.dim() == 0
        where = dict(file=path.name, place=len(tensors), tp=trainer.axes.place["tp"] if piece.cut else 0)
        pieces.append(Piece(piece.name, key, **where, cut=cut, start=piece.start, numel=tensor.numel(), single=single))
        tensors.append(tensor.detach().cpu().clone())
    torch.save(tensors, path)
    return pieces


def _contents(trainer) -> Iterator[tuple[Held, str, Tensor]]:
    """Each piece that this rank is the first to hold, with its weight and its optimizer's state."""
    state = inner(trainer).state
    for piece in held(trainer):
        if not is_first(trainer, piece) or not piece.flat.numel():
            continue
        yield piece, WEIGHT, piece.flat
        for key, value in state.get(piece.owner, {}).items() if piece.owner is not None else ():
            if isinstance(value, Tensor):
                yield piece, key, value if value.dim() == 0 else value.reshape(-1)


def _manifest(trainer, by_rank: list) -> Manifest:
    pieces = [piece for mine, _ in by_rank for piece in mine]
    files = {name: told for _, digests in by_rank for name, told in digests.items()}
    (group,) = inner(trainer).param_groups
    options = {key: value for key, value in group.items() if key != "params"}
    extra = {"steps": trainer.steps, "options": options, "scaler": trainer.scaler.state_dict()}
    names = trainer.names
    shapes = {name: list(shape) for name, shape in names.shapes.items()}
    dtypes = {name: str(dtype) for name, dtype in names.dtypes.items()}
    return Manifest(shapes, dtypes, pieces, files, extra, str(trainer.plan))


def agree(problem: str) -> None:
    """Raise ValueError on every rank if one has a problem: a rank that went on alone would wait for the others."""
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, problem)
    if first := next(filter(None, told), None):
        raise ValueError(first)
