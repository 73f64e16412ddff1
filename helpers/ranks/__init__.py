"""Live ranks: a notebook cell or a function on N processes, with failures that name their rank and line.

    ranks = Ranks(4)
    losses = ranks.run(train, steps=20)         # or a cell that starts with %%ranks

sites, errors       what a line and a failure are called          watch, report   when to stop waiting, what to say
zygote, process     where processes come from                     pool, live      a world of ranks, and its face
worker, capture     inside a rank                                 wire, board     every operation, seen and compared
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
