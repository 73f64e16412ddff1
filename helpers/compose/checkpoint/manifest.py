"""What lies where in a checkpoint, and whole tensors out of it."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from helpers.learner.words import book
from helpers.parallel.tensor_parallel.tensor_plan import Cut

SAYS = book("checkpoint")
FORMAT = 2
READS = (1, FORMAT)  # 1 had no checksum of tensors and of the manifest, no sizes of files, and no random numbers
MANIFEST = "manifest.json"
PARTIAL = ".partial"  # what the name of a folder ends in that is no checkpoint yet
WEIGHT = "weight"  # the key of a weight or buffer; other keys are the optimizer's: exp_avg, step, …


@dataclass(frozen=True)
class Piece:
    """Elements start … start + numel of a rank's flattened part of tensor `name`; part `tp` of `cut`, or the whole.

    key: WEIGHT, or of the optimizer's state. file, place: where it lies. single: one number, not a range.
    crc32: of its bytes, by which damage gets a name; None in format 1.
    """

    name: str
    key: str
    file: str
    place: int
    tp: int
    cut: dict | None
    start: int
    numel: int
    single: bool = False
    crc32: int | None = None


@dataclass(frozen=True)
class Manifest:
    """shapes, dtypes: of the plain model, by name. files: of each its sha256 and bytes. extra: steps, options, scaler,
    and what the caller stored with it. random: of each rank, the state of its generators."""

    shapes: dict[str, list[int]]
    dtypes: dict[str, str]
    pieces: list[Piece]
    files: dict[str, dict]
    extra: dict
    plan: str
    random: list[dict[str, str]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        told = asdict(self)
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "crc32": _sum(told)} | told, file, indent=1)
            file.flush()
            os.fsync(file.fileno())


def read(folder: Path) -> Manifest:
    """ValueError for a folder without a whole checkpoint, or with one of another format."""
    path = folder / MANIFEST
    if folder.name.endswith(PARTIAL) or (not folder.exists() and any(leftovers(folder))):
        raise ValueError(SAYS("partial", folder=folder))
    if not path.is_file():
        raise ValueError(SAYS("none", folder=folder, manifest=MANIFEST))
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        format, told = said.pop("format"), said.pop("crc32", None)
        if format == 1:
            said["files"] = {name: {"sha256": digest} for name, digest in said["files"].items()}
        elif format == FORMAT and told != _sum(said):
            raise ValueError(SAYS("sum"))
        if format in READS:
            return Manifest(**said | {"pieces": [Piece(**piece) for piece in said["pieces"]]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(SAYS("unreadable", path=path, why=problem)) from None
    raise ValueError(SAYS("format", path=path, format=format, ours=READS))


def leftovers(folder: Path) -> list[Path]:
    """What saves under this name are writing, or left when they were interrupted."""
    return list(folder.parent.glob(f"{folder.name}.*{PARTIAL}"))


def _sum(told: dict) -> int:
    """Of what stands in a manifest, the same before it is written and after it is read."""
    return zlib.crc32(json.dumps(told).encode())


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a flat tensor's bytes."""
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy())


class Contents:
    """The tensors of a checkpoint, read as they are asked for."""

    def __init__(self, folder: Path, manifest: Manifest):
        self.shapes = manifest.shapes
        self.files = {name: torch.load(folder / name, weights_only=True, mmap=True) for name in manifest.files}
        self.pieces: dict[str, dict[str, list[Piece]]] = defaultdict(lambda: defaultdict(list))
        for piece in manifest.pieces:
            self.pieces[piece.name][piece.key].append(piece)

    def keys(self, name: str) -> list[str]:
        return list(self.pieces[name])

    def value(self, name: str, key: str) -> Tensor:
        """The whole tensor, in the plain model's shape; or the one number. ValueError where a part is missing."""
        pieces = self.pieces[name][key]
        if pieces[0].single:
            return self._of(pieces[0]).reshape(()).clone()
        cut = _cut(pieces[0].cut)
        parts = [self._part(name, key, tp) for tp in range(len(cut.ranges) if cut else 1)]
        return cut.join(parts) if cut else parts[0]

    def _part(self, name: str, key: str, tp: int) -> Tensor:
        pieces = [piece for piece in self.pieces[name][key] if piece.tp == tp]
        shape = part_shape(torch.Size(self.shapes[name]), _cut(pieces[0].cut) if pieces else None)
        missing = torch.ones(shape.numel(), dtype=torch.bool)
        flat = torch.empty(shape.numel(), dtype=self._of(self.pieces[name][key][0]).dtype)
        for piece in pieces:
            flat[piece.start : piece.start + piece.numel] = self._of(piece)
            missing[piece.start : piece.start + piece.numel] = False
        if missing.any():
            raise ValueError(
                f"the checkpoint has only a part of {key} of {name}: {int(missing.sum())} numbers are missing"
            )
        return flat.view(shape)

    def _of(self, piece: Piece) -> Tensor:
        return self.files[piece.file][piece.place]


def part_shape(whole: torch.Size, cut: Cut | None) -> torch.Size:
    """The shape of a rank's part."""
    if cut is None:
        return whole
    return torch.Size(cut.length if dim == cut.dim else size for dim, size in enumerate(whole))


def _cut(said: dict | None) -> Cut | None:
    if said is None:
        return None
    ranges = tuple(tuple(tuple(one) for one in ranges) for ranges in said["ranges"])
    return Cut(said["dim"], said["whole"], said["length"], ranges, said["copies"])
