"""Grade a class: several submissions at a time, each result on disk as soon as it is there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from helpers.classroom.one import Settings, grade_one
from helpers.classroom.results import Result
from helpers.classroom.state import State
from helpers.classroom.submissions import MOST_BYTES, Submission

Tell = Callable[[Result, int, int], None]


def grade_all(
    submissions: Sequence[Submission], settings: Settings, state: State, *, jobs: int, tell: Tell
) -> list[Result]:
    """Grade what `state` does not have yet. tell(result, number, of how many) after each.

    KeyboardInterrupt passes through, with every sandbox ended and what was done in `state`.
    """
    waiting = [one for one in submissions if not state.has(one.learner, digest_of(one))]
    number = len(submissions) - len(waiting)
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="grade") as pool:
        running: set[Future[Result]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.add(pool.submit(grade_one, waiting.pop(0), settings))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    number += 1
                    state.add(future.result())
                    tell(future.result(), number, len(submissions))
        except BaseException:
            stop_all()
            raise
    return [state.done[one.learner] for one in submissions]


def stop_all() -> None:
    """End every sandbox, so that the threads that wait for one come back at once."""
    from helpers.classroom import sandbox

    sandbox.end_all()


def digest_of(submission: Submission) -> str:
    """The hash of the file; "" for one that cannot be read."""
    try:
        if submission.path.is_symlink() or submission.path.stat().st_size > MOST_BYTES:
            return ""
        return hashlib.sha256(submission.path.read_bytes()).hexdigest()
    except OSError:
        return ""
