"""Ending a gloo group while it works: its operations fail, its threads come out, and no peer is hurt.

gloo (torch 2.13) has two holes. A send that stands in the queue of a connection when this one fails is never told; and
a message that finds its receiver gone blocks the reading of its connection, so that nobody sees it fail. In both a
thread of gloo waits as long as the group's timeout says, an hour, and whoever destroys the group waits for that thread.
Sockets that are cut from outside run into them, since a thread whose operation fails takes the next one from its queue,
while the other connections have yet to fail. So:

    close   a receive that times out: gloo then closes every connection of the group by its own hand
    hold    the sockets stay open until the ranks have met again: a peer that is not there yet still writes to us
    keep    a group with an operation that has not come back is not destroyed

A third hole is torch's: DDP's reducer may be the last that knows a group. It then waits for the group's threads with
the interpreter's lock in its hand, for which a thread waits that still tells Python of its last operation. So the last
groups that somebody shut down are kept a while as well.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from helpers.ranks.gloo import BlockingCall, is_timeout

if TYPE_CHECKING:
    from helpers.ranks.wire import Wire
    from helpers.ranks.work import WireWork

NOBODYS_TAG = 2**31 - 1
AT_ONCE = datetime.timedelta(milliseconds=1)


class Connections:
    """The connections of one group. `sockets`: the descriptors that gloo opened for it, with their inodes."""

    def __init__(self, wire: Wire, sockets: dict[int, int], ended: Ended):
        self.wire, self.sockets, self.ended = weakref.ref(wire), sockets, ended
        self.lock, self.are_closed = threading.Lock(), False

    def close(self) -> None:
        """End them. Threads that are blocked in gloo come out with an error."""
        wire = self.wire()
        with self.lock:
            if wire is None or self.are_closed:
                return
            self.are_closed = True
            self.ended.add(wire, self.sockets)
            close(wire.inner, wire.group.rank, wire.group.size)


class Ended:
    """What is left of the groups that were ended in this process."""

    def __init__(self):
        self.held: list[int] = []
        self.kept: list[Wire] = []
        self.shut_down: deque[Wire] = deque(maxlen=8)  # long enough for a thread to tell of its last operation

    def add(self, wire: Wire, sockets: dict[int, int]) -> None:
        self.held += [held for number, inode in sockets.items() if (held := hold(number, inode)) is not None]
        self.kept.append(wire)

    def let_go(self) -> None:
        """Every rank of the old world is in a new one, so nobody writes to the old connections any more."""
        held, self.held = self.held, []
        for number in held:
            os.close(number)
        self.kept = [wire for wire in self.kept if any(map(in_gloo, list(wire.group.issued)))]


def in_gloo(work: WireWork) -> bool:
    """Whether a thread of gloo has this collective, or has yet to take it up."""
    return not isinstance(work.inner, BlockingCall) and not work.inner.is_completed()


def hold(number: int, inode: int) -> int | None:
    """Another descriptor of the same socket, or None if it is gone."""
    with contextlib.suppress(OSError):
        return os.dup(number) if os.fstat(number).st_ino == inode else None
    return None


def close(inner: dist.ProcessGroup, me: int, size: int) -> None:
    """Have gloo close every connection of `inner`, whose group rank `me` is."""
    for peer in range(size):
        if peer != me:
            try:
                inner.recv([torch.empty(1)], peer, NOBODYS_TAG).wait(AT_ONCE)
            except RuntimeError as error:
                if is_timeout(error):
                    return  # otherwise this one was closed already, and another one may not be
