"""Provides what the wire must do because gloo is as it is: who needs whom, how to wait, how to close connections.

The "wire" is this package's ProcessGroup, which wraps gloo's. Its class `Wire` is in wire.py, and `WireGroup`, which it
asks to carry out each operation, is in group.py. A "work" is torch's object for an operation in flight. A "world" is
all process groups that a process makes between one install() or reset() and the next; after a failure the ranks begin
a new one.

`ranks_needed_by` lists the ranks without which an operation cannot complete (as observed with torch 2.13).

Waiting. For send, recv, reduce_scatter and blocking calls gloo offers no future, so some thread must wait inside gloo.
Such a wait ends only when the operation completes or when the group's connections are closed, after which a new world
is needed. It reacts neither to signals nor to the failure of other ranks. A `DirectWait` is one such wait. Its fields
say how far it is:

    taken     whether a thread has taken the wait, or `end` has forbidden it. It is taken by the program's thread that
              calls `wait()`, because passing the result between threads would take longer than a small message; or by a
              thread of `Waiters`, for example if the program has not called `wait()` within 50 ms.
    inside    whether the program's thread has taken it and has not come back from gloo
    call      the blocking call into gloo. It is None once the call is over, or once `Waiters` has it.
    on_end    is called with the error of the call, or with None, and completes the operation. It becomes None with
              `call`.

Closing. When an operation has failed, the group's connections are *closed*, so that threads inside gloo return.
`WireGroup.cut` does this, and gives up the world. A program *shuts down* a group when it destroys it. Both run into
bugs, the first two of gloo and the third of torch:

1.  gloo does not tell a send that waits in the queue of a connection when the connection fails. A thread of gloo then
    waits for the group's timeout, an hour, and the thread that destroys the group waits for that thread.
2.  gloo stops reading from a connection at a message whose receiver is gone, so it does not see the connection fail.
    The threads wait as with the first bug.

    We cannot close the sockets ourselves: they would fail one after the other, and a gloo thread would start its next
    operation on one that is still open, which is bug 1 or 2. But when a receive times out, gloo closes all of a group's
    connections at once. So `close_connections` makes a receive time out.

    A slower peer may still write to a connection that gloo has closed here. This one connection would then fail on the
    peer while its others are open, and the peer would run into bug 1 or 2. So `duplicate_socket` keeps each socket open
    until all ranks have met in a new world.

    A thread of gloo may still be inside an operation. Whoever destroys the group would wait for that thread, perhaps
    for the hour. So `ClosedGroups.busy` keeps such a group for as long as a thread is inside.
3.  DDP's reducer may hold the last reference to a group. It then waits for the group's threads while it holds the
    interpreter's lock, and a thread that still reports its last operation to Python waits for that lock. We cannot
    make the reducer let go of the group earlier. So `ClosedGroups.shut_down` holds a reference of its own to the last
    groups that were shut down.
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

# -- who needs whom --------------------------------------------------------------------------------------------------
WITHOUT_FUTURE = ("reduce_scatter", "send", "recv")  # operations whose works have no future


def ranks_needed_by(name: str, root: int | None, me: int, size: int) -> list[int]:
    """The ranks without which gloo cannot complete operation `name` on rank `me`.

    A gather or scatter needs the root, and the root needs everyone. A broadcast runs down a binomial tree, in which a
    rank needs its parents up to and including the root, and its own children. Everything else needs everyone. Ranks are
    group ranks.
    """
    everyone = [r for r in range(size) if r != me]
    if name in ("gather", "scatter"):
        return everyone if me == root else [root]
    if name != "broadcast":
        return everyone
    place = (me - root) % size  # in the tree, where the root has place 0
    below = [place + (1 << bit) for bit in range(place.bit_length(), size.bit_length())]  # its children
    above = []
    while place:  # the parent's place lacks the highest bit
        place -= 1 << (place.bit_length() - 1)
        above.append(place)
    return [(one + root) % size for one in above + [b for b in below if b < size]]


# -- how to wait -----------------------------------------------------------------------------------------------------
@dataclass
class BlockingCall:
    """A stand-in for a work, for operations that gloo offers only as a blocking call. Its `wait` makes that call."""

    wait: Callable[[], object]


def error_of(future: torch.futures.Future) -> BaseException | None:
    """The error of a future that is done, or None."""
    try:
        future.value()
    except Exception as error:
        return error
    return None


def is_timeout(error: BaseException) -> bool:
    """Whether an error of gloo is a timeout."""
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


OnEnd = Callable[[BaseException | None], None]  # called with the error of a wait, or None


class Waiters:
    """Threads that wait in gloo on behalf of others. An idle thread is kept for the next wait."""

    def __init__(self):
        self.jobs: SimpleQueue[tuple[Callable[[], object], OnEnd]] = SimpleQueue()
        self.lock, self.num_idle = threading.Lock(), 0

    def call(self, wait: Callable[[], object], on_end: OnEnd) -> None:
        """Call `wait()` in a thread of its own, then `on_end(None)` or `on_end(error)`."""
        with self.lock:
            needs_thread = self.num_idle == 0
            if not needs_thread:
                self.num_idle -= 1
        self.jobs.put((wait, on_end))
        if needs_thread:
            threading.Thread(target=self._serve, daemon=True, name="wire waiter").start()

    def _serve(self) -> None:
        """Run by each thread: make one wait after the other."""
        while True:
            wait, on_end = self.jobs.get()
            try:
                wait()
            except Exception as error:
                on_end(error)
            else:
                on_end(None)
            del wait, on_end  # they hold the operation, and with it its tensors
            with self.lock:
                self.num_idle += 1


class DirectWait:
    """A blocking wait inside gloo, which one thread makes: the first one that calls `wait`, or one of `waiters`.

    call: the blocking call into gloo. on_end: is called with its error or None. cut: closes the group's connections,
    which ends the call. The module's docstring says what the fields mean during its life.
    """

    def __init__(self, call: Callable[[], object], on_end: OnEnd, waiters: Waiters, cut: Callable[[], None]):
        self.call, self.on_end, self.waiters, self.cut = call, on_end, waiters, cut
        self.lock = threading.Lock()
        self.taken = False  # whether a thread makes the call or made it, or `end` has forbidden it
        self.inside = False  # whether the program's thread, which called `wait`, makes the call

    def wait(self) -> None:
        """Make the call in this thread, unless another thread has taken it."""
        if not self._take(inside=True):
            return
        # What `on_end` gets after a KeyboardInterrupt, which `except Exception` lets pass.
        error: BaseException | None = RuntimeError("the wait was interrupted")
        try:
            with SIGNALS.calling(self.cut):
                self.call()
            error = None
        except Exception as raised:
            error = raised
        finally:
            self.inside = False
            _, on_end = self._take_callbacks()
            on_end(error)

    def hand_over(self) -> None:
        """Let a thread of `waiters` make the call, unless another thread has taken it already."""
        if self._take():
            self.waiters.call(*self._take_callbacks())

    def end(self) -> None:
        """Let no thread take the call, because the operation has failed. If the program's thread makes it, cut it off.

        A call that was handed to `waiters` is left alone: the program does not wait in it, because the failure has
        released its `wait()` already. The spare thread returns when gloo does.
        """
        self._take()
        if self.inside:
            self.cut()

    def _take_callbacks(self) -> tuple[Callable[[], object], OnEnd]:
        """`call` and `on_end`, which are dropped here: they lead to the operation, and would keep its tensors alive."""
        callbacks, self.call, self.on_end = (self.call, self.on_end), None, None
        return callbacks

    def _take(self, *, inside: bool = False) -> bool:
        """Take the call. Returns whether no thread had taken it. inside: whether the program's thread will make it.

        Both are set under the lock, or `end` could come between them and leave the program's thread inside gloo.
        """
        with self.lock:
            was_free, self.taken = not self.taken, True
            self.inside = self.inside or (was_free and inside)
        return was_free


# -- interrupts ------------------------------------------------------------------------------------------------------
class Signals:
    """Gets the main thread out of gloo at an interrupt.

    Inside gloo Python cannot handle signals. But Python also writes each signal's number into a pipe
    (signal.set_wakeup_fd), from which a thread reads it.
    """

    def __init__(self):
        # False: an interrupt is handled only after gloo returns; `train` sets this to finish its step first.
        self.ends_waits = True
        self.cut: Callable[[], None] | None = None  # closes the connections of the group that the main thread waits for
        self.pipe: tuple[int, int] | None = None

    @contextlib.contextmanager
    def calling(self, cut: Callable[[], None]) -> Iterator[None]:
        """Within, an interrupt of the main thread calls `cut`."""
        if not self.ends_waits or threading.current_thread() is not threading.main_thread():
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
        """Run by a thread: call `cut` at each SIGINT while the main thread is inside gloo."""
        while True:
            for number in os.read(self.pipe[0], 64):
                cut = self.cut
                if number == signal.SIGINT and cut is not None:
                    cut()


SIGNALS = Signals()


# -- how to close connections ----------------------------------------------------------------------------------------
# A wire is annotated as a dist.ProcessGroup here, because wire.py and group.py, with Wire and WireGroup, import this
# file.
UNUSED_TAG = 2**31 - 1  # the tag of a message that nobody sends
ONE_MILLISECOND = datetime.timedelta(milliseconds=1)  # the timeout of a receive that is meant to time out


class Connections:
    """The connections of one group. sockets: the descriptors that gloo opened for it, with their inodes.

    wire: the group's Wire, whose `inner` is gloo's ProcessGroup. closed: keeps what must outlive the connections.
    """

    def __init__(self, wire: dist.ProcessGroup, sockets: dict[int, int], closed: ClosedGroups):
        self.wire, self.sockets, self.closed = weakref.ref(wire), sockets, closed
        self.lock, self.are_closed = threading.Lock(), False

    def close(self) -> None:
        """Close them, once. Threads that wait inside gloo then raise an error."""
        wire = self.wire()
        with self.lock:
            if wire is None or self.are_closed:
                return
            self.are_closed = True
            self.closed.add(wire, self.sockets)
            close_connections(wire.inner, wire.group.rank, wire.group.size)


class ClosedGroups:
    """What must be kept of the groups that were closed in this process until all ranks have met in a new world.

    sockets: duplicates that keep connections open. busy: wires whose group may have an operation that has not ended.
    shut_down: the wires of the last groups that the program itself destroyed.
    """

    def __init__(self):
        self.sockets: list[int] = []
        self.busy: list[dist.ProcessGroup] = []
        # Because of the third bug above. Eight are enough: a group's threads need milliseconds to report their last
        # operation, and only then may the group go, which is when eight later groups have been shut down.
        self.shut_down: deque[dist.ProcessGroup] = deque(maxlen=8)

    def add(self, wire: dist.ProcessGroup, sockets: dict[int, int]) -> None:
        """Keep a wire whose connections are about to be closed, and duplicates of its sockets."""
        copies = [duplicate_socket(number, inode) for number, inode in sockets.items()]
        self.sockets += [copy for copy in copies if copy is not None]
        self.busy.append(wire)

    def release(self) -> None:
        """Free everything. Every rank of the old world is in a new one, so nobody writes to the old connections."""
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
    """Have gloo close every connection of `inner`, in which this process has group rank `me`.

    A receive that times out makes gloo close them all. Where the receive raises another error, this peer's connection
    was closed already, while those to other peers may be open, so the next peer is tried.
    """
    for peer in range(size):
        if peer != me:
            try:
                inner.recv([torch.empty(1)], peer, UNUSED_TAG).wait(ONE_MILLISECOND)
            except RuntimeError as error:
                if is_timeout(error):
                    return
