"""Sends a heartbeat from each rank and judges from all heartbeats which ranks are alive, slow, hung or dead.

A heartbeat is a small message that a rank writes ten times per second into a key-value store (torch's TCPStore). A rank
sends with `Heartbeat`. The agent, which watches the ranks of a job (agent.py), reads with `last_beat`, keeps one
RankStatus per rank with a `Listener`, and calls `verdict`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch.distributed as dist

from helpers.ranks.board.errors import is_runnable
from helpers.ranks.wire import wire

MAX_GAP = 0.5  # seconds; a longer gap between two looks means a busy listener or a suspended laptop, not a silent rank
MIN_CPU_SECONDS = 0.001  # a main thread that used less CPU time than this between two beats does not count as busy


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a process reports about itself."""

    number: int  # of this beat, from 1
    step: int  # the step that it is in
    calls: int  # the collectives that it has issued
    is_busy: bool  # whether its main thread has used a core since the last beat, or wants one
    is_waiting: bool = False  # whether that thread waits for other ranks in a collective


class Heartbeat:
    """Sends a beat ten times per second: `with Heartbeat(store, rank) as heartbeat:`, and in it `heartbeat.step = 7`.

    The beats come from a thread of their own, so that a rank which waits for others is not taken for dead. But that
    thread also goes on when the main thread hangs. So each beat says how far the main thread has come.

    store: the key-value store, with a prefix for the generation. every: seconds between two beats.
    """

    def __init__(self, store: dist.Store, rank: int, *, every: float = 0.1):
        self.store, self.rank, self.every = store, rank, every
        self.step, self.number = 0, 0  # the step that the main thread is in (it sets this), and the beats so far
        self.main, self.stopped = threading.main_thread(), threading.Event()
        self.clock, self.cpu_seconds = _cpu_clock_of(self.main), 0.0  # of the main thread's CPU time, at the last beat
        self.thread = threading.Thread(target=self._send_beats, daemon=True, name="heartbeat")

    def __enter__(self) -> Heartbeat:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _send_beats(self) -> None:
        while not self.stopped.is_set():
            self.store.set(f"beat{self.rank}", json.dumps(asdict(self.next_beat())))
            self.stopped.wait(self.every)

    def next_beat(self) -> Beat:
        """The beat for this moment."""
        before, self.cpu_seconds = self.cpu_seconds, time.clock_gettime(self.clock)
        is_busy = self.cpu_seconds - before > MIN_CPU_SECONDS or is_runnable(self.main.native_id)
        # The wire, which wraps every process group of this process, knows its operations.
        is_waiting, calls = any(op.waiting for op in wire.pending()), sum(wire.counters().values())
        self.number += 1
        return Beat(number=self.number, step=self.step, calls=calls, is_busy=is_busy, is_waiting=is_waiting)


def last_beat(store: dist.Store, rank: int) -> Beat | None:
    """The last beat of a rank; None before its first one."""
    key = f"beat{rank}"  # `get` alone would wait for the key
    return Beat(**json.loads(store.get(key))) if store.check([key]) else None


def _cpu_clock_of(thread: threading.Thread) -> int:
    """A clock of this thread's CPU time, or of the whole process's where there is none (macOS)."""
    known = getattr(time, "pthread_getcpuclockid", None)
    return known(thread.ident) if known else time.CLOCK_PROCESS_CPUTIME_ID


# -- who is alive ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """What is known of one rank, in seconds of the listener's own clock, since clocks of two machines differ."""

    silent: float = 0.0  # seconds since its last beat came in
    stalled: float = 0.0  # seconds without progress, that is without a new step or collective
    idle: float = 0.0  # seconds in which it neither used nor wanted a core
    is_waiting: bool = False  # whether it waits for other ranks in a collective


def verdict(statuses: Mapping[int, RankStatus], *, limit: float = 2.0, patience: float = 60.0) -> dict[int, str]:
    """For each rank: "alive", "slow", "hung" or "dead". limit and patience are seconds.

    dead    no beat came for `limit` seconds: its whole process is gone, or its machine
    hung    it beats but makes no progress, uses no core and waits for nobody, while all others wait
    slow    it makes no progress but computes; the others may be waiting for it
    alive   it makes progress, or waits for a rank that makes none
    After `patience` seconds a slow rank counts as hung, because an endless loop computes, too.
    """
    found = {}
    for rank, status in statuses.items():
        others = (other for one, other in statuses.items() if one != rank)
        others_wait = all(other.is_waiting or other.idle >= limit for other in others)
        if status.silent >= limit:
            found[rank] = "dead"
        elif status.stalled < limit or status.is_waiting:
            found[rank] = "alive"
        elif (status.idle >= limit and others_wait) or status.stalled >= patience:
            found[rank] = "hung"
        else:
            found[rank] = "slow"
    return found


class Listener:
    """Turns beats into a RankStatus per rank: call `listen` with each rank's last beat, then read `statuses`."""

    def __init__(self) -> None:
        self.beats: dict[int, Beat] = {}
        self.statuses: dict[int, RankStatus] = {}
        self.last_look: dict[int, float] = {}  # when `listen` was last called for each rank

    def listen(self, rank: int, beat: Beat, now: float, *, is_working: bool = False) -> None:
        """Takes in a rank's last beat, which may be the same as before. now: seconds of this process's clock.

        is_working: whether the system says that the rank's process uses a core. Then it may be silent without being
        dead.
        """
        gap = min(now - self.last_look.get(rank, now), MAX_GAP)
        self.last_look[rank] = now
        old, status = self.beats.get(rank, beat), self.statuses.get(rank, RankStatus())
        is_new, has_progress = beat.number != old.number, (beat.step, beat.calls) != (old.step, old.calls)
        self.statuses[rank] = RankStatus(
            silent=0.0 if is_new or is_working else status.silent + gap,
            stalled=0.0 if has_progress else status.stalled + gap,
            idle=0.0 if beat.is_busy or is_working else status.idle + gap,
            is_waiting=beat.is_waiting,
        )
        self.beats[rank] = beat
