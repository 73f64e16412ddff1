"""Holds what the wire must know about gloo: who needs whom, how to wait for it, and how to close its connections.

`ranks_needed_by` lists the ranks without which an operation cannot complete (as observed with torch 2.13).

Waiting. For send, recv, reduce_scatter and blocking calls gloo offers no future. Whoever calls `wait()` on such an
operation waits in gloo itself, since a thread in between would cost more than a small message. An operation for which
nobody waits is handed to a thread, at the latest when the watch comes by. A wait in gloo hears neither signals nor
`fail_pending`: the only way out is to close the group's connections, after which a new world is needed anyway.

Closing. gloo has two holes. A send in the queue of a connection that fails is never told, and a message whose receiver
is gone blocks the reading of its connection, so that nobody sees it fail. In both cases a thread of gloo waits for the
group's timeout, an hour, and whoever destroys the group waits for that thread. Sockets that are cut from outside run
into these holes, since a thread whose operation fails takes the next one from its queue while the other connections
have yet to fail. Therefore:

    close_connections   a receive that times out makes gloo close every connection of the group by itself
    duplicate_socket    the sockets stay open until the ranks have met again: a slower peer still writes to them
    ClosedGroups        a group with an operation that has not come back is kept, and so never destroyed

A third hole is torch's. DDP's reducer may hold the last reference to a group. It then waits for the group's threads
while it holds the interpreter's lock, and a thread that still reports its last operation to Python waits for that lock.
So the last groups that were shut down are kept for a while, too.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

import torch
import torch.distributed as dist

WITHOUT_FUTURE = ("reduce_scatter", "send", "recv")


def ranks_needed_by(name: str, root: int | None, me: int, size: int) -> list[int]:
    """The ranks without which gloo cannot complete operation `name` on rank `me`.

    A gather or scatter needs the root, and the root everyone. A broadcast runs down a binomial tree: a rank needs those
    above it and its own children. Everything else needs everyone.
    """
    everyone = [r for r in range(size) if r != me]
    if name in ("gather", "scatter"):
        return everyone if me == root else [root]
    if name != "broadcast":
        return everyone
    place = (me - root) % size
    above = []
    while place:
        place -= 1 << (place.bit_length() - 1)
        above.append(place)
    place = (me - root) % size
    below = [place + (1 << bit) for bit in range(place.bit_length(), size.bit_length())]
    return [(one + root) % size for one in above + [b for b in below if b < size]]


@dataclass
class BlockingCall:
    """A stand-in for a work, for operations that gloo offers only as a blocking call: its `wait` makes the call."""

    wait: Callable[[], object]


def error_of(future: torch.futures.Future) -> BaseException | None:
    try:
        future.value()
    except Exception as error:
        return error
    return None


def is_timeout(error: BaseException) -> bool:
    return "Timed out waiting" in str(error)


def open_sockets() -> dict[int, int]:
    """Descriptor -> inode of every socket of this process."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


Done = Callable[[BaseException | None], None]


class Waiters:
    """Threads that wait in gloo on behalf of others. An idle thread is kept for the next wait."""

    def __init__(self):
        self.jobs: SimpleQueue[tuple[Callable[[], object], Done]] = SimpleQueue()
        self.lock, self.num_idle = threading.Lock(), 0

    def call(self, wait: Callable[[], object], done: Done) -> None:
        """Call `wait()` in a thread of its own, then `done(None)` or `done(error)`."""
        with self.lock:
            missing = self.num_idle == 0
            self.num_idle -= not missing
        self.jobs.put((wait, done))
        if missing:
            threading.Thread(target=self._serve, daemon=True, name="wire waiter").start()

    def _serve(self) -> None:
        while True:
            wait, done = self.jobs.get()
            try:
                wait()
            except Exception as error:
                done(error)
            else:
                done(None)
            del wait, done
            with self.lock:
                self.num_idle += 1


class DirectWait:
    """A blocking call that either the first to wait makes, or a thread. Exactly one of them does."""

    def __init__(self, call: Callable[[], object], done: Done, waiters: Waiters, cut: Callable[[], None]):
        self.call, self.done, self.waiters, self.cut = call, done, waiters, cut
        self.lock, self.taken, self.inside = threading.Lock(), False, False

    def wait(self) -> None:
        """Make the call here, unless somebody else has taken it."""
        if not self._take():
            return
        error: BaseException | None = RuntimeError("the wait was interrupted")
        self.inside = True
        try:
            with SIGNALS.calling(self.cut):
                self.call()
            error = None
        except Exception as raised:
            error = raised
        finally:
            self.inside = False
            self._take_callbacks()[1](error)

    def hand_over(self) -> None:
        """Let a thread make the call, unless somebody has taken it already."""
        if self._take():
            self.waiters.call(*self._take_callbacks())

    def end(self) -> None:
        """The operation is over: whoever is inside the call is made to leave it, and nobody enters it."""
        self._take()
        if self.inside:
            self.cut()

    def _take_callbacks(self) -> tuple[Callable[[], object], Done]:
        """What the one who has taken it calls. Both lead back to the operation, whose tensors would outlive it."""
        given, self.call, self.done = (self.call, self.done), None, None
        return given

    def _take(self) -> bool:
        with self.lock:
            free, self.taken = not self.taken, True
        return free


class Signals:
    """Gets the main thread out of gloo at a signal.

    Inside gloo Python cannot handle signals, so a thread listens for them. heard: set to False by a program that
    handles its interrupts itself, after the wait.
    """

    def __init__(self):
        self.heard = True
        self.cut: Callable[[], None] | None = None
        self.pipe: tuple[int, int] | None = None

    @contextlib.contextmanager
    def calling(self, cut: Callable[[], None]) -> Iterator[None]:
        """Within, an interrupt of the main thread calls `cut`."""
        if not self.heard or threading.current_thread() is not threading.main_thread():
            yield
            return
        if self.pipe is None:
            self._start()
        self.cut = cut
        before = signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
        try:
            yield
        finally:
            self.cut = None
            signal.set_wakeup_fd(before)

    def _start(self) -> None:
        self.pipe = os.pipe()
        os.set_blocking(self.pipe[1], False)
        threading.Thread(target=self._listen, daemon=True, name="wire signals").start()

    def _listen(self) -> None:
        while True:
            for number in os.read(self.pipe[0], 64):
                cut = self.cut
                if number == signal.SIGINT and cut is not None:
                    cut()


SIGNALS = Signals()


UNUSED_TAG = 2**31 - 1
ONE_MILLISECOND = datetime.timedelta(milliseconds=1)


class Connections:
    """The connections of one group. `sockets`: the descriptors that gloo opened for it, with their inodes."""

    def __init__(self, wire: dist.ProcessGroup, sockets: dict[int, int], ended: ClosedGroups):
        self.wire, self.sockets, self.ended = weakref.ref(wire), sockets, ended
        self.lock, self.are_closed = threading.Lock(), False

    def close(self) -> None:
        """Close them. Threads that are blocked in gloo come out with an error."""
        wire = self.wire()
        with self.lock:
            if wire is None or self.are_closed:
                return
            self.are_closed = True
            self.ended.add(wire, self.sockets)
            close_connections(wire.inner, wire.group.rank, wire.group.size)


class ClosedGroups:
    """What must be kept of the groups that were closed in this process until all ranks have met in a new world.

    sockets: duplicates that keep connections open. busy: wires whose group has an operation that has not come back.
    """

    def __init__(self):
        self.sockets: list[int] = []
        self.busy: list[dist.ProcessGroup] = []
        self.shut_down: deque[dist.ProcessGroup] = deque(maxlen=8)  # for a thread that reports its last operation

    def add(self, wire: dist.ProcessGroup, sockets: dict[int, int]) -> None:
        self.sockets += [
            copy for number, inode in sockets.items() if (copy := duplicate_socket(number, inode)) is not None
        ]
        self.busy.append(wire)

    def release(self) -> None:
        """Give everything up: every rank of the old world is in a new one, so nobody writes to the old connections."""
        numbers, self.sockets = self.sockets, []
        for number in numbers:
            os.close(number)
        self.busy = [wire for wire in self.busy if any(map(is_in_gloo, list(wire.group.issued)))]


def is_in_gloo(work: dist.Work) -> bool:
    """Whether a thread of gloo has this collective, or has yet to take it up."""
    return not isinstance(work.inner, BlockingCall) and not work.inner.is_completed()


def duplicate_socket(number: int, inode: int) -> int | None:
    """Another descriptor of the same socket, or None if the socket is gone."""
    with contextlib.suppress(OSError):
        return os.dup(number) if os.fstat(number).st_ino == inode else None
    return None


def close_connections(inner: dist.ProcessGroup, me: int, size: int) -> None:
    """Have gloo close every connection of `inner`, whose group rank `me` is."""
    for peer in range(size):
        if peer != me:
            try:
                inner.recv([torch.empty(1)], peer, UNUSED_TAG).wait(ONE_MILLISECOND)
            except RuntimeError as error:
                if is_timeout(error):
                    return  # otherwise this one was closed already, and another one may not be
