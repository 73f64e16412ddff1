"""Runs a notebook's cells and functions on N live ranks, with failures that name their rank and their line.

    ranks = Ranks(4)
    losses = ranks.run(train, steps=20)         # or a cell that starts with %%ranks

It exports `Ranks`, `RankError` (a run failed), and `current` (the Ranks that were made last, on which %%ranks runs).
The modules of this package are:

Front        live (Ranks), magic (%%ranks), inplace (the same under torchrun), limits (what the machine allows)
Processes    zygote is the process from which ranks are forked, and process is the notebook's connection to it;
             pool holds the processes of one Ranks, and worker is the program that runs in each of them;
             random_seeds gives each process other random numbers;
             pipe and transport carry messages, functions and results between the notebook and the ranks
Wire         wire, group, methods and work wrap gloo, so that every operation of every process group passes through
             them; session, link and rules hold their settings, an emulated network link, and the rules by which the
             package nccl/ says what NCCL would have done; gloo has what must be known about that backend;
             in meeting, ranks wait for each other outside of gloo, while they make a group or wait for a key
Failures     board is the shared memory in which ranks compare operations; watch waits for the ranks and recognises a
             hang; report says what happened; errors and sites have the records of failures and the names of lines
"""

from helpers.ranks.errors import RankError
from helpers.ranks.live import Ranks, current

__all__ = ["RankError", "Ranks", "current"]


def _register_in_notebook() -> None:
    """Make %%ranks known if this is a notebook. A process without IPython does not load it for this."""
    import sys

    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    if shell is not None:
        from helpers.ranks.magic import register

        register(shell)


_register_in_notebook()
