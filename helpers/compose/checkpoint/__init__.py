"""Saves and loads checkpoints that do not depend on the plan: some ranks save, and any number of others resume.

folder/
    manifest.json   names and shapes of the model; for each piece its file, its range in the full tensor and its
                    checksum; number of steps, loss scale, and the state of each rank's random generators
    rank_0.pt …     one file per rank: the pieces that this rank is the first to own, as flat tensors

manifest.py   the format of manifest.json, and full tensors from all pieces
saving.py     save, AsyncSaver (in the background), Keeper (which checkpoints of a run are kept), and step_folder (the
              path of the checkpoint after so many steps)
loading.py    load, and newest, which finds the newest undamaged checkpoint and returns it as a NewestCheckpoint
A checkpoint has everything that a step needs. Between two steps no gradients are accumulated. Which samples come next
is the caller's to know: pass it as `also`, and after a load it is `trainer.also`.

Begin with manifest.py, which says what a checkpoint is.
"""

from helpers.compose.checkpoint.loading import NewestCheckpoint, load, newest
from helpers.compose.checkpoint.saving import AsyncSaver, Keeper, save, step_folder

__all__ = ["AsyncSaver", "NewestCheckpoint", "Keeper", "load", "newest", "save", "step_folder"]
