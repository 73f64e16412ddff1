"""The processes of one generation, seen from the agent: starting them, hearing them, ending them all."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil

from helpers.ranks import process
from helpers.ranks.errors import Failure
from helpers.ranks.limits import loopback
from helpers.ranks.transport import unpack

MEMBER = "helpers.elastic.member"  # what a process has imported before it is forked
SETTLE = 0.3  # seconds in which the cause of a failure can show after its first consequence


@dataclass
class Member:
    """One process. rank: None for a spare, and until the rendezvous has given it a place."""

    pid: int
    conn: Connection
    rank: int | None = None
    placed: bool = False
    value: Any = None
    failure: Failure | None = None
    done: bool = False
    gone: bool = False
    seconds: float = 0.0  # that it has used on a core, as of the last question

    def works(self) -> bool:
        """Whether the system says that it has used a core since the last question, or wants one."""
        with contextlib.suppress(psutil.Error):
            known = psutil.Process(self.pid)
            before, self.seconds = self.seconds, sum(known.cpu_times()[:2])
            return self.seconds > before or known.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        return False


class Crew:
    """`count` processes that each call `work`, a function without arguments that is packed. report: hears each step."""

    def __init__(self, work: bytes, count: int, folder: str, report: Callable[[tuple], None]):
        self.zygote, self.report, self.members = process.zygote(MEMBER), report, []
        for index in range(count):
            pid, conn = self.zygote.fork(spec(index, folder))
            self.members.append(Member(pid, conn))
            conn.send(("call", work))

    @property
    def ranks(self) -> dict[int, Member]:
        return {member.rank: member for member in self.members if member.rank is not None}

    def receive(self, limit: float) -> None:
        """Take in what they say within `limit` seconds."""
        listening = {member.conn: member for member in self.members if not member.gone}
        for conn in wait(list(listening), timeout=limit):
            member = listening[conn]
            try:
                self._take(member, conn.recv())
            except (EOFError, OSError):
                member.gone = True

    def _take(self, member: Member, message: tuple) -> None:
        match message:
            case ("placed", rank):
                member.rank, member.placed = rank, True
            case ("step", row):
                self.report(row)
            case ("done", "ok", value, *_):
                member.done, member.value = True, unpack(value)
            case ("done", "error", failure, *_) | ("failed", failure):
                member.failure = failure

    @property
    def is_done(self) -> bool:
        return all(member.done for member in self.members if not (member.placed and member.rank is None))

    def lost(self) -> list[Member]:
        """Who has ended, and who is to blame for it; empty while all is well. A spare that is gone is nobody's loss."""
        self.members = [one for one in self.members if not (one.gone and one.placed and one.rank is None)]
        if not any(one.gone or one.failure for one in self.members if not one.done):
            return []
        end = time.monotonic() + SETTLE
        while not (causes := self._causes()) and time.monotonic() < end:
            self.receive(0.02)
        return causes or [next(one for one in self.members if one.failure)]

    def _causes(self) -> list[Member]:
        """Those that died; else those that raised what is no consequence of another's end."""
        gone = [one for one in self.members if one.gone and not one.done]
        return gone or [one for one in self.members if one.failure and not one.failure.is_consequence]

    def exit_code(self, member: Member) -> int | None:
        return self.zygote.exit_status(member.pid)

    def end(self) -> None:
        """All of them, whatever they do, and not before the last one is gone: it might still write."""
        for member in self.members:
            process.kill(member.pid)
        for member in self.members:
            with contextlib.suppress(RuntimeError, OSError):
                self.zygote.exit_status(member.pid)
            member.conn.close()


def spec(index: int, folder: str) -> dict[str, Any]:
    """For the engine's worker: a process that belongs to no world yet."""
    env = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback()), "OMP_NUM_THREADS": 1}
    return {
        "rank": index,
        "world_size": 1,
        "folder": folder,
        "generation": 0,
        "device": "cpu",
        "local_device": 0,
        "backend": "none",
        "env": env,
    }
