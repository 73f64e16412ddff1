"""All groups of one process, and the thread that watches over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from helpers.ranks.group import WireGroup
from helpers.ranks.nccl.enforced import Enforced
from helpers.ranks.nccl.journal import FileJournal, keep_open
from helpers.ranks.session import Session, WireConfig
from helpers.ranks.sites import SAYS
from helpers.ranks.waiting import Waiters
from helpers.ranks.work import PendingOp

TICK = 0.05  # seconds between two looks at the board


class World:
    def __init__(self, config: WireConfig, waiters: Waiters):
        self.session, self.closed = Session(config, waiters), False
        self.groups: list[WireGroup] = []
        self.journal = None
        if config.rules == "nccl":
            self.journal = FileJournal(config.board_dir, config.rank, config.world_size, config.eager)
            self.outer_journal = keep_open(self.journal)
            self.session.rules = Enforced(self.journal, config.cpu == "refused")
        threading.Thread(target=self._watch, daemon=True, name="wire watch").start()

    def join(self, group: WireGroup) -> None:
        others = [one for one in self.groups if not one.is_released]
        if not others:  # torch counts the names of a world's groups from 0 again
            self.session.counters = {group.name: 0}
        self.groups = [*others, group]

    def _watch(self) -> None:
        """Every 50 ms, as long as something is pending: follow what nobody waits for; end all if a rank says so."""
        session = self.session
        while not self.closed:
            session.busy.wait()
            time.sleep(TICK)
            if not session.pending:
                session.busy.clear()
                if session.pending:
                    session.busy.set()
                continue
            self._follow_the_unfollowed()
            for group in self.groups:
                group.look()

    def _follow_the_unfollowed(self) -> None:
        """Nobody has waited for these yet, and perhaps nobody will."""
        for _, work in self.session.works():
            if work.direct is not None and time.perf_counter() - work.started > TICK:
                work.direct.hand_over()

    def cut(self) -> None:
        """End every connection of this world: nothing more can be sent in it."""
        for group in self.groups:
            group.cut()

    def close(self) -> None:
        """End this world: what is pending fails, the boards are let go."""
        self.closed = True
        self.session.busy.set()
        self.session.fail(SAYS["replaced"])
        for group in self.groups:
            group.release()
        self.groups = []
        if self.journal is not None:
            keep_open(self.outer_journal)
            self.session.rules = None
            self.journal.close()
        if self.session.link is not None:
            self.session.link.close()

    def pending(self) -> Iterator[PendingOp]:
        now = time.perf_counter()
        for group, work in self.session.works():
            if not work.done:
                yield group.describe(work, now)
