"""Defines the format of a checkpoint's manifest, and rebuilds full tensors from the pieces that the ranks saved.

saving.py writes a Manifest, loading.py reads it and takes tensors from CheckpointTensors. Field names of Manifest,
SavedPiece and Split are keys of the JSON file, so they cannot be renamed without a new format number.

The ranks save pieces, ranges of flattened tensors. Where tp or ep splits a tensor, a Split says which entries each rank
of that axis stores; the ranges of a shard are joined first, and then the shards. `words(key, ...)` returns a message
for the learner, in English or Chinese.
"""

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
from helpers.parallel.tensor_parallel.splits import Split

words = book("checkpoint")
FORMAT = 2
READABLE_FORMATS = (1, FORMAT)  # 1 had no checksums of tensors and manifest, no file sizes, and no random states
MANIFEST = "manifest.json"
PARTIAL = ".partial"  # the ending of a folder that is not a complete checkpoint yet
WEIGHT = "weight"  # the key of a weight or buffer; all other keys are the optimizer's: exp_avg, step, …


@dataclass(frozen=True)
class SavedPiece:
    """A range of a tensor that one rank saved."""

    name: str  # of the tensor in the plain model
    key: str  # WEIGHT, or the key of an optimizer state
    file: str  # the rank's file
    place: int  # the index in the file's list of tensors
    tp: int  # the number of the shard in which the range lies, on the axis of the Split; 0 without one
    cut: dict | None  # the fields of the tensor's Split, where tensor or expert parallelism splits it
    start: int  # the first element of the range in the flattened tensor or shard
    numel: int  # the number of elements
    single: bool = False  # a single number, such as a step counter, instead of a range
    crc32: int | None = None  # of the bytes, so that damage can be named; None in format 1


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint contains."""

    shapes: dict[str, list[int]]  # of the plain model's tensors, by name
    dtypes: dict[str, str]  # likewise
    pieces: list[SavedPiece]
    files: dict[str, dict]  # by file name: {"sha256": ..., "bytes": size}
    extra: dict  # keys: steps, options (of the optimizer), scaler (its state), also (the caller's own data)
    plan: str  # under which it was saved, as text
    random: list[dict[str, str]] = field(default_factory=list)  # of each rank: its generators' states, by device type

    def write(self, folder: Path) -> None:
        """Write manifest.json with a checksum of its own contents, down to the disk."""
        contents = asdict(self)
        with (folder / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "crc32": _crc32_of(contents)} | contents, file, indent=1)
            file.flush()
            os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises ValueError where it is missing, damaged or of an unknown format."""
    path = folder / MANIFEST
    if folder.name.endswith(PARTIAL) or (not folder.exists() and any(partial_folders(folder))):
        raise ValueError(words("partial", folder=folder))
    if not path.is_file():
        raise ValueError(words("none", folder=folder, manifest=MANIFEST))
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        format, crc32 = contents.pop("format"), contents.pop("crc32", None)
        if format == 1:
            contents["files"] = {name: {"sha256": sha256} for name, sha256 in contents["files"].items()}
        elif format == FORMAT and crc32 != _crc32_of(contents):
            raise ValueError(words("sum"))  # says that the checksum is wrong; the `except` below adds the path
        if format in READABLE_FORMATS:
            return Manifest(**contents | {"pieces": [SavedPiece(**piece) for piece in contents["pieces"]]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(words("unreadable", path=path, why=problem)) from None
    raise ValueError(words("format", path=path, format=format, ours=READABLE_FORMATS))


def partial_folders(folder: Path) -> list[Path]:
    """Return the folders of saves under this name that are still running or were interrupted."""
    return list(folder.parent.glob(f"{folder.name}.*{PARTIAL}"))


def _crc32_of(contents: dict) -> int:
    """Return the CRC-32 of a manifest's contents, which is the same before writing and after reading."""
    return zlib.crc32(json.dumps(contents).encode())


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of a flat tensor's bytes."""
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy())


class CheckpointTensors:
    """The tensors of a checkpoint. Files are memory-mapped, so only what is asked for is read."""

    def __init__(self, folder: Path, manifest: Manifest):
        self.shapes = manifest.shapes
        self.files = {name: torch.load(folder / name, weights_only=True, mmap=True) for name in manifest.files}
        self.pieces: dict[str, dict[str, list[SavedPiece]]] = defaultdict(lambda: defaultdict(list))
        for piece in manifest.pieces:
            self.pieces[piece.name][piece.key].append(piece)

    def keys(self, name: str) -> list[str]:
        """Return what the checkpoint has for a tensor: WEIGHT, and the keys of its optimizer state."""
        return list(self.pieces[name])

    def value(self, name: str, key: str) -> Tensor:
        """Return the full tensor in the plain model's shape, or a single number as a scalar tensor.

        Raises ValueError where elements are missing.
        """
        pieces = self.pieces[name][key]
        if pieces[0].single:
            return self._saved(pieces[0]).reshape(()).clone()
        split = _split_from(pieces[0].cut)
        shards = [self._shard(name, key, tp) for tp in range(len(split.ranges) if split else 1)]
        return split.join(shards) if split else shards[0]

    def _shard(self, name: str, key: str, tp: int) -> Tensor:
        """Return shard number `tp` of a tensor from its pieces; without a split shard 0 is the tensor."""
        pieces = [piece for piece in self.pieces[name][key] if piece.tp == tp]
        shape = shard_shape(torch.Size(self.shapes[name]), _split_from(pieces[0].cut) if pieces else None)
        missing = torch.ones(shape.numel(), dtype=torch.bool)  # which elements no piece has
        flat = torch.empty(shape.numel(), dtype=self._saved(self.pieces[name][key][0]).dtype)
        for piece in pieces:
            flat[piece.start : piece.start + piece.numel] = self._saved(piece)
            missing[piece.start : piece.start + piece.numel] = False
        if missing.any():
            raise ValueError(
                f"the checkpoint has only a part of {key} of {name}: {int(missing.sum())} elements are missing"
            )
        return flat.view(shape)

    def _saved(self, piece: SavedPiece) -> Tensor:
        return self.files[piece.file][piece.place]


def shard_shape(full: torch.Size, split: Split | None) -> torch.Size:
    """Return the shape of one rank's shard of a tensor; without a split it is the full shape."""
    if split is None:
        return full
    return torch.Size(split.length if dim == split.dim else size for dim, size in enumerate(full))


def _split_from(fields: dict | None) -> Split | None:
    """Rebuild a Split from JSON, which turned its tuples into lists."""
    if fields is None:
        return None
    ranges = tuple(tuple(map(tuple, rank_ranges)) for rank_ranges in fields["ranges"])
    return Split(**fields | {"ranges": ranges})
