"""Save: a copy, of which every rank writes its part, and rank 0 the manifest; the folder appears whole or not at all.

    begin       rank 0 makes NAME.xxxx.partial, which is new: who still writes for a dead attempt cannot mix into it
    Copy.take   what this rank will write, as it is now
    Copy.write  its part, down to the disk; gives a vote: what was written, or why not
    commit      rank 0 with all votes: the manifest, then the name
A process that dies between any two of them leaves what was there before, and a folder that is no checkpoint.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.compose.checkpoint.held import Held, held, inner, is_first
from helpers.compose.checkpoint.keeping import Keeper
from helpers.compose.checkpoint.manifest import (
    MANIFEST,
    PARTIAL,
    SAYS,
    WEIGHT,
    Manifest,
    Piece,
    checksum,
    digest,
    leftovers,
)

Vote = dict[str, Any]  # of a rank: pieces, files and random, as in the manifest; or the problem


def save(trainer, folder: str | os.PathLike, *, also: dict | None = None, keeper: Keeper | None = None) -> None:
    """Every rank calls it; the folder is one that all see. Between two steps.

    also: the caller's own, such as a sampler's position, in what JSON has; after a load it is `trainer.also`.
    keeper: removes older checkpoints when this one is there.
    Raises ValueError on every rank, and leaves what was there, where the folder holds a checkpoint already, where a
    rank cannot write, and for an `also` that JSON has not.
    """
    folder = Path(folder)
    head = head_of(trainer, also)
    partial, copy = begin(folder), Copy()
    copy.take(trainer)
    votes: list = [None] * trainer.plan.world_size
    dist.all_gather_object(votes, copy.write(partial))
    agree(commit(head, votes, partial, folder, keeper) if trainer.axes.rank == 0 else "")


def begin(folder: Path) -> Path:
    """The folder to write to until it has its name."""
    told: list = [_make(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    problem, partial = told[0]
    if problem:
        raise ValueError(problem)
    return partial


def _make(folder: Path) -> tuple[str, Path]:
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        if (folder / MANIFEST).exists():
            return SAYS("exists", folder=folder), partial
        if folder.exists() and any(folder.iterdir()):
            return SAYS("not_empty", folder=folder), partial
        for old in leftovers(folder):  # of saves that were interrupted
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        return SAYS("no_folder", folder=folder, why=why(error)), partial
    return "", partial


class Copy:
    """What a rank will write, so that an update does not leak in. Taken again it uses the same memory: to get new pages
    from the system takes many times as long as to copy."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def take(self, trainer) -> None:
        found = list(_contents(trainer))
        if [one.shape for _, _, one in found] != [one.shape for one in self.tensors]:
            self.tensors = [torch.empty_like(one, device="cpu") for _, _, one in found]
        for mine, (_, _, tensor) in zip(self.tensors, found, strict=True):
            mine.copy_(tensor.detach())
        self.rank, self.random = trainer.axes.rank, trainer.axes.random_state()
        where = enumerate((piece, key, trainer.axes.place["tp"] if piece.cut else 0) for piece, key, _ in found)
        self.pieces = [self._piece(place, *one) for place, one in where]

    def _piece(self, place: int, piece: Held, key: str, tp: int) -> Piece:
        cut, tensor = None if piece.cut is None else asdict(piece.cut), self.tensors[place]
        size = dict(start=piece.start, numel=tensor.numel(), single=tensor.dim() == 0)
        return Piece(piece.name, key, f"rank_{self.rank}.pt", place, tp, cut, **size)

    def write(self, partial: Path) -> Vote:
        """Needs no other rank, so it may run in a thread."""
        path = partial / f"rank_{self.rank}.pt"
        try:
            with path.open("wb") as file:
                torch.save(self.tensors, file)
                file.flush()
                os.fsync(file.fileno())
            told = {"sha256": digest(path), "bytes": path.stat().st_size}
        except (OSError, RuntimeError) as error:  # torch's own writer may wrap the first in the second
            return {"problem": SAYS("not_written", rank=self.rank, path=path, why=why(error))}
        pieces = [asdict(replace(one, crc32=checksum(self.tensors[one.place]))) for one in self.pieces]
        return {"pieces": pieces, "files": {path.name: told}, "random": self.random}


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


def head_of(trainer, also: dict | None) -> Manifest:
    """The manifest as it is now, without what the ranks will tell of their parts."""
    try:
        also = json.loads(json.dumps(also or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(SAYS("not_json", also=also, why=error)) from None
    (group,) = inner(trainer).param_groups
    options = {key: value for key, value in group.items() if key != "params"}
    extra = {"steps": trainer.steps, "options": options, "scaler": trainer.scaler.state_dict(), "also": also}
    names = trainer.names
    shapes = {name: list(shape) for name, shape in names.shapes.items()}
    dtypes = {name: str(dtype) for name, dtype in names.dtypes.items()}
    return Manifest(shapes, dtypes, [], {}, extra, str(trainer.plan))


def commit(head: Manifest, votes: list[Vote], partial: Path, folder: Path, keeper: Keeper | None) -> str:
    """On rank 0: the manifest and the name, or why there is no checkpoint; then nothing of it is left."""
    problem = next((vote["problem"] for vote in votes if "problem" in vote), "")
    try:
        if not problem:
            pieces = [Piece(**piece) for vote in votes for piece in vote["pieces"]]
            files = {name: told for vote in votes for name, told in vote["files"].items()}
            replace(head, pieces=pieces, files=files, random=[vote["random"] for vote in votes]).write(partial)
            for vote in partial.glob("*.vote"):
                vote.unlink()
            _to_disk(partial)
            os.replace(partial, folder)
            _to_disk(folder.parent)
    except OSError as error:
        problem = SAYS("not_committed", folder=folder, why=why(error))
    if problem:
        shutil.rmtree(partial, ignore_errors=True)
    elif keeper is not None:
        keeper.prune(folder.parent)
    return problem


def _to_disk(folder: Path) -> None:
    """The names in a folder, as os.fsync does it for what stands in a file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def why(error: BaseException | None) -> str:
    """What the system said."""
    first = str(error).partition("\n")[0]
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return first if error is None else error.strerror or str(error)


def agree(problem: str) -> None:
    """Raise ValueError on every rank if one has a problem: a rank that went on alone would wait for the others.

    Rank 0's comes last: it may be no more than that another's part is not there.
    """
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, problem)
    if first := next(filter(None, told[1:] + told[:1]), None):
        raise ValueError(first)
