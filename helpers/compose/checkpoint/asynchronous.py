"""Save while training goes on: the step waits for a copy, and a thread writes.

The threads send no messages, since theirs would mix with those of the step: what a rank has to say lies as a file
beside its part, and rank 0's thread looks for it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from threading import Event, Thread

from helpers.compose.checkpoint.keeping import Keeper
from helpers.compose.checkpoint.manifest import SAYS, Manifest
from helpers.compose.checkpoint.saving import Copy, Vote, agree, begin, commit, head_of, why

LOOK_EVERY = 0.01  # seconds


class AsyncSaver:
    """`saver.save(folder)` between two steps, on every rank; `saver.wait()` behind the last one.

    A save waits for the one before, and either raises ValueError on every rank with what went wrong: then that folder
    is not there, what was there is, and training can go on. keeper: as in `save`. limit: seconds for the slowest rank.
    It keeps a copy of what the rank writes for as long as it lives.
    """

    def __init__(self, trainer, *, keeper: Keeper | None = None, limit: float = 600.0):
        self.trainer, self.keeper, self.limit = trainer, keeper, limit
        self.copy, self.thread = Copy(), None

    def save(self, folder: str | os.PathLike, *, also: dict | None = None) -> None:
        self.wait()
        folder, head = Path(folder), head_of(self.trainer, also)
        partial = begin(folder)
        self.copy.take(self.trainer)
        self.problem = self.own_problem = ""
        self.voted, self.no_more = Event(), Event()
        self.thread = Thread(target=self._run, args=(head, partial, folder), name="save", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Until the folder is there. Nothing happens where nothing is under way."""
        if self.thread is None:
            return
        self.voted.wait()
        try:
            agree(self.own_problem)  # where a rank is dead, this raises: nobody waits for its vote
        finally:
            self.abandon()
        agree(self.problem)

    def abandon(self) -> None:
        """Wait no longer for other ranks' votes, after a death; with all of them there, the folder still appears."""
        thread, self.thread = self.thread, None
        if thread is not None:
            self.no_more.set()
            thread.join()

    def _run(self, head: Manifest, partial: Path, folder: Path) -> None:
        try:
            vote = self.copy.write(partial)
            self.own_problem = vote.get("problem", "")
            self._cast(vote, partial)
            self.voted.set()
            if self.copy.rank == 0:
                votes = self._votes(partial, folder)
                self.problem = commit(head, votes, partial, folder, self.keeper)
        except Exception as error:  # a thread that dies in silence would be a save that nobody misses
            self.own_problem = self.problem = SAYS("thread", rank=self.copy.rank, folder=folder, why=why(error))
        finally:
            self.voted.set()

    def _cast(self, vote: Vote, partial: Path) -> None:
        """Under its name only when it is whole."""
        path = partial / f"rank_{self.copy.rank}.vote"
        path.with_suffix(".half").write_text(json.dumps(vote), encoding="utf-8")
        os.replace(path.with_suffix(".half"), path)

    def _votes(self, partial: Path, folder: Path) -> list[Vote]:
        """All of them, or one that says who gave none."""
        paths = [partial / f"rank_{rank}.vote" for rank in range(self.trainer.plan.world_size)]
        begun = time.monotonic()
        while True:
            seconds, last = time.monotonic() - begun, self.no_more.is_set()  # before looking: who voted by then counts
            late = [rank for rank, path in enumerate(paths) if not path.exists()]
            if not late:
                break
            if last or seconds > self.limit:
                return [{"problem": SAYS("late", ranks=late, folder=folder, seconds=seconds)}]
            self.no_more.wait(LOOK_EVERY)
        votes = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        for path in paths:
            path.unlink()
        return votes
