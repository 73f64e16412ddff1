"""Runs a notebook's cells and functions on N live ranks, with failures that name their rank and their line.

    ranks = Ranks(4)
    losses = ranks.run(train, steps=20)         # or a cell that starts with %%ranks

Front        live (Ranks), magic (%%ranks), inplace (the same under torchrun), limits (what the machine allows)
Processes    zygote forks ranks; process starts it; pool holds a world of ranks; worker runs on each of them
             pipe and transport carry messages, functions and results between them
Wire         wire, group, methods, work: every operation of every process group, around gloo
             session, link, rules: settings of a world, an emulated link, the rules of another backend (nccl/)
Failures     board compares operations across ranks; watch decides when waiting is over; report says what happened
             errors, sites: what a failure and a line are called
"""

from helpers.ranks.errors import RankError
from helpers.ranks.live import Ranks, current

__all__ = ["RankError", "Ranks", "current"]


def _register_in_notebook() -> None:
    import sys

    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    if shell is not None:
        from helpers.ranks.magic import register

        register(shell)


_register_in_notebook()
