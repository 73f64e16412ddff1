"""Checkpoints that forget the plan: saved by some ranks, resumed by any others.

folder/
    manifest.json   the model's names and shapes; for each piece its file, its place in the whole, and what it is
    rank_0.pt …     a file per rank: the pieces that this rank is the first to hold, as flat tensors

manifest.py   what a piece is, and the whole tensor from all of its pieces
held.py       which pieces a trainer holds
saving.py     save: beside the folder, renamed at its end
loading.py    load: checks first, then each rank takes what it holds out of whole tensors
"""

from helpers.compose.checkpoint.loading import load
from helpers.compose.checkpoint.saving import save

__all__ = ["load", "save"]
