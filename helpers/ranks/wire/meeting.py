"""Lets ranks wait for each other outside of gloo, while they make a group or wait for a key of a store.

torch and gloo make such waits in C++, where no other thread can end them and nobody can see who is missing. Here a
spare thread asks again and again whether the wait is over, while the thread that waits can be woken. So the wait is one
of the rank's pending operations: the kernel (the notebook's process) sees for whom it waits, and a failure ends it.

    Wait          one wait, which is listed among the pending operations
    meet          all members of a new group wait for each other, before gloo connects them
    GroupCalls    compares each call of new_group across all ranks of the world
    watch_stores  makes the waits of torch's stores, such as `store.get`, a Wait

A "session" is what all groups of a process share (session.py). A "board" is a file in shared memory in which ranks
compare what they do (board.py).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import torch.distributed as dist

from helpers.devices.call_site import call_site
from helpers.ranks.board.board import NEW_GROUP, Board, BoardEntry
from helpers.ranks.board.report import explain_mismatch
from helpers.ranks.board.sites import Frame, words
from helpers.ranks.wire.session import Session
from helpers.ranks.wire.work import PendingOp, Signature, WireError, WireWork

SHORTEST, LONGEST = 0.0005, 0.02  # seconds between two questions whether a wait is over, at first and later
GO, LEAVE = "go", "leave"  # what the members of a new group decide together


class Wait:
    """A wait of this rank for `others`, which are global ranks, in an operation that belongs to no group.

    op: its name in sentences, such as "new_group". site: the line that called it.
    """

    def __init__(self, session: Session, op: str, site: Frame, others: Iterable[int]):
        self.session, self.missing = session, tuple(others)
        self.work = WireWork(Signature(op, op), 0, site, [], session.remove)

    def until(self, is_over: Callable[[], bool]) -> None:
        """Return once `is_over()`, or raise what ends the wait before, such as the WireError of a broken world."""
        if is_over():
            return
        self.session.add(self, self.work)
        self.session.waiters.call(functools.partial(self._ask, is_over), self.work.finish)
        try:
            self.session.raise_if_broken()  # it may have been broken just before this wait could be seen
            self.work.wait()
        except BaseException as error:
            self.work.finish(error)  # the spare thread then stops asking
            raise

    def _ask(self, is_over: Callable[[], bool]) -> None:
        """Run by the spare thread until the wait is over or was ended."""
        pause = SHORTEST
        while not self.work.done and not is_over():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)

    def describe(self, work: WireWork, now: float) -> PendingOp:
        """What the kernel is told about this wait. now: seconds of time.perf_counter."""
        others, age = self.missing, now - work.started
        op = {"group": "", "group_ranks": (), "sequence": work.sequence, "op": work.signature.name, "site": work.site}
        return PendingOp(**op, missing=others, age=age, any_of=True, waiting=True)


def meet(session: Session, op: str, store: dist.Store, ranks: Sequence[int]) -> BaseException | None:
    """Wait until every member of a new group has come to make it. Raises what ends the wait before.

    op: "new_group" or "init_process_group". store: of the new group alone. ranks: the global ranks of its members.

    The members decide together whether they go on or one has left, in one key of the store: otherwise one rank could
    leave while another one goes on, and waits for it inside gloo. Returns the error that came after the others had
    decided to go on. The caller raises it once the group is made.
    """
    me, here = session.config.rank, dist.PrefixStore("meeting " + " ".join(map(str, ranks)), store)
    wait = Wait(session, op, call_site(), [rank for rank in ranks if rank != me])

    def all_are_here() -> bool:
        wait.missing = tuple(rank for rank in wait.missing if not here.check([str(rank)]))
        return not wait.missing

    def decision(mine: str) -> str:
        return here.compare_set("decision", "", mine).decode()

    session.raise_if_broken()
    here.set(str(me), "here")
    try:
        wait.until(all_are_here)
    except BaseException as error:
        if decision(LEAVE) == LEAVE:
            raise
        return error
    if decision(GO) == LEAVE:
        raise WireError(words["left"])
    return None


class GroupCalls:
    """The calls of new_group of all ranks of a world, on a board of their own.

    Every rank of the world must make each of these calls, members of the new group or not. They are no operations of a
    group, so they do not count as such. path: of the board.
    """

    def __init__(self, session: Session, path: str):
        self.session, self.board = session, Board(path, session.config.rank)
        self.lock, self.number = threading.Lock(), 0
        session.counters[NEW_GROUP] = 0

    def compare(self, ranks: Sequence[int], site: Frame) -> None:
        """Write down a call for a group of these ranks. Raises WireError, on all ranks, if another rank's differs."""
        self.session.raise_if_broken()
        entry = BoardEntry(f"{NEW_GROUP}({list(ranks)})", site=site, time=time.perf_counter())
        with self.lock:
            number, self.number = self.number, self.number + 1
            self.board.post(number, entry)
            self.session.counters[NEW_GROUP] = self.number
        if self.board.first_disagreement(number, entry) is not None:
            message, culprit = explain_mismatch(self.board, number, patience=1.0)
            self.board.flag(message, culprit)
            self.look()
            raise WireError(message, kind="mismatch", culprit=culprit)

    def look(self) -> None:
        """End every pending operation of this process if a rank has found a call that differs."""
        found = self.board.flagged()
        if found is not None and self.session.give_up(found[0], kind="mismatch", culprit=found[1]):
            self.session.fail(found[0], kind="mismatch", culprit=found[1])


# -- stores ----------------------------------------------------------------------------------------------------------
def watch_stores(session: Callable[[], Session | None]) -> None:
    """Have the waits of torch's stores be seen and ended. session: returns the present one of this process."""
    for name in ("get", "wait", "multi_get"):
        setattr(dist.Store, name, _watched(session, getattr(dist.Store, name), name))


def _watched(session: Callable[[], Session | None], call: Callable, name: str) -> Callable:
    """A method of a store that waits here until its keys are set or its time is over, and then calls torch's."""

    @functools.wraps(call)
    def method(store: dist.Store, keys: str | list[str], *args, **kwargs):
        here, listed = session(), [keys] if isinstance(keys, str) else list(keys)
        if here is None or threading.current_thread() is not threading.main_thread() or store.check(listed):
            return call(store, keys, *args, **kwargs)
        limit = next(iter((*args, *kwargs.values())), None) or store.timeout
        end, me = time.monotonic() + limit.total_seconds(), here.config.rank
        others = [rank for rank in range(here.config.world_size) if rank != me]
        # Any other rank may set the keys, so the wait is in vain only if all of them have finished or wait as well.
        wait = Wait(here, f"store.{name}", call_site(), others)
        wait.until(lambda: store.check(listed) or time.monotonic() > end)
        if not store.check(listed):
            _torch_wait(store, listed, timedelta(milliseconds=1))  # raises torch's error for keys that never came
        return call(store, keys, *args, **kwargs)

    return method


_torch_wait = dist.Store.wait
