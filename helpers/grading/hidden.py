"""Messages that the log does not have: what the board counted of each rank, against what came back.

The log is kept by Python on the rank, where a learner's code could clear it, or leave before it listens. The board is
in shared memory below that: each operation is counted on it before it is issued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from helpers.grading.task import RunFailure, TaskRun
from helpers.learner.words import Words, book

words = book("flags")
Counted = Mapping[tuple[str, str], Mapping[int, int]]  # (file of a board, its group) to a rank to its operations


def board_counts(before: Counted, after: Counted, pending: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Of each rank, what it issued in each group between two looks at the boards; what is under way has no entry in
    the log yet. pending: of each rank, by group."""
    counts: list[dict[str, int]] = [{} for _ in pending]
    for board, ranks in after.items():  # by file: ranks that were started anew in between have others
        group = board[1]
        for rank, count in ranks.items():
            known = counts[rank].get(group, -pending[rank].get(group, 0))
            counts[rank][group] = known + count - before.get(board, {}).get(rank, 0)
    return counts


def hidden_messages(run: TaskRun) -> Words | None:
    """A sentence about the first rank whose log has not what its board counted; None where all have."""
    for rank, (counts, cases) in enumerate(zip(run.issued, run.events, strict=True) if run.issued else ()):
        logged = Counter(event["group"] for case in cases for event in case)
        if any(logged[group] != count for group, count in counts.items()):
            numbers = sum(counts.values()), sum(logged[group] for group in counts)
            return words["hidden_messages"].format(rank, len(run.events), *numbers)
    return None


def hidden_messages_failure(run: TaskRun) -> RunFailure | None:
    said = hidden_messages(run)
    return said and RunFailure(kind="hidden", message=said)
