"""The pipeline played: what a step takes when stages differ, with chunks; a long one is played short and drawn out."""

from __future__ import annotations

from functools import lru_cache

from helpers.predict.time.pipeline import simulate
from helpers.schedules import interleaved, one_f_one_b

PLAYED_ACTIONS = 1500  # of the schedule that is played; beyond it the closed form, which a test holds beside


@lru_cache(maxsize=256)
def _schedule(stages: int, microbatches: int, chunks: int):
    return interleaved(stages * chunks, microbatches, chunks) if chunks > 1 else one_f_one_b(stages, microbatches)


def played(
    stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float], send: float
) -> float:
    """Seconds from the first forward to the last backward. forward, backward: of each of stages * chunks parts."""
    timeline = simulate(
        _schedule(stages, microbatches, chunks),
        forward=forward,
        backward_input=backward,
        backward_weight=0.0,
        send=send,
    )
    return max(span.end for span in timeline.spans)


def pipeline_seconds(
    stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float], send: float = 0.0
) -> float:
    """As `played`; a longer pipeline is played with fewer micro-batches, and the busiest rank adds the others.

    In the steady state the busiest rank never waits, so each further micro-batch adds its seconds of one.
    """
    busiest = max(sum(forward[r::stages]) + sum(backward[r::stages]) for r in range(stages))
    if stages == 1:
        return microbatches * busiest
    if chunks > 1 and microbatches % stages:
        raise ValueError(
            f"pipeline_seconds: {microbatches} micro-batches do not divide by {stages} stages, which chunks ask for"
        )
    short = min(microbatches, 2 * stages)
    if 2 * short * stages * chunks > PLAYED_ACTIONS:
        return closed_form(stages, microbatches, chunks, forward, backward, send)
    return played(stages, short, chunks, forward, backward, send) + (microbatches - short) * busiest


def closed_form(
    stages: int, microbatches: int, chunks: int, forward: list[float], backward: list[float], send: float = 0.0
) -> float:
    """The first micro-batch passes every rank once, then the busiest rank's work follows (Narayanan et al. 2021, 2.2)."""
    each = [sum(forward[r::stages]) + sum(backward[r::stages]) for r in range(stages)]
    busiest = max(each)
    return (sum(each) - busiest) / chunks + 2 * (stages - 1) * send + microbatches * busiest
