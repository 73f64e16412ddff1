"""After a task on live ranks: what NCCL would have made of it. No torch."""

from __future__ import annotations

import os

from helpers.learner.words import Words
from helpers.ranks.errors import RankError
from helpers.ranks.nccl.judge import Judge
from helpers.ranks.nccl.verdicts import CAN, WARNING, Verdict


class After:
    """The judge of a world's journals, which are in the folder of its boards."""

    def __init__(self, rules: str):
        self.rules, self.judge = rules, None

    def look(self, folder: str, generation: int, stands: bool = False) -> tuple[Verdict, ...]:
        """What has been found since the last look; nothing where these are not the rules. stands: all wait for good."""
        if self.rules != "nccl":
            return ()
        folder = os.path.join(folder, f"board{generation}")
        if self.judge is None or self.judge.folder != folder:
            self.judge = Judge(folder)
        return self.judge.look(stands)


def error_of(verdicts: tuple[Verdict, ...], then: Words) -> RankError | None:
    """The error that a learner sees, if one of them is no mere doubt. then: how the ranks are now."""
    grave = [one for one in verdicts if one.kind not in (CAN, WARNING)]
    if not grave:
        return None
    first, words = grave[0], [*(one.said for one in grave), then]
    return RankError(
        Words.of("\n").join(words), kind=first.kind, rank=first.ranks[0] if len(first.ranks) == 1 else None
    )
