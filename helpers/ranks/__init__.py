"""Runs a notebook's cells and functions on N live ranks, with failures that name their rank and their line.

    ranks = Ranks(4)
    losses = ranks.run(train, steps=20)         # or a cell that starts with %%ranks

It exports `Ranks`, `RankError` (a run failed), and `current` (the Ranks that were made last, on which %%ranks runs).
The modules of this package are live (Ranks), magic (%%ranks), and inplace (Ranks under torchrun). The packages are

processes  starts the ranks, runs tasks on them, and starts them again after a failure
wire       wraps gloo, so that every operation of every process group passes through it
board      compares what the ranks do, recognises failures, and says what happened
nccl       says what NCCL would have done with the same program

It exists because a notebook has one process, and every claim of the course needs several. Begin with live.py.
"""

from helpers import import_on_demand
from helpers.ranks.board.errors import RankError

# The grader reads errors of ranks also where no ranks can run, as on a page of the web edition.
__getattr__ = import_on_demand(__name__, {"live": ("Ranks", "current")})

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
