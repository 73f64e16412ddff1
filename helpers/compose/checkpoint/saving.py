"""Saves checkpoints of a Trainer, at once or in the background, and removes old ones.

    save        copies, writes and commits, while training waits
    AsyncSaver  training waits only for the copy; a thread writes and commits
    Keeper      removes old checkpoints of a run

A save has four steps. A process that dies between any two of them leaves the older checkpoints untouched, and a folder
that does not count as a checkpoint.
    make_partial_folder  rank 0 makes NAME.xxxx.partial, a new name, into which no interrupted save still writes
    Snapshot.take        each rank copies what it will write
    Snapshot.write       each rank writes its part to the disk and returns a vote: what it wrote, or why it could not
    commit               rank 0 collects all votes, writes the manifest and renames the folder

A piece is a range of one tensor that one rank stores; every rank writes the pieces that it is the first to own.
In this file `words(key, ...)` returns a message for the learner, in English or Chinese; it is not about vocabularies.
A `problem` is such a message, and "" means that there is none.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.compose.checkpoint.manifest import (
    MANIFEST,
    PARTIAL,
    WEIGHT,
    Manifest,
    SavedPiece,
    checksum,
    partial_folders,
    sha256_of,
    words,
)
from helpers.compose.state import StoredPiece, is_first_owner, stored_pieces, torch_optimizer

LOOK_EVERY = 0.01  # seconds between two looks for the other ranks' votes
Vote = dict[str, Any]  # one rank's pieces, files and random state, as in the manifest; or its problem
# step_00020, a complete checkpoint, or step_00020.1a2b3c4d.partial, which is being written or was interrupted
_NAME = re.compile(rf"step_(\d+)(\.\w+{re.escape(PARTIAL)})?")


def step_folder(folder: str | os.PathLike, steps: int) -> Path:
    """Return the path of the checkpoint after `steps` steps, such as folder/step_00020."""
    return Path(folder) / f"step_{steps:05d}"


def checkpoint_folders(folder: Path, *, unfinished: bool = False) -> dict[int, Path]:
    """Return the checkpoints of a run by their number of steps, the newest first, without looking into them.

    unfinished: return instead the folders of saves that are still running or were interrupted.
    """
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    # group 1 of a match is the number of steps, group 2 the ending of an unfinished save, if it has one
    found = {int(match[1]): path for match, path in matches if match and bool(match[2]) == unfinished}
    return dict(sorted(found.items(), reverse=True))


@dataclass(frozen=True)
class Keeper:
    """Keeps the newest `keep` checkpoints of a run, and in addition each whose number of steps `every` divides.

    Raises ValueError for a number below 1, because the last checkpoint must never be removed.
    """

    keep: int = 3
    every: int | None = None

    def __post_init__(self) -> None:
        if self.keep < 1 or (self.every is not None and self.every < 1):
            raise ValueError(
                f"Keeper(keep={self.keep}, every={self.every}): give 1 or more; every=None keeps no others"
            )

    def prune(self, folder: str | os.PathLike) -> list[Path]:
        """Remove all other checkpoints, and older folders of interrupted saves; return what was removed.

        Only one process calls it. A checkpoint is renamed before it is removed, so a half-removed one does not count.
        """
        saved = {steps: path for steps, path in checkpoint_folders(Path(folder)).items() if (path / MANIFEST).is_file()}
        older = list(saved)[self.keep :]  # `saved` begins with the newest checkpoint
        removed = [saved[steps] for steps in older if not self.every or steps % self.every]
        for path in removed:
            with suppress(OSError):  # what cannot be removed stays, and the next prune tries again
                renamed = path.replace(path.with_name(f"{path.name}.old{PARTIAL}"))
                shutil.rmtree(renamed)
        for steps, path in checkpoint_folders(Path(folder), unfinished=True).items():
            if steps < max(saved, default=0):
                shutil.rmtree(path, ignore_errors=True)
        return removed


def save(trainer, folder: str | os.PathLike, *, also: dict | None = None, keeper: Keeper | None = None) -> None:
    """Write a checkpoint. Every rank calls it, between two steps, with a folder that all ranks see.

    also: the caller's own data, such as a sampler's position, of types that JSON knows; `load` restores it as
    `trainer.also`. keeper: removes older checkpoints once this one is complete.
    Raises ValueError on every rank, and leaves older checkpoints untouched, where the folder has a checkpoint already,
    where a rank cannot write, and for an `also` that JSON cannot store.
    """
    folder = Path(folder)
    head = manifest_head(trainer, also)
    partial, snapshot = make_partial_folder(folder), Snapshot()
    snapshot.take(trainer)
    votes: list = [None] * trainer.plan.world_size
    dist.all_gather_object(votes, snapshot.write(partial))
    problem = commit(head, votes, partial, folder, keeper) if trainer.axes.rank == 0 else ""
    raise_on_every_rank(problem)


def make_partial_folder(folder: Path) -> Path:
    """Make the folder that is renamed to `folder` at the end, and return it on every rank.

    Raises ValueError on every rank where `folder` is taken or cannot be made.
    """
    result: list = [_make(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(result, src=0)
    problem, partial = result[0]
    if problem:
        raise ValueError(problem)
    return partial


def _make(folder: Path) -> tuple[str, Path]:
    """Make the partial folder, on rank 0 alone. Return the problem ("" if there is none) and the new folder."""
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        if (folder / MANIFEST).exists():
            return words("exists", folder=folder), partial
        if folder.exists() and any(folder.iterdir()):
            return words("not_empty", folder=folder), partial
        for old in partial_folders(folder):  # of saves that were interrupted
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        return words("no_folder", folder=folder, why=reason_of(error)), partial
    return "", partial


class Snapshot:
    """A rank's copy of what it will write, so that the next update does not change it.

    Taking it again reuses the same memory, because new pages from the system cost many times as much as the copy.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []  # the copies, on the CPU, in the order of `pieces`

    def take(self, trainer) -> None:
        """Copy what this rank saves of a trainer: tensors, their descriptions, and the random generators' states."""
        contents = list(_contents(trainer))
        if [tensor.shape for _, _, tensor in contents] != [tensor.shape for tensor in self.tensors]:
            self.tensors = [torch.empty_like(tensor, device="cpu") for _, _, tensor in contents]  # the first time
        for copy, (_, _, tensor) in zip(self.tensors, contents, strict=True):
            copy.copy_(tensor.detach())
        axes = trainer.axes
        self.rank, self.coordinates, self.random = axes.rank, axes.coordinates, axes.random_state()
        self.pieces = [self._record(index, piece, key) for index, (piece, key, _) in enumerate(contents)]

    def _record(self, index: int, piece: StoredPiece, key: str) -> SavedPiece:
        """Describe tensor `index` of this rank's file for the manifest.

        key: WEIGHT, or the optimizer's name for a state, such as exp_avg. This rank's index on the axis of the split
        (tp, or ep for experts) says which shard of a split tensor the piece belongs to.
        """
        split, shard = None, 0  # how the tensor is split over tp or ep, and which of its shards is here
        if piece.split is not None:
            split, shard = asdict(piece.split), self.coordinates[piece.split.axis]
        tensor = self.tensors[index]
        # single: one number without dimensions, such as a step counter, which has no range
        extent = dict(start=piece.start, numel=tensor.numel(), single=tensor.dim() == 0)
        return SavedPiece(piece.name, key, f"rank_{self.rank}.pt", index, shard, split, **extent)

    def write(self, partial: Path) -> Vote:
        """Write this rank's file and return its vote. It needs no other rank, so it may run in a thread."""
        path = partial / f"rank_{self.rank}.pt"
        try:
            with path.open("wb") as file:
                torch.save(self.tensors, file)
                file.flush()
                os.fsync(file.fileno())
            file_info = {"sha256": sha256_of(path), "bytes": path.stat().st_size}
        except (OSError, RuntimeError) as error:  # torch's writer may wrap an OSError in a RuntimeError
            return {"problem": words("not_written", rank=self.rank, path=path, why=reason_of(error))}
        pieces = [asdict(replace(piece, crc32=checksum(self.tensors[piece.place]))) for piece in self.pieces]
        return {"pieces": pieces, "files": {path.name: file_info}, "random": self.random}


def _contents(trainer) -> Iterator[tuple[StoredPiece, str, Tensor]]:
    """Yield what this rank saves as (piece, key, 1-D tensor): the weight and the optimizer's states of its pieces.

    Where several ranks store the same piece, only the first of them saves it. Optimizer states without dimensions, such
    as a step counter, stay scalars.
    """
    state = torch_optimizer(trainer).state
    for piece in stored_pieces(trainer):
        if not is_first_owner(trainer, piece) or not piece.flat.numel():
            continue
        yield piece, WEIGHT, piece.flat
        for key, value in state.get(piece.optimizer_key, {}).items():  # none for a buffer, whose optimizer_key is None
            if isinstance(value, Tensor):
                yield piece, key, value if value.dim() == 0 else value.reshape(-1)


def manifest_head(trainer, also: dict | None) -> Manifest:
    """Return the manifest as it is now, without the pieces and files that the ranks will add with their votes.

    `also` takes the way through JSON and back, so that a later change by the caller does not reach the manifest.
    """
    try:
        also = json.loads(json.dumps(also or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(words("not_json", also=also, why=error)) from None
    (group,) = torch_optimizer(trainer).param_groups  # a Trainer always makes exactly one parameter group
    options = {key: value for key, value in group.items() if key != "params"}
    extra = {"steps": trainer.steps, "options": options, "scaler": trainer.scaler.state_dict(), "also": also}
    shapes = {name: list(shape) for name, shape in trainer.names.shapes.items()}
    dtypes = {name: str(dtype) for name, dtype in trainer.names.dtypes.items()}
    return Manifest(shapes, dtypes, [], {}, extra, str(trainer.plan))


def commit(head: Manifest, votes: list[Vote], partial: Path, folder: Path, keeper: Keeper | None) -> str:
    """Complete the checkpoint, on rank 0: write the manifest and rename the folder.

    Returns "" or the problem; after a problem the partial folder is removed.
    """
    problem = next((vote["problem"] for vote in votes if "problem" in vote), "")
    try:
        if not problem:
            pieces = [SavedPiece(**piece) for vote in votes for piece in vote["pieces"]]
            files = {name: file_info for vote in votes for name, file_info in vote["files"].items()}
            replace(head, pieces=pieces, files=files, random=[vote["random"] for vote in votes]).write(partial)
            for vote_file in partial.glob("*.vote"):  # an AsyncSaver's ranks vote by files
                vote_file.unlink()
            _sync_folder(partial)
            os.replace(partial, folder)
            _sync_folder(folder.parent)
    except OSError as error:
        problem = words("not_committed", folder=folder, why=reason_of(error))
    if problem:
        shutil.rmtree(partial, ignore_errors=True)
    elif keeper is not None:
        keeper.prune(folder.parent)
    return problem


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk; os.fsync of a file writes only its contents."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason_of(error: BaseException | None) -> str:
    """Return the operating system's message, which may be the error behind torch's own error, else its first line."""
    first = str(error).partition("\n")[0]
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return first if error is None else error.strerror or str(error)


def raise_on_every_rank(problem: str) -> None:
    """Raise ValueError on every rank if one has a problem; a rank that went on alone would wait for the others.

    Every rank raises the same text. Rank 0's comes last, because it may only say that another rank's part is missing.
    """
    problems: list = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    if first := next(filter(None, problems[1:] + problems[:1]), None):
        raise ValueError(first)


class AsyncSaver:
    """Saves in the background: every rank calls `saver.save(folder)` between two steps, and `saver.wait()` at the end.

    A save first waits for the one before. Both calls raise ValueError on every rank if that one failed: its folder does
    not exist then, older checkpoints are untouched, and training can go on. keeper: as in `save`. limit: how many
    seconds rank 0 waits for the slowest rank. The saver stores a copy of what the rank writes for as long as it lives.

    The threads send no messages, because theirs would mix with those of the step. Each rank's vote is a file beside its
    part, and rank 0's thread looks for these files.
    """

    def __init__(self, trainer, *, keeper: Keeper | None = None, limit: float = 600.0):
        self.trainer, self.keeper, self.limit = trainer, keeper, limit
        self.snapshot, self.thread = Snapshot(), None  # thread: the save that is running, or the last one before wait()

    def save(self, folder: str | os.PathLike, *, also: dict | None = None) -> None:
        """Copy this rank's part and start to write it; returns as soon as the copy is there."""
        self.wait()
        folder, head = Path(folder), manifest_head(self.trainer, also)
        self.partial = partial = make_partial_folder(folder)
        self.snapshot.take(self.trainer)
        # problem: of this save, set by the thread. voted: the thread has written this rank's vote, or has failed.
        # no_more: rank 0's thread shall wait for no further votes.
        self.problem, self.voted, self.no_more = "", Event(), Event()
        self.thread = Thread(target=self._run, args=(head, partial, folder), name="save", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until the last save is complete; return at once if there is none."""
        if self.thread is None:
            return
        self.voted.wait()
        try:
            dist.barrier()  # it raises where a rank is dead, so no rank waits for that vote
        finally:
            self.abandon()
        if self.problem and self.snapshot.rank == 0:  # no rank writes any more
            shutil.rmtree(self.partial, ignore_errors=True)
        raise_on_every_rank(self.problem)

    def abandon(self) -> None:
        """Stop waiting for other ranks' votes, after a rank died; if all votes are there, the save still completes."""
        thread, self.thread = self.thread, None
        if thread is not None:
            self.no_more.set()
            thread.join()

    def _run(self, head: Manifest, partial: Path, folder: Path) -> None:
        """Write this rank's part and its vote, in the thread; on rank 0 also wait for all votes and commit."""
        try:
            vote = self.snapshot.write(partial)
            self.problem = vote.get("problem", "")
            half = partial / f"rank_{self.snapshot.rank}.half"  # rank 0 must not read half a vote
            half.write_text(json.dumps(vote), encoding="utf-8")
            os.replace(half, half.with_suffix(".vote"))
            self.voted.set()
            votes = self._votes(partial, folder) if self.snapshot.rank == 0 else []
            if votes:
                self.problem = commit(head, votes, partial, folder, self.keeper)
        except Exception as error:  # an exception in a thread would otherwise be lost, and the save with it
            self.problem = self.problem or words("thread", rank=self.snapshot.rank, folder=folder, why=reason_of(error))
        finally:
            self.voted.set()

    def _votes(self, partial: Path, folder: Path) -> list[Vote]:
        """Return all votes, or none if a rank is late. A late rank may still write, so nothing is removed then."""
        paths = [partial / f"rank_{rank}.vote" for rank in range(self.trainer.plan.world_size)]
        end = time.monotonic() + self.limit
        while True:
            is_last = self.no_more.is_set() or time.monotonic() > end  # decided before the look, so every vote counts
            late = [rank for rank, path in enumerate(paths) if not path.exists()]
            if not late:
                return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
            if is_last:
                self.problem = words("late", ranks=late, folder=folder, seconds=self.limit)
                return []
            self.no_more.wait(LOOK_EVERY)
