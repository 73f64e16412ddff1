"""Waits for the answers of the ranks to one task, and decides when there will be none. No torch in this file.

A hang is not decided by the clock alone. It is certain when every unfinished rank waits in an operation that some rank
has not issued, and each of those ranks has finished or waits as well. So a slow machine raises no false alarm, and a
real deadlock is found within two polls. A "poll" asks every unfinished rank where it is: a "where" message goes out,
and a `RankStatus` comes back with the rank's stack and the operations of torch.distributed for which it waits.

pool.py uses a Watch for each task. First `wait_for_verdict` waits for the answers. After a failure `settle_or_wait` and
`refresh` find out where the other ranks are, and `announce_end` and `settle` end them.
"""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from helpers.learner.words import Words
from helpers.ranks.board.errors import Failure, RankStatus, has_runnable_thread
from helpers.ranks.board.interrupts import defer_interrupts, interruptible
from helpers.ranks.board.sites import is_engine

# Seconds before each of the first polls. They are short, so that a rank that dies early has said where it was.
FIRST_POLLS = (0.05, 0.1, 0.2)
POLL = 0.5  # seconds between two polls later on
SETTLE_SECONDS = 0.5  # seconds that the other ranks get to end after a first failure
STILL_SECONDS = 0.05  # seconds in one place after which a rank that waits is taken to have come to its wait
RUNNABLE_FACTOR = 4  # how many times SETTLE_SECONDS a rank gets that wants a core and has none
# A rank may wait inside torch.distributed without an operation that this package sees, for example in a group of gloo
# itself. After so many seconds in one place, in which its threads compute next to nothing, it counts as waiting.
NO_MOVEMENT_SECONDS = 2.0
IDLE_SHARE, ANSWER_SECONDS = 0.03, 0.005  # of a core, and for an answer: data that is in flight needs more
INNER_FRAMES = 5  # of a stack that are searched for torch.distributed
MAX_STEP = 2.0  # seconds; of a longer gap between two looks only these count, because the laptop was suspended
_numbers = itertools.count()  # of the polls, in all tasks


@dataclass
class RankState:
    """What the kernel, which is the notebook's process, knows of one rank during one task."""

    rank: int
    conn: Connection  # the kernel's end of the pipe to it
    pid: int
    value: Any = None  # the result of the task
    failure: Failure | None = None  # the exception that the task raised
    done: bool = False  # whether it has answered, or has died
    dead: bool = False  # whether its process has ended
    broken: Words | None = None  # a mismatch of operations that the rank has met, even if the learner's code caught it
    counters: dict[str, int] = field(default_factory=dict)  # name of a process group -> collectives that it issued
    spent: bool = False  # whether its process should run no other task, because this one left it damaged
    where: RankStatus | None = None  # the answer to the last poll
    unmoved_since: float | None = None  # the time of the first answer that was like the last one, on Watch.clock
    idle_since: float | None = None  # the same, and since when none of its threads has computed
    answered_at: float = 0.0  # when the last answer came, on Watch.clock
    # The number of the last poll that it answered. It begins with a number that no poll before this task had, so
    # answers to polls of an earlier task are ignored.
    answered: int = field(default_factory=partial(next, _numbers))
    text: list[str] = field(default_factory=list)  # what it printed

    def take(self, message: tuple, now: float) -> None:
        """Handle a message of the rank (worker.py lists them). now: seconds of Watch.clock."""
        match message:
            case ("out", text):
                self.text.append(text)
            case ("where", where, number) if number > self.answered:
                moved = not where.same_place(self.where)
                self.unmoved_since = now if moved else (self.unmoved_since or now)
                used = where.cpu_seconds - (self.where or where).cpu_seconds
                is_idle = not moved and used <= ANSWER_SECONDS + IDLE_SHARE * (now - self.answered_at)
                self.idle_since = (self.idle_since or now) if is_idle else now
                self.where, self.answered, self.answered_at = where, number, now
            case ("ready", _):
                self.done = True
            case ("failed", failure):
                self.done, self.failure = True, failure
            case ("done", result, value, counters, broken, *spent):  # spent: [a bool], or [] for False
                self.done, self.counters, self.broken, self.spent = True, counters, broken, spent == [True]
                if result == "ok":
                    self.value = value
                else:
                    self.failure = value

    def mark_dead(self) -> None:
        self.dead = self.done = True


class Watch:
    """Collects the answers of some ranks to one task, in their `states`.

    world_size: of all ranks. Those that take no part in the task count as finished.
    """

    def __init__(self, states: Sequence[RankState], *, world_size: int | None = None):
        self.states = list(states)
        self.world_size = world_size or len(self.states)
        self.clock = 0.0  # seconds of this task, suspended time left out
        self._last = time.monotonic()

    @property
    def unfinished(self) -> list[RankState]:
        """The ranks that have not answered."""
        return [s for s in self.states if not s.done]

    @property
    def failed(self) -> list[RankState]:
        """The ranks that raised an exception or died."""
        return [s for s in self.states if s.failure or s.dead]

    def wait_for_verdict(self, limit: float | None) -> str:
        """Wait for all answers. Returns "ok", or "failed", "hang" or "timeout" as soon as that is certain.

        limit: seconds, or None. A KeyboardInterrupt passes through.
        """
        polls = itertools.chain(FIRST_POLLS, itertools.repeat(POLL))
        next_poll = next(polls)
        while self.unfinished:
            self.receive(max(0.0, next_poll - self.clock))
            if self.failed:
                return "failed"
            if limit is not None and self.clock > limit:
                return "timeout"
            if self.clock >= next_poll:
                if self.is_deadlocked() and self.is_still_deadlocked():
                    return "hang"
                self.poll()
                next_poll = self.clock + next(polls)
        return "failed" if self.failed else "ok"

    def settle(self, limit: float) -> None:
        """Give the unfinished ranks up to `limit` seconds to end."""
        end = self.clock + limit
        while self.unfinished and self.clock < end:
            self.receive(end - self.clock)

    def wait_for_all(self, limit: float) -> list[RankState]:
        """Wait until every rank has answered; returns those that have not.

        It ends as soon as one rank cannot answer.
        """
        end = self.clock + limit
        while self.unfinished and not self.failed and self.clock < end:
            self.receive(end - self.clock)
        return self.failed or self.unfinished

    def settle_or_wait(self, limit: float) -> None:
        """Give the unfinished ranks `limit` seconds to end after a first failure.

        It stops as soon as each of them waits for another one and has not moved. A rank that has work but no core gets
        up to RUNNABLE_FACTOR times as long, since it has yet to come to its wait, or to its own end.
        """
        start = self.clock
        while self.unfinished and self.clock - start < limit * RUNNABLE_FACTOR:
            number = self.refresh(0.1)
            if all(s.answered >= number and self._is_waiting(s) for s in self.unfinished):
                return
            if self.clock - start >= limit and not any(_has_work(s, number) for s in self.unfinished):
                return
            self.receive(STILL_SECONDS / 2)

    def _is_waiting(self, state: RankState) -> bool:
        """Whether a rank has come to its wait for an operation that another rank has not issued."""
        return self.clock - state.unmoved_since >= STILL_SECONDS and any(op.missing for op in state.where.waiting)

    def announce_end(self) -> None:
        """Wake every unfinished rank: its operations fail, and its code is interrupted."""
        for state in self.unfinished:
            send_if_free(state, ("abort", "another rank failed"))
            send_if_free(state, ("interrupt",))

    def refresh(self, limit: float = 1.0) -> int:
        """Ask every unfinished rank where it is, wait for the answers to this very question, and return its number."""
        number, end = self.poll(), self.clock + limit
        while self.clock < end and any(s.answered < number for s in self.unfinished):
            self.receive(end - self.clock)
        return number

    def poll(self) -> int:
        """Ask every unfinished rank where it is, and return the number of these questions.

        The number tells these answers apart from answers to earlier questions.
        """
        number = next(_numbers)
        for state in self.unfinished:
            send_if_free(state, ("where", number))
        return number

    def receive(self, limit: float) -> None:
        """Wait for messages for at most `limit` seconds, and handle one from each rank that has sent any."""
        waiting = {s.conn: s for s in self.unfinished}
        with interruptible():
            ready = wait(list(waiting), timeout=min(limit, MAX_STEP / 2))
        self._tick()
        with defer_interrupts():
            for conn in ready:
                try:
                    waiting[conn].take(conn.recv(), self.clock)
                except (EOFError, OSError):
                    waiting[conn].mark_dead()

    def _tick(self) -> None:
        """Let the clock of this task go on."""
        now = time.monotonic()
        self.clock += min(now - self._last, MAX_STEP)
        self._last = now

    # -- deadlock --------------------------------------------------------------------------------------------------
    def is_deadlocked(self) -> bool:
        """Whether no unfinished rank can go on, judged by the last answers."""
        if not self.unfinished:
            return False
        stuck = {s.rank for s in self.unfinished if self.is_stuck(s)}
        if len(stuck) < len(self.unfinished):
            return False
        gone = set(range(self.world_size)) - stuck  # finished, or no part of this task
        in_operation = [s for s in self.unfinished if s.where.waiting]
        # All are somewhere else inside torch.distributed, for example in new_group. They wait in vain if a rank is
        # gone, or if each of them makes a group.
        if not in_operation:
            return bool(gone) or all(_is_making_group(s.where) for s in self.unfinished)
        # Each must wait for an operation of which every missing rank is gone or stuck itself.
        hopeless = gone | stuck
        return all(any(op.missing and set(op.missing) <= hopeless for op in s.where.waiting) for s in in_operation)

    def is_still_deadlocked(self, limit: float = 1.0) -> bool:
        """Whether the ranks are deadlocked according to new answers of all of them.

        An old answer may be from a moment before another rank issued its last operation and finished.
        """
        number = self.refresh(limit)
        return all(s.answered >= number for s in self.unfinished) and self.is_deadlocked()

    def has_stuck(self) -> bool:
        """Whether an unfinished rank has not moved between polls, and waits for other ranks."""
        return any(map(self.is_stuck, self.unfinished))

    def is_stuck(self, state: RankState) -> bool:
        """Whether a rank has not moved between polls, and waits for other ranks."""
        if state.where is None or state.unmoved_since is None:
            return False
        unmoved = self.clock - state.unmoved_since
        if state.where.waiting:
            # A little less than a poll, because the time between two answers varies.
            return unmoved >= POLL * 0.8 and any(op.missing for op in state.where.waiting)
        return self.clock - state.idle_since >= NO_MOVEMENT_SECONDS and _inside_distributed(state.where)


def _has_work(state: RankState, number: int) -> bool:
    """Whether a rank runs or wants a core. One that has not answered question `number` may be too busy to answer."""
    return state.where.runnable if state.answered >= number else has_runnable_thread(state.pid)


def _inside_distributed(where: RankStatus) -> bool:
    """Whether a rank is in a function of torch.distributed, and not in code of the learner that such a function calls.

    A straggler on purpose sleeps in `Fault.apply`, and goes on.
    """
    if not where.frames or where.frames[-1][2] == "apply":
        return False
    innermost = next((path for path, _, _ in reversed(where.frames) if not is_engine(path)), "")
    inner = [path for path, _, _ in where.frames[-INNER_FRAMES:]]
    return "torch/" in innermost and any("torch/distributed/" in path for path in inner)


def _is_making_group(where: RankStatus) -> bool:
    """Whether a rank is in torch's functions that make process groups.

    Ranks that are all making a group, and all wait, are making different groups.
    """
    return any(path.endswith("torch/distributed/distributed_c10d.py") for path, _, _ in where.frames[-INNER_FRAMES:])


def send_to(state: RankState, message: tuple) -> bool:
    """Send to a rank; False if it is gone."""
    try:
        state.conn.send(message)
    except (OSError, ValueError):
        return False
    return True


def send_if_free(state: RankState, message: tuple) -> None:
    """Send a short message to a rank, unless it has read so little of the earlier ones that sending would wait.

    A rank reads nothing while C code keeps Python's lock, and the kernel must not wait with it.
    """
    poller = select.poll()
    try:
        poller.register(state.conn, select.POLLOUT)
    except (OSError, ValueError):  # the pipe is closed
        return
    if poller.poll(0):
        send_to(state, message)
