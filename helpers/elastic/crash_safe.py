"""Provides `save`, which writes a checkpoint that survives any crash, on one screen, in plain torch.

A crash at any moment leaves the old checkpoint or the new one under `path`, whole. Each rank may save its own shard in
this way. The ranks then meet in a barrier, and rank 0 saves a small file that names the complete set. What is left out
here is in compose/checkpoint/: checksums, a manifest, other numbers of ranks, and saving in the background.
"""

import os
from typing import Any

import torch


def save(state: Any, path: str) -> None:
    """Write `state` to `path`. When this returns, it is there even if the power fails."""
    part = f"{path}.part"
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()  # from the buffer of this process to the operating system
        os.fsync(file.fileno())  # from the operating system to the disk
    os.replace(part, path)  # in one step, so `path` is never half a file
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(folder)  # the new name must reach the disk as well
    os.close(folder)
