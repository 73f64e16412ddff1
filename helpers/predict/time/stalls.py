"""Why ranks stand still: too few workers that load, and somebody who is late now and then."""

from __future__ import annotations

from math import ceil


def workers_needed(sample_seconds: float, batch: int, step_seconds: float) -> int:
    """Workers that load a batch, at `sample_seconds` of a worker's time per sample, as fast as a step uses it up."""
    if not sample_seconds >= 0 or batch < 1 or not step_seconds > 0:
        raise ValueError(
            f"a batch of {batch!r}, {sample_seconds!r} s per sample and {step_seconds!r} s per step cannot be loaded; "
            "give a batch of at least 1, and seconds of a step above 0"
        )
    return max(1, ceil(batch * sample_seconds / step_seconds))


def late_share(share: float, num_ranks: int) -> float:
    """The share of steps in which at least one of the ranks is late, if each is in a `share` of them, independently.

    Or of windows that hold a slow step: `num_ranks` is then how many steps a window has.
    """
    if not 0 <= share <= 1 or num_ranks < 1:
        raise ValueError(
            f"{num_ranks!r} ranks of which each is late in {share!r} of its steps; give a share from 0 to 1, "
            "and at least 1 rank"
        )
    return 1 - (1 - share) ** num_ranks
