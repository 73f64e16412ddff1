"""Is a checkpoint whole? What is damaged, by file and tensor, and which older one can be taken instead."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from helpers.compose.checkpoint.keeping import checkpoints
from helpers.compose.checkpoint.manifest import SAYS, Manifest, checksum, digest, read


@dataclass(frozen=True, kw_only=True)
class Found:
    """A whole checkpoint. damaged: a sentence for each newer one that is not."""

    folder: Path
    steps: int
    damaged: tuple[str, ...] = ()


def newest(folder: str | os.PathLike) -> Found | None:
    """The newest whole checkpoint of a run (step_00020 …), all of its bytes read.

    None where there is none at all. Raises ValueError where the folder is none, and where all that are there are
    damaged: who then began anew would lose them. One process asks and tells the others.
    """
    folder, problems = Path(folder), []
    if not folder.is_dir():
        raise ValueError(SAYS("no_folder_there", folder=folder))
    for steps, path in checkpoints(folder).items():
        if not (problem := problem_of(path)):
            return Found(folder=path, steps=steps, damaged=tuple(problems))
        problems.append(problem)
    if problems:
        raise ValueError(SAYS("no_whole", folder=folder, problems=problems))
    return None


def problem_of(folder: Path) -> str:
    """A sentence where a checkpoint cannot be taken; else ""."""
    try:
        manifest = read(folder)
    except ValueError as error:
        return str(error)
    return next(filter(None, (damage(folder, manifest, name) for name in sorted(manifest.files))), "")


def damage(folder: Path, manifest: Manifest, name: str) -> str:
    """A sentence where a file is not what was written; else ""."""
    path, told = folder / name, manifest.files[name]
    if not path.is_file():
        return SAYS("missing", path=path)
    there = path.stat().st_size
    if there != told.get("bytes", there):
        return SAYS("cut", path=path, there=there, bytes=told["bytes"])
    if digest(path) == told["sha256"]:
        return ""
    tensors = _damaged_tensors(path, manifest)
    where = SAYS("in_tensors", tensors=tensors) if tensors else SAYS("elsewhere")
    return SAYS("damaged", path=path, where=where)


def _damaged_tensors(path: Path, manifest: Manifest) -> list[str]:
    """Those whose own checksum is wrong; none where the file cannot even be opened, and in format 1."""
    try:
        tensors = torch.load(path, weights_only=True)
    except Exception:  # whatever a parser meets in damaged bytes
        return []
    pieces = (one for one in manifest.pieces if one.file == path.name and one.crc32 is not None)
    return [f"{one.key} of {one.name}" for one in pieces if checksum(tensors[one.place]) != one.crc32]


def offered(problem: str, folder: Path) -> str:
    """The problem with a checkpoint, and the newest whole one that lies beside it."""
    with suppress(ValueError, OSError):
        if found := newest(folder.parent):  # it is not this one
            return SAYS("offer", problem=problem, folder=found.folder)
    return problem
