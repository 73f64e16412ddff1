"""The pipeline played: what a step takes when stages differ, with chunks; a long one is played short and drawn out."""

from __future__ import annotations

from functools import lru_cache

from helpers.predict.time.pipeline import simulate
from helpers.schedules import interleaved, one_f_one_b

PLAYED_ACTIONS = 600  # of the schedule that is played; beyond it the closed form, which a test holds beside


@lru_cache(maxsize=256)
def _schedule(stages: int, microbatches: int, chunks: int):
    return interleaved(stages * chunks, microbatches, chunks) if chunks > 1 else one_f_one_b(stages, microbatches)


def played(stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float]) -> float:
    """Seconds from the first forward to the last backward. forward, backward: of each of stages * chunks parts."""
    schedule = _schedule(stages, microbatches, chunks)
    timeline = simulate(schedule, forward=forward, backward_input=backward, backward_weight=0.0)
    return max(span.end for span in timeline.spans)


def pipeline_seconds(stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float]) -> float:
    """As `played`; a longer pipeline is played with fewer micro-batches, and the busiest rank adds the others.

    In the steady state the busiest rank never waits, so each further micro-batch adds its seconds of one. Sends are in
    forward and backward: a rank that sends waits for it, as the stacks of `stacks.py` do.
    """
    if stages == 1:
        return microbatches * (sum(forward) + sum(backward))
    short = min(microbatches, 2 * stages)
    if 2 * short * stages * chunks > PLAYED_ACTIONS:
        return closed_form(stages, microbatches, chunks, forward, backward)
    busiest = max(sum(forward[r::stages]) + sum(backward[r::stages]) for r in range(stages))
    return played(stages, short, chunks, forward, backward) + (microbatches - short) * busiest


def closed_form(stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float]) -> float:
    """One micro-batch passes every rank, then the busiest rank's work follows (Narayanan et al. 2021, section 2.2)."""
    each = [sum(forward[r::stages]) + sum(backward[r::stages]) for r in range(stages)]
    return (sum(each) - max(each)) / chunks + microbatches * max(each)
