"""Save while training goes on: the step waits for a copy, and a thread writes.

The threads send no messages, since theirs would mix with those of the step: what a rank has to say lies as a file
beside its part, and rank 0's thread looks for it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from threading import Event, Thread

import torch.distributed as dist

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
        self.partial = partial = begin(folder)
        self.copy.take(self.trainer)
        self.problem, self.voted, self.no_more = "", Event(), Event()
        self.thread = Thread(target=self._run, args=(head, partial, folder), name="save", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Until the folder is there. Nothing happens where nothing is under way."""
        if self.thread is None:
            return
        self.voted.wait()
        try:
            dist.barrier()  # where a rank is dead, this raises: nobody waits for its vote
        finally:
            self.abandon()
        if self.problem and self.copy.rank == 0:  # nobody writes any more
            shutil.rmtree(self.partial, ignore_errors=True)
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
            self.problem = vote.get("problem", "")
            half = partial / f"rank_{self.copy.rank}.half"  # a vote has its name only when it is whole
            half.write_text(json.dumps(vote), encoding="utf-8")
            os.replace(half, half.with_suffix(".vote"))
            self.voted.set()
            if self.copy.rank == 0 and (votes := self._votes(partial, folder)):
                self.problem = commit(head, votes, partial, folder, self.keeper)
        except Exception as error:  # a thread that dies in silence would be a save that nobody misses
            self.problem = self.problem or SAYS("thread", rank=self.copy.rank, folder=folder, why=why(error))
        finally:
            self.voted.set()

    def _votes(self, partial: Path, folder: Path) -> list[Vote]:
        """All of them; none where a rank is late, whose part may still be written, so nothing is removed."""
        paths = [partial / f"rank_{rank}.vote" for rank in range(self.trainer.plan.world_size)]
        end = time.monotonic() + self.limit
        while True:
            is_last = self.no_more.is_set() or time.monotonic() > end  # before looking: who has voted by then counts
            late = [rank for rank, path in enumerate(paths) if not path.exists()]
            if not late:
                return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
            if is_last:
                self.problem = SAYS("late", ranks=late, folder=folder, seconds=self.limit)
                return []
            self.no_more.wait(LOOK_EVERY)
