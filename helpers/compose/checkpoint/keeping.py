"""Which checkpoints of a run lie in its folder, and which of them are kept."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from helpers.compose.checkpoint.manifest import MANIFEST, PARTIAL

_NAME = re.compile(rf"step_(\d+)(\.\w+{re.escape(PARTIAL)})?")


def step_folder(folder: str | os.PathLike, steps: int) -> Path:
    """The checkpoint after so many steps: folder/step_00020."""
    return Path(folder) / f"step_{steps:05d}"


def checkpoints(folder: Path, *, unfinished: bool = False) -> dict[int, Path]:
    """By steps, the newest first, whole or damaged; or those that are still being written or never were written."""
    found = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    named = {path: int(match[1]) for match, path in found if match and bool(match[2]) == unfinished}
    return {steps: path for path, steps in sorted(named.items(), key=lambda one: -one[1])}


@dataclass(frozen=True)
class Keeper:
    """Keeps the newest `keep` checkpoints, and beside them each whose steps `every` divides.

    Raises ValueError for a number below 1: the last checkpoint is never removed.
    """

    keep: int = 3
    every: int | None = None

    def __post_init__(self) -> None:
        if self.keep < 1 or (self.every is not None and self.every < 1):
            raise ValueError(
                f"Keeper(keep={self.keep}, every={self.every}): give 1 or more; every=None keeps no others"
            )

    def prune(self, folder: str | os.PathLike) -> list[Path]:
        """Remove the others, and what interrupted saves left before the newest. One process calls it.

        A checkpoint loses its name first: one that is half removed is no checkpoint.
        """
        there = {steps: path for steps, path in checkpoints(Path(folder)).items() if (path / MANIFEST).is_file()}
        old = [steps for steps in list(there)[self.keep :] if not self.every or steps % self.every]
        removed = [there[steps] for steps in old]
        for path in removed:
            gone = path.with_name(f"{path.name}.old{PARTIAL}")
            with suppress(OSError):  # what cannot be removed stays, and is tried again
                os.replace(path, gone)
                shutil.rmtree(gone)
        for steps, path in checkpoints(Path(folder), unfinished=True).items():
            if steps < max(there, default=0):
                shutil.rmtree(path, ignore_errors=True)
        return removed
