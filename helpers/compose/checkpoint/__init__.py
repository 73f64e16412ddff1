"""Checkpoints that forget the plan: saved by some ranks, resumed by any others.

folder/
    manifest.json   the model's names and shapes; for each piece its file, its place in the whole, what it is, and its
                    checksum; steps, loss scale, and where each rank's random numbers were
    rank_0.pt …     a file per rank: the pieces that this rank is the first to hold, as flat tensors

manifest.py       what a piece is, and the whole tensor from all of its pieces
held.py           which pieces a trainer holds
saving.py         save: beside the folder, renamed at its end
asynchronous.py   AsyncSaver: the same while training goes on
keeping.py        Keeper: which checkpoints of a run are kept
checks.py         newest: the newest whole one, and what is damaged in the others
loading.py        load: checks first, then each rank takes what it holds out of whole tensors
What a step needs is in it. Between two steps no gradients are accumulated, and which samples come next is the caller's
to know: give it as `also`, it comes back as `trainer.also`.
"""

from helpers.compose.checkpoint.asynchronous import AsyncSaver
from helpers.compose.checkpoint.checks import Found, newest
from helpers.compose.checkpoint.keeping import Keeper, step_folder
from helpers.compose.checkpoint.loading import load
from helpers.compose.checkpoint.saving import save

__all__ = ["AsyncSaver", "Found", "Keeper", "load", "newest", "save", "step_folder"]
