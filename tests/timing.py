"""A limit in seconds that holds beside other work."""

from __future__ import annotations

from collections.abc import Callable

from helpers.ranks.processes.limits import load_per_core


def assert_one_of_three_is_within(limit: float, seconds_of: Callable[[int], float]) -> None:
    """`seconds_of(attempt)` does the work and gives the seconds that it took; `limit` is for an idle machine.

    The load is a mean over a minute, so a machine that becomes busy within seconds can miss a limit that grows with
    it. Code that is really too slow misses it every time.
    """
    taken = []
    for attempt in range(3):
        taken.append(seconds_of(attempt))
        if taken[-1] < limit * load_per_core():
            return
    raise AssertionError(f"took {taken} seconds; {limit} are allowed, times a load per core of {load_per_core():.1f}")
