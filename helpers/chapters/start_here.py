"""Runs chapter 00: functions that fail on the ranks of the notebook, and the pictures of what happened.

`Ranks` is the pool of processes beside the notebook. A RankError says which rank failed, how, and at which line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from helpers.draw import Part, Scene, hang_scene, killed_rank_scene, parts_scene
from helpers.observe.torchrun import JobOutput
from helpers.quantities import costs
from helpers.ranks import RankError, Ranks

CHUNKS = 4  # of a tensor in a ring of four ranks


def failure_of(ranks: Ranks, function: Callable, *args: object) -> RankError:
    """The error that ends function(*args) on the ranks. Raises AssertionError where it ends without one."""
    try:
        ranks.run(function, *args)
    except RankError as error:
        return error
    raise AssertionError(f"{function.__name__} was expected to fail on a rank, and it did not")


def killed_scene(ranks: Ranks, train: Callable, step: int) -> Scene:
    """Runs `train`, in which a rank is killed at this step, and returns the picture of all ranks with the report."""
    error = failure_of(ranks, train)
    message = str(error).splitlines()[:2]  # the rank and what became of it, then the line; the last one is for users
    return killed_rank_scene(error.rank, step, message, len(ranks))


def positions_scene() -> Scene:
    """Where the ranks of the chapter's script are, in which rank 1 goes past the all-reduce. Drawn from the script."""
    return hang_scene(["if count > 0", "all_reduce", "the rest"], reached=[1, 2, 1, 1], skips=[(1, 1)])


def what_one_sees(job: JobOutput) -> str:
    """Say what a person sees of a job in which one rank goes past the all-reduce, as a choice of 00.script."""
    return "silence" if job.is_silent else "an error that names rank 1"


def compared_with_one_process(reported: float, losses: Sequence[Sequence[float]]) -> str:
    """Compare the mean of the ranks' means with the true mean, as a choice of 00.weights.

    losses: those of each rank.
    """
    every = [loss for of_rank in losses for loss in of_rank]
    true = sum(every) / len(every)
    if abs(reported - true) < 1e-9:
        return f"{true:.2f}, as in one process"
    return f"more than {true:.2f}" if reported > true else f"less than {true:.2f}"


def when_it_ended(job: JobOutput) -> str:
    """Say when a job has ended in which a rank raised, as a choice of 00.raise."""
    return "within seconds" if job.seconds < 60 else "later"


def last_words(error: RankError) -> str:
    """Say what a process that was killed has printed, as a choice of 00.killed."""
    return "an error" if error.rank in error.tracebacks else "no line at all"


def sent_scene(payload: int, sent: int) -> Scene:
    """The payload of a rank in a ring of four, and the chunks that it sends one after the other. Both are in bytes."""
    chunk = payload / CHUNKS
    part = {"text": f"{chunk / 1e6:g} MB", "size": chunk}
    to_sum = CHUNKS - 1  # messages until a chunk is added up; all others pass on a sum
    rows = {
        "payload": [Part(kind="gradients", **part) for _ in range(CHUNKS)],
        "sent by one rank": [
            Part(kind="communication" if number < to_sum else "buffers", **part)
            for number in range(round(sent / chunk))
        ],
    }
    ends = {
        "payload": f"{payload / 1e6:g} MB",
        "sent by one rank": f"{sent / 1e6:g} MB = 2 × {to_sum}/{CHUNKS} × {payload / 1e6:g} MB",
    }
    legend = {"communication": "partial sums", "buffers": "finished sums"}
    return parts_scene(rows, title="What one rank sends in a ring of four", ends=ends, legend=legend)


def sent_in_a_ring(payload: int, num_ranks: int) -> float:
    """Predict the bytes that each rank sends in a ring all-reduce, for 00.sent.

    payload: bytes that a rank passes in.
    """
    return costs.sent_bytes("all_reduce", payload, num_ranks, "ring")


def broadcast_rounds(num_ranks: int) -> int:
    """Predict the rounds of this broadcast by the formula, for 00.rounds."""
    return costs.rounds("broadcast", num_ranks, "tree")
