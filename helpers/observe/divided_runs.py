"""Steps of which one part is divided among ranks and another is not, on emulated cards: what Amdahl's law says, lived.

Rank 0 does the part that nobody can share, as one process that reads a file for all; the others wait for its broadcast.
Then each computes its part, and an all-reduce ends the step. Processes and messages are real, durations are paced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from helpers.observe.paced import wait_until
from helpers.ranks import Ranks

STEPS = 3


def share_cores(ranks: Ranks, *, cores: int, counts: Sequence[int] = (1, 2, 4)) -> None:
    """The worlds of so many ranks compute on the same few cores from now on, where the system can say so (Linux)."""
    if cores < 1:
        raise ValueError(f"share_cores: cores is {cores!r}; give at least 1")
    for count in counts:
        ranks[:count].run(_take_cores, cores)


def _take_cores(cores: int) -> int:
    """On a rank: how many of its cores it may use now."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    return len(os.sched_getaffinity(0))


def divided_steps(
    ranks: Ranks, *, divided: float, serial: float, counts: Sequence[int] = (1, 2, 4), grows: bool = False
) -> dict[int, float]:
    """Number of ranks -> seconds of a step, the fastest of three. `divided` seconds of work are shared among all, or
    (grows: weak scaling) given to each whole; `serial` seconds are done by rank 0 alone. ValueError for no time at all.
    """
    if min(divided, serial) < 0 or not divided + serial > 0:
        raise ValueError(f"divided_steps: {divided=} and {serial=}; give seconds, and at least one above 0")
    shares = {count: divided if grows else divided / count for count in counts}
    return {count: max(ranks[:count].run(_fastest, own, serial)) for count, own in shares.items()}


def _fastest(own: float, serial: float) -> float:
    """Seconds of the fastest step on this rank, from a barrier to the end of the all-reduce."""
    message, took = torch.ones(1), []
    for _ in range(STEPS):
        dist.barrier()
        start = time.perf_counter()
        if dist.get_rank() == 0:
            wait_until(start + serial)
        dist.broadcast(message, 0)
        wait_until(time.perf_counter() + own)
        dist.all_reduce(message)
        took.append(time.perf_counter() - start)
    return min(took)
