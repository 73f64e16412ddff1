"""Which rank the others wait for, in which steps, and what it does meanwhile that they do not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.commands.traces.waterfall import Waterfall

CAUSES = ("compute", "data", "communication", "host")  # communication: its messages take longer, the link
NOTICED, NOTICED_ONCE = 0.04, 0.15  # of a step: what is named where it happens in every step, and now and then
LOUD = 0.5  # of the loudest: a step that counts as slow


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """rank: whom the others wait for. cause: one of CAUSES. seconds: that each other rank waits for it, per slow step.

    steps: the numbers of the slow steps; is_seldom: whether the others are not slow. every: how many steps lie between
    two slow ones, where it is always as many. share: of all waiting. excess: part -> seconds beyond the others', per
    slow step.
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
    """None where nobody stands out, or where there is one rank.

    A rank is one where two things come together: one part of its step is longer than the others', and the others wait
    for it, longer than it waits itself. In the median of the steps: always. Else in one step of ten: now and then.
    """
    tables, blamed = fall.tables, fall.waited_for
    others = len(tables) - 1
    if not others:
        return None
    length = statistics.median(sum(step.values()) for row in tables.values() for step in row)
    longer = {(rank, part): beyond(tables, rank, part) for rank in tables for part in CAUSES}
    nets = {
        rank: [seconds / others - step["waiting"] for seconds, step in zip(blamed[rank], row, strict=True)]
        for rank, row in tables.items()
    }
    both = {key: list(map(min, excess, nets[key[0]])) for key, excess in longer.items()}
    always = {key: min(statistics.median(longer[key]), statistics.median(nets[key[0]])) for key in both}
    rank, cause = key = max(always, key=always.get)
    slow, is_seldom = range(len(both[key])), False
    if always[key] < NOTICED * length:
        rank, cause = key = max(both, key=lambda one: _high(both[one]))
        loud = _high(both[key])
        if loud < NOTICED_ONCE * length or len(both[key]) < 3:
            return None
        slow, is_seldom = [place for place, seconds in enumerate(both[key]) if seconds > LOUD * loud], True
    total = sum(map(sum, blamed.values()))
    gaps = {after - before for before, after in zip(slow, slow[1:], strict=False)}
    return Straggler(
        rank=rank, cause=cause, seconds=statistics.fmean(blamed[rank][place] / others for place in slow),
        share=sum(blamed[rank][place] for place in slow) / total, steps=tuple(fall.steps[place] for place in slow),
        is_seldom=is_seldom, every=gaps.pop() if is_seldom and len(gaps) == 1 else None,
        excess={part: statistics.median(longer[rank, part][place] for place in slow) for part in CAUSES},
    )  # fmt: skip


def _high(values: Sequence[float]) -> float:
    """What a slow step shows, if one step in ten is slow: of twenty the second highest, of thirty the third."""
    return sorted(values, reverse=True)[max(0, len(values) // 10 - 1)]


def beyond(tables: Mapping[int, list[dict[str, float]]], rank: int, part: str) -> list[float]:
    """By how much this rank's part is longer than that of the others, step by step."""
    usual = [
        statistics.median(step[part] for step in steps)
        for steps in zip(*(row for one, row in tables.items() if one != rank), strict=True)
    ]
    return [step[part] - other for step, other in zip(tables[rank], usual, strict=True)]
