"""Holds the processes of one world of ranks, runs one task at a time on them, and recovers after a failure.

A task is sent to every member and watched (watch.py). Then the pool either returns the values, or it reports what
happened (report.py) and recovers in the mildest of three ways:
  the groups stay   every rank raised, and all had issued the same operations, so the groups are sound
  new groups        the processes are sound: they leave the broken groups and meet in files of a new generation
  new processes     a rank died or cannot be interrupted: its variables are lost, and the message says so
The file does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from typing import Any

from helpers.learner.words import Words
from helpers.ranks import process
from helpers.ranks.errors import RankError
from helpers.ranks.limits import folder_prefix, load_per_core, loopback, shared_folder
from helpers.ranks.pipe import InterruptedMessage, defer_interrupts
from helpers.ranks.report import Report, first_difference, issued
from helpers.ranks.rules import rules_named
from helpers.ranks.sites import rank_names, words
from helpers.ranks.watch import SETTLE_SECONDS, RankState, Watch, send_to
from helpers.specs import Link, Nodes

START_LIMIT = 60.0  # seconds for ranks to meet
SILENT_LIMIT = 3.0  # seconds after which a rank that never said where it is can be asked by a signal alone
END_LIMIT = 2.0  # seconds that an interrupted rank gets, more on a crowded machine; then its variables are lost
REINIT_LIMIT = 15.0  # seconds for ranks to meet again


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What a pool of ranks is started with, see live.Ranks."""

    num_ranks: int
    device: str
    backend: str
    local_devices: tuple[int, ...]
    card_bytes: int = 0  # of each rank's practice card
    link: Link | Nodes | None = None
    check: bool = True
    slow: dict | None = None
    rules: str = "gloo"
    apart: str = ""


@dataclass
class Member:
    """The process of one rank, seen from the kernel."""

    rank: int
    pid: int
    conn: Any


@dataclass
class Outcome:
    """What a task gave: the values in rank order, and what each rank printed. doubts: warnings of NCCL's rules."""

    values: list[Any]
    texts: dict[int, str] = field(default_factory=dict)
    doubts: list[Words] = field(default_factory=list)  # what NCCL's rules say of it that is no error


class Pool:
    """The processes of one world. `task` runs one task on them, and repairs the world after a failure."""

    def __init__(self, settings: PoolSettings):
        self.settings, self.judge = settings, rules_named(settings.rules).task_judge()
        self.members: list[Member] = []
        self.generation = 0
        self.folder = self.board = None
        self.is_spent = False  # a task has said that its process should take no other

    # -- life ------------------------------------------------------------------------------------------------------
    @property
    def is_up(self) -> bool:
        return bool(self.members)

    def start(self) -> None:
        """Start every rank and wait until all have met. Raises RankError if they do not."""
        self.folder = tempfile.mkdtemp(prefix=folder_prefix())
        self.board = shared_folder() or self.folder
        self.generation, self.is_spent = 0, False
        zygote = self._zygote()
        for folder in {self.folder, self.board}:
            zygote.folder(folder, keep=True)
        try:
            for rank in range(self.settings.num_ranks):
                pid, conn = zygote.fork(self._spec(rank))
                self.members.append(Member(rank, pid, conn))
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _zygote(self) -> process.ZygoteClient:
        return process.zygote(self.settings.apart)

    def is_whole(self) -> bool:
        """Whether every rank can take a task. Messages that came since the last task are dropped."""
        if self.is_spent:
            return False
        with contextlib.suppress(EOFError, OSError), defer_interrupts():
            while ready := wait([member.conn for member in self.members], timeout=0):
                for conn in ready:
                    conn.recv()
            return True
        return False

    def _spec(self, rank: int) -> dict[str, Any]:
        s = self.settings
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": s.num_ranks, "LOCAL_WORLD_SIZE": s.num_ranks}
        env |= {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback()), "OMP_NUM_THREADS": 1}
        return {
            "rank": rank,
            "world_size": s.num_ranks,
            "folder": self.folder,
            "board": self.board,
            "generation": 0,
            "device": s.device,
            "local_device": s.local_devices[rank],
            "card_bytes": s.card_bytes,
            "backend": s.backend,
            "link": asdict(s.link) if s.link else None,
            "check": s.check,
            "slow": s.slow,
            "rules": s.rules,
            "group_timeout": 3600.0,
            "env": env,
        }

    def _wait_until_ready(self) -> None:
        watch = Watch([RankState(m.rank, m.conn, m.pid) for m in self.members])
        if lost := watch.wait_for_all(START_LIMIT):
            raise RankError(self._start_failed(lost), kind="died", rank=lost[0].rank)

    def _start_failed(self, lost: Sequence[RankState]) -> Words:
        messages = [s.failure.message for s in lost if s.failure] or [_tail(self.folder, s.rank) for s in lost]
        who = {"ranks": rank_names(s.rank for s in lost), "num_ranks": self.settings.num_ranks}
        return words["start.failed"].format(**who, said=messages[0] or words["start.silent"])

    def stop(self) -> None:
        """End every rank at once and remove what they left."""
        for member in self.members:
            process.kill(member.pid)
        zygote = self._zygote() if self.members else None
        for member in self.members:
            with contextlib.suppress(RuntimeError, OSError):
                zygote.exit_status(member.pid)
            member.conn.close()
        self.members = []
        for folder in {self.folder, self.board} - {None}:
            shutil.rmtree(folder, ignore_errors=True)
            if zygote:
                zygote.folder(folder, keep=False)
        self.folder = self.board = None

    # -- one task --------------------------------------------------------------------------------------------------
    def task(self, message: tuple, ranks: Sequence[int], limit: float | None, cell: str | None = None) -> Outcome:
        """Run one task on `ranks`. The outcome, or RankError after the pool has recovered."""
        states = [RankState(m.rank, m.conn, m.pid) for m in self.members if m.rank in ranks]
        watch = Watch(states, world_size=self.settings.num_ranks)
        try:
            with defer_interrupts():
                for state in states:
                    if not send_to(state, message):
                        state.mark_dead()
            verdict = watch.wait_for_verdict(limit)
        except KeyboardInterrupt as cut:
            verdict = "incomplete message" if isinstance(cut, InterruptedMessage) else "interrupted"
        difference = self._difference(states) if verdict == "ok" else None
        outcome = Outcome([s.value for s in states], {s.rank: "".join(s.text) for s in states})
        error = None
        if verdict != "ok" or difference is not None:
            error = self._explain_and_recover(watch, verdict, difference, cell)
        else:
            verdicts = self.judge.new_verdicts(self._boards())
            error, outcome.warnings = self.judge.error_of(verdicts, words["after.kept"]), [one.text for one in verdicts]
        here = {member.pid for member in self.members}  # perhaps new ones, after a restart
        self.is_spent = any(state.spent and state.pid in here for state in states)
        if error is None:
            return outcome
        error.texts = {s.rank: "".join(s.text) for s in states}
        raise error

    def _difference(self, states: Sequence[RankState]) -> Words | None:
        """A sentence if the ranks did not issue the same number of operations on every group they share.

        Also if the wire found a mismatch that the learner's code caught: the world is over all the same.
        """
        if broken := next((s.broken for s in states if s.broken), None):
            return broken
        groups = {name for s in states for name in s.counters}
        for name in sorted(groups):
            counts = {s.rank: s.counters[name] for s in states if name in s.counters}
            if len(set(counts.values())) > 1:
                return self._first_difference() or _unequal(name, counts)
        return None

    def _first_difference(self) -> Words | None:
        if self.settings.backend != "wire" or not self.settings.check:
            return None
        return first_difference(self._boards())

    def issued(self) -> dict[tuple[str, str], dict[int, int]]:
        """What the boards count of this world's groups, see report.issued; empty while nothing is up or compared."""
        if not self.is_up or self.settings.backend != "wire" or not self.settings.check:
            return {}
        return issued(self._boards())

    def _boards(self) -> str:
        """The folder of this generation's boards and journals."""
        return os.path.join(self.board, f"board{self.generation}")

    def _explain_and_recover(self, watch: Watch, verdict: str, difference: Words | None, cell: str | None) -> RankError:
        report = Report(watch.states, cell=cell, folder=self.folder, world_size=self.settings.num_ranks)
        try:
            if verdict == "incomplete message":
                raise InterruptedMessage
            if verdict == "failed":
                watch.settle_or_wait(SETTLE_SECONDS)
            watch.refresh(0.4)
            if verdict == "timeout":
                report.silent_ranks = self._end_silent(watch)
            for state in watch.states:
                if state.dead:
                    report.exit_codes[state.rank] = self._zygote().exit_status(state.pid)
            sound = verdict == "failed" and self._is_sound(watch)
            error = report.error(verdict, difference=difference, seconds=watch.clock)
            verdicts = self.judge.new_verdicts(self._boards(), is_hang=verdict == "hang")
            error.words = Words.of("\n").join([error.words, *(one.text for one in verdicts)])
            how = self._recover(watch, sound)
        except KeyboardInterrupt:
            error = report.error("interrupted")
            self.stop()
            how = words["after.restarted"]
        error.words = Words.of("\n").join([error.words, how])
        return error

    def _end_silent(self, watch: Watch) -> list[int]:
        """End the ranks that never answered, because C code holds Python's lock, and return their numbers.

        As such a rank ends, faulthandler writes down where it was.
        """
        silent = [s for s in watch.unfinished if s.where is None and watch.clock > SILENT_LIMIT]
        for state in silent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.pid, signal.SIGABRT)
            self._zygote().exit_status(state.pid)
        return [state.rank for state in silent]

    def _is_sound(self, watch: Watch) -> bool:
        """Whether the groups are as before: all ranks ended by themselves, alike, and no operation failed."""
        broken = any(s.failure and (s.failure.wire_kind or s.failure.is_consequence) for s in watch.states)
        return not broken and not watch.unfinished and self._difference(watch.states) is None

    # -- recovery --------------------------------------------------------------------------------------------------
    def _recover(self, watch: Watch, sound: bool) -> Words:
        if any(s.dead for s in watch.states):
            return self._restart()
        if sound:
            return words["after.kept"]
        watch.announce_end()
        watch.settle(
            END_LIMIT if self.settings.apart else END_LIMIT * load_per_core()
        )  # apart: nobody's variables are lost
        if watch.unfinished or any(s.dead or s.spent for s in watch.states):
            return self._restart()
        return self._regroup()

    def _restart(self) -> Words:
        self.stop()
        self.start()
        return words["after.restarted"]

    def _regroup(self) -> Words:
        self.generation += 1
        states = [RankState(m.rank, m.conn, m.pid) for m in self.members]
        watch = Watch(states)
        for state in states:
            send_to(state, ("abort", "the ranks meet again after a failure"))
        for state in states:
            send_to(state, ("reinit", self.generation))
        if watch.wait_for_all(REINIT_LIMIT):
            return self._restart()
        holders = sorted({name for s in states for name in s.value})
        if not holders:
            return words["after.kept"]
        return words["after.holders"].format(names=[f"`{name}`" for name in holders], count=len(holders))


def _unequal(group: str, counts: dict[int, int]) -> Words:
    listed = [words["count"].format(rank, count) for rank, count in counts.items()]
    return words["unequal"].format(group=group, counts=listed)


def _tail(folder: str, rank: int) -> str:
    try:
        with open(os.path.join(folder, f"rank{rank}.log"), errors="replace") as log:
            return log.read()[-1000:].strip()
    except OSError:
        return ""
