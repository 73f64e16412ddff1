"""Measures how long calls take in seconds of wall time: one call, or steps that all ranks start together.

The chapters time their experiments with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist


def seconds_of(run: Callable, *args: object) -> float:
    """How long one call of `run(*args)` takes."""
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def seconds_of_steps(step: Callable[[], object], num_steps: int) -> list[float]:
    """On a rank: how long each of so many calls of `step` takes, each from a barrier on, at which all ranks meet."""
    seconds = []
    for _ in range(num_steps):
        dist.barrier()
        seconds.append(seconds_of(step))
    return seconds
