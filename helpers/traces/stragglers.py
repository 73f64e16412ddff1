"""Which rank the others wait for, in which steps, and what it does meanwhile that they do not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.traces.waterfall import Waterfall

CAUSES = ("compute", "data", "communication", "host")  # communication: its messages take longer, the link
NOTICED = 0.03  # of a step: what the others wait for one rank, each, before it is named
ALONE = 0.5  # of all waiting: what is waiting for this rank
SELDOM = 0.4  # of the steps: below, it is not every step


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """rank: whom the others wait for. cause: one of CAUSES. seconds: that each other rank waits for it, per slow step.

    steps: the numbers of the slow steps; is_seldom: whether the others are not slow. every: how many steps lie between
    two slow ones, where it is always as many. share: of all waiting. excess: part -> seconds beyond the others', per slow
    step.
    """

    rank: int
    cause: str
    seconds: float
    share: float
    steps: tuple[int, ...]
    is_seldom: bool
    every: int | None
    excess: Mapping[str, float]


def find_straggler(fall: Waterfall) -> Straggler | None:
    """None where nobody stands out, or where there is one rank."""
    blamed = fall.waited_for()
    others = len(blamed) - 1
    if not others:
        return None
    tables = {rank: fall.seconds(rank) for rank in blamed}
    length = statistics.median(sum(row.values()) for row in next(iter(tables.values())))
    total = sum(map(sum, blamed.values()))
    rank = max(blamed, key=lambda one: _stands_out(blamed[one]))
    per_rank = [seconds / others for seconds in blamed[rank]]
    peak = _high(per_rank)
    slow = [place for place, seconds in enumerate(per_rank) if seconds > max(peak / 2, NOTICED * length)]
    if not slow:
        return None
    is_seldom = len(slow) < SELDOM * len(per_rank) and len(per_rank) > 2
    in_slow = sum(blamed[rank][place] for place in slow)
    share = in_slow / sum(sum(row[place] for row in blamed.values()) for place in slow)
    if share < ALONE or (is_seldom and len(slow) == 1 and len(per_rank) > 12):
        return None
    excess = {part: _excess(tables, rank, part, slow) for part in CAUSES}
    gaps = {b - a for a, b in zip(slow, slow[1:], strict=False)}
    return Straggler(
        rank=rank, cause=max(excess, key=excess.get), seconds=sum(per_rank[place] for place in slow) / len(slow),
        share=in_slow / total, steps=tuple(fall.steps[place] for place in slow), is_seldom=is_seldom,
        every=gaps.pop() if is_seldom and len(gaps) == 1 else None, excess=excess,
    )  # fmt: skip


def _high(values: Sequence[float]) -> float:
    """What a slow step shows: of ten steps the second highest, since one may be an accident."""
    ranked = sorted(values, reverse=True)
    return ranked[min(len(ranked) - 1, len(ranked) // 10)]


def _stands_out(values: Sequence[float]) -> float:
    """Waiting for a rank as it repeats: in every step, or in one of ten."""
    return _high(values) + statistics.median(values)


def _excess(tables: Mapping[int, list[dict[str, float]]], rank: int, part: str, places: Sequence[int]) -> float:
    """By how much this rank's part is longer than that of the others, per step."""
    own = [tables[rank][place][part] for place in places]
    usual = [statistics.median(tables[one][place][part] for one in tables if one != rank) for place in places]
    return statistics.median(a - b for a, b in zip(own, usual, strict=True))
