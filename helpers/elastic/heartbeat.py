"""A heartbeat: a thread that says ten times per second that its process lives, and how far it has come."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass

import torch.distributed as dist

from helpers.ranks import wire
from helpers.ranks.worker import is_runnable


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a process says of itself. number: of this beat, counted from 1. step: the one that it is in.

    calls: collectives that it has issued. busy: whether its main thread has used a core since the last beat, or wants
    one. waits: whether that thread waits for other ranks in a collective.
    """

    number: int
    step: int
    calls: int
    busy: bool
    waits: bool = False


class Heartbeat:
    """`with Heartbeat(store, rank) as heart:`, and `heart.step = 7` as the training goes on.

    A thread of its own beats, so that a rank which waits for others is not taken for dead. For the same reason a beat
    alone proves little: it goes on when the main thread stands still for ever. So each one says how far that has come.
    """

    def __init__(self, store: dist.Store, rank: int, *, every: float = 0.1):
        self.store, self.rank, self.every = store, rank, every
        self.step, self.number = 0, 0
        self.main, self.stopped = threading.main_thread(), threading.Event()
        self.clock, self.used = _clock_of(self.main), 0.0
        self.thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")

    def __enter__(self) -> Heartbeat:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _beat(self) -> None:
        while not self.stopped.is_set():
            self.store.set(f"beat{self.rank}", json.dumps(asdict(self.look())))
            self.stopped.wait(self.every)

    def look(self) -> Beat:
        """What there is to say now."""
        before, self.used = self.used, time.clock_gettime(self.clock)  # seconds on a core, of the main thread
        busy = self.used - before > 0.001 or is_runnable(self.main.native_id)
        waits, calls = any(op.waiting for op in wire.pending()), sum(wire.counters().values())
        self.number += 1
        return Beat(number=self.number, step=self.step, calls=calls, busy=busy, waits=waits)


def heard(store: dist.Store, rank: int) -> Beat | None:
    """The last beat of a rank; None before its first, since asking for a key that is not there would wait for it."""
    key = f"beat{rank}"
    return Beat(**json.loads(store.get(key))) if store.check([key]) else None


def _clock_of(thread: threading.Thread) -> int:
    """A clock of the seconds for which this thread was on a core; of the whole process where there is none (macOS)."""
    known = getattr(time, "pthread_getcpuclockid", None)
    return known(thread.ident) if known else time.CLOCK_PROCESS_CPUTIME_ID
