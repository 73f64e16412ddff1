"""The processes of one generation, seen from the agent: starting them, hearing them, ending them all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from helpers.ranks import process
from helpers.ranks.limits import loopback
from helpers.ranks.watch import RankState, Watch

MEMBER = "helpers.elastic.member"  # what a process has imported before it is forked
SETTLE = 0.3  # seconds in which the cause of a failure can show after its first consequence


@dataclass
class Member(RankState):
    """One process. rank: None for a spare, and until the rendezvous has given it a place. report: is told its steps."""

    report: Callable[[str, tuple], None] | None = None
    placed: bool = False
    seconds: float = 0.0  # that it has used on a core, as of the last question

    def take(self, message: tuple, now: float) -> None:
        match message:
            case ("placed", rank):
                self.rank, self.placed = rank, True
            case ("step" | "unsaved" as what, row):
                self.report(what, row)
            case ("ready", _):
                pass  # its work follows
            case _:
                super().take(message, now)

    @property
    def is_spare(self) -> bool:
        return self.placed and self.rank is None

    def works(self) -> bool:
        """Whether the system says that it has used a core since the last question, or wants one."""
        with contextlib.suppress(psutil.Error):
            known = psutil.Process(self.pid)
            before, self.seconds = self.seconds, sum(known.cpu_times()[:2])
            return self.seconds > before or known.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        return False


class Crew(Watch):
    """`count` processes that each do `work`, a packed call. report: is told each step."""

    def __init__(self, work: bytes, count: int, folder: str, report: Callable[[str, tuple], None]):
        self.zygote, members = process.zygote(MEMBER), []
        for index in range(count):
            pid, conn = self.zygote.fork(spec(index, folder))
            members.append(Member(None, conn, pid, report=report))
            conn.send(("call", work))
        super().__init__(members)

    @property
    def ranks(self) -> dict[int, Member]:
        return {member.rank: member for member in self.states if member.rank is not None}

    @property
    def is_done(self) -> bool:
        return all(member.done or member.is_spare for member in self.states)

    def lost(self) -> list[Member]:
        """Who ended before its work was done, and is to blame for that. A spare's end is nobody's loss."""
        end = self.clock + SETTLE
        while failed := [member for member in self.failed if not member.is_spare and member.value is None]:
            causes = [one for one in failed if not one.failure] or [
                one for one in failed if not one.failure.is_consequence
            ]
            if causes or self.clock >= end:
                return causes or failed[:1]
            self.receive(0.02)
        return []

    def end(self) -> None:
        """All of them, whatever they do, and not before the last one is gone: it might still write."""
        for member in self.states:
            process.kill(member.pid)
        for member in self.states:
            with contextlib.suppress(RuntimeError, OSError):
                self.zygote.exit_status(member.pid)
            member.conn.close()


def spec(index: int, folder: str) -> dict[str, Any]:
    """For the engine's worker: a process that belongs to no world yet."""
    env = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback()), "OMP_NUM_THREADS": 1}
    alone = dict(rank=index, world_size=1, generation=0, backend="none", device="cpu", local_device=0)
    return alone | {"folder": folder, "env": env}
