"""Runs chapter 00: functions that fail on the ranks of the notebook, and the pictures of what happened.

`Ranks` is the pool of processes beside the notebook. A RankError says which rank failed, how, and at which line.
"""

from __future__ import annotations

from collections.abc import Callable

from helpers.draw import Part, Scene, killed_rank_scene, parts_scene
from helpers.observe.torchrun import JobOutput
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


def what_one_sees(job: JobOutput) -> str:
    """The answer to the chapter's question what a person sees of a job in which one rank goes past the all-reduce."""
    return "silence" if job.is_silent else "an error that names rank 1"


def when_it_ended(job: JobOutput) -> str:
    """The answer to the chapter's question when a job has ended in which a rank raised."""
    return "within seconds" if job.seconds < 60 else "later"


def last_words(error: RankError) -> str:
    """The answer to the chapter's question what a process that was killed has printed."""
    return "an error" if error.tracebacks else "no line at all"


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
