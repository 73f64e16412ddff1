"""Whatever one rank does otherwise in a call of torch.distributed is named within seconds; otherwise.py has the table.

The whole cross takes minutes, so that the suite plays the rows of CHOSEN, and `make test-slow` all of them.
"""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from helpers.ranks import RankError, Ranks
from tests.ranks import otherwise
from tests.ranks.otherwise import CALLS, NO_CALLS, RIGHT, play, public_names, rows

CHOSEN = [
    ("new_group", "other members"),
    ("new_group", "skips it"),
    ("new_group", "another operation"),
    ("new_group", "sleeps before"),
    ("new_group, local", "other members"),
    ("store.wait", "skips it"),
]


def outcome(ranks: Ranks, name: str, what: str) -> tuple[str, float, str]:
    """(kind of the error or "right", seconds, what it says)."""
    start = time.monotonic()
    try:
        ranks.run(play, CALLS[name], what)
    except RankError as error:
        return error.kind, time.monotonic() - start, str(error)
    return "right", time.monotonic() - start, ""


def expected(name: str, what: str) -> set[str]:
    if what in (*RIGHT, *CALLS[name].right):
        return {"right"}
    return {"exception"} if what == "raises before" else {"mismatch", "hang", "exception"}


def problem(ranks: Ranks, name: str, what: str) -> str:
    """What is wrong with a row; "" for nothing."""
    kind, seconds, text = outcome(ranks, name, what)
    print(f"| {name} | {what} | {kind} | {seconds:.2f} |")
    if ranks.run(dist.get_rank) != [0, 1, 2, 3]:
        return f"{name}, {what}: the ranks do not go on"
    is_named = kind == "right" or "rank 1" in text or "ranks" in text
    if kind in expected(name, what) and seconds < CALLS[name].limit and is_named:
        return ""
    return f"{name}, {what}: {kind} after {seconds:.1f} s. {text}"


@pytest.mark.parametrize(("name", "what"), CHOSEN, ids=map(": ".join, CHOSEN))
def test_what_one_rank_does_otherwise_is_named_at_once(ranks, name, what):
    assert not problem(ranks, name, what)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_cross():
    with Ranks(otherwise.SIZE, device="cpu", timeout=30, quiet=True) as ranks:
        for name in CALLS:  # each call imports on its first use, on every rank
            outcome(ranks, name, "sleeps before")
        problems = [found for row in rows() if (found := problem(ranks, *row))]
    assert not problems, "\n".join(problems)


def test_every_public_name_has_a_row_or_a_reason():
    covered = {one for name in CALLS for one in public_names(name)}
    excused = {name for names in NO_CALLS.values() for name in names.split()}
    public = {name for name in dir(dist) if not name.startswith("_") and callable(getattr(dist, name))}
    public |= {*distributed_c10d.__all__}
    assert not public - covered - excused, "write a row in otherwise.py, or say why none is needed"
    assert not covered & excused
