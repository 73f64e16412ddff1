"""What a notebook's reader mixes up, in a sentence: what lives in the notebook, and what on the ranks. No torch."""

from __future__ import annotations

import re
from collections.abc import Container

from helpers.ranks.errors import RankError
from helpers.ranks.sites import SAYS

UNKNOWN = re.compile(r"raised NameError: name '(\w+)' is not defined")
NO_GROUP = "Default process group has not been initialized"  # so torch begins, wherever a collective is called


def with_advice(error: RankError, names: Container[str]) -> RankError:
    """The error of a cell, with a sentence where it asked the ranks for one of the notebook's own `names`."""
    found = UNKNOWN.search(error.words.en)
    if found is None or found[1] not in names:
        return error
    said = error.words + "\n" + SAYS["notebook.its_own"].format(name=found[1])
    return RankError(said, kind=error.kind, rank=error.rank, tracebacks=error.tracebacks)


def explain(error: BaseException) -> None:
    """Let a notebook show a sentence in place of torch's traceback, if a collective was called beside the ranks."""
    if isinstance(error, ValueError) and str(error).startswith(NO_GROUP):
        error._render_traceback_ = lambda: str(SAYS["notebook.no_group"]).splitlines()
