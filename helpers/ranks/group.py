"""One process group as the wire sees it: post, compare, issue, follow. The methods of torch's interface: wire.py.

    begin -> post on the board -> compare with the others -> issue to gloo -> follow until complete -> tell the log

Ranks here are group ranks, unless a name says global.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers.ranks import board as boards
from helpers.ranks.board_file import RECORDS, Board, Entry
from helpers.ranks.channels import Channels, message_words
from helpers.ranks.link import BOTH, IN, OUT, link_seconds
from helpers.ranks.session import Listeners, Session
from helpers.ranks.signatures import Signature, call_site, describe_count, signature
from helpers.ranks.work import PendingOp, WireError, WireWork
from helpers.records import CommEvent

_WITHOUT_FUTURE = ("reduce_scatter", "send", "recv")  # gloo's works of these offer none


class WireGroup:
    """The state of one group. `sockets`: the descriptors that gloo opened for it, with their inodes."""

    def __init__(
        self, session: Session, listeners: Listeners, name: str, ranks: tuple[int, ...], rank: int, path: str | None
    ):
        self.session, self.listeners, self.name, self.ranks, self.rank = session, listeners, name, ranks, rank
        self.size = len(ranks)
        self.board = Board(path, rank) if path else None
        self.channels = Channels(self.board) if path else None
        self.order = threading.RLock()  # operations are posted and issued in one order, from whatever thread
        self.sequence = self.num_messages = 0
        self.received: Counter = Counter()  # tag -> completed receives
        self.sockets: dict[int, int] = {}
        session.groups.append(self)
        session.counters[name] = 0

    # -- collectives -----------------------------------------------------------------------------------------------
    def collective(self, sig: Signature, issue: Callable[[], dist.Work], outputs: list) -> WireWork:
        site = call_site()
        with self.order:
            self.session.begin(sig.name)
            work = WireWork(sig, self.sequence, site, outputs, self._complete)
            self.session.add(self, work)
            try:
                self._post(work)
                self._issue(work, issue)
            except BaseException:
                self.session.remove(work)
                raise
        self._follow(work)
        return work

    def blocking(self, sig: Signature, call: Callable[[], None]) -> None:
        """A collective that gloo offers only as a blocking call: made in a thread, so that it can be ended."""
        self.collective(sig, lambda: BlockingCall(call), []).wait()

    def _post(self, work: WireWork) -> None:
        sequence = self.sequence
        if self.board is None:
            self._count()
            return
        self._wait_for_room(sequence)
        sig = work.signature
        entry = Entry(sig.what, sig.give, sig.take, work.site, work.started)
        self.board.post(sequence, entry)
        self._count()
        if self.board.first_disagreement(sequence, entry) is not None:
            self.refuse(*boards.explain(self.board, sequence))

    def _count(self) -> None:
        self.sequence += 1
        self.session.counters[self.name] = self.sequence

    def _wait_for_room(self, sequence: int) -> None:
        """No rank may be a whole ring ahead of another, or its signatures would be lost unread."""
        while sequence >= RECORDS and min(map(self.board.count, range(self.size))) <= sequence - RECORDS:
            time.sleep(0.001)
            self.session.look()
            self.session.begin("")

    def _issue(self, work: WireWork, issue: Callable[[], dist.Work]) -> None:
        try:
            work.inner = issue()
        except BaseException:
            if self.board is not None:
                self.board.withdraw(work.sequence)
            raise

    def refuse(self, message: str, culprit: int | None) -> None:
        """Tell every rank, and raise, before anything is issued."""
        self.board.flag(message, culprit)
        self.session.look()
        raise WireError(message, kind="mismatch", culprit=culprit)

    # -- point to point --------------------------------------------------------------------------------------------
    def message(self, name: str, tensors: list, peer: int, tag: int, issue: Callable[[], dist.Work]) -> WireWork:
        """A send, or a receive; `peer` is this rank itself for a receive from any source."""
        site, receives = call_site(), name == "recv"
        what = describe_count(tensors[0])
        with self.order:
            self.session.begin(name)
            work = WireWork(signature(name, tensors), self.num_messages, site, tensors, self._complete)
            work.receives, work.tag, work.number, work.other = receives, tag, 0, peer
            work.peer = None if peer == self.rank else peer
            self.num_messages += 1
            self.session.add(self, work)
            try:
                if self.channels is not None:
                    self._announce(work, what)
                work.inner = issue()
            except BaseException:
                self.session.remove(work)
                raise
        self._follow(work)
        return work

    def _announce(self, work: WireWork, what: str) -> None:
        key = work.receives, work.other, work.tag
        work.number = self.channels.post(*key, what, work.site)
        if work.peer is None:
            return
        other = self.channels.counterpart(*key, work.number)
        if other is not None and other.what != what:
            me, peer = self.ranks[self.rank], self.ranks[work.peer]
            self.refuse(message_words(work.signature.name, me, peer, what, work.site, other), None)

    # -- completion ------------------------------------------------------------------------------------------------
    def _follow(self, work: WireWork) -> None:
        """Have `_arrived` called once gloo is done, whether it offers a future or not."""
        if work.signature.name in _WITHOUT_FUTURE or isinstance(work.inner, BlockingCall):
            self.session.waiters.call(work.inner.wait, lambda error: self._arrived(work, error))
        else:
            work.inner.get_future().add_done_callback(lambda future: self._arrived(work, _error_of(future)))

    def _arrived(self, work: WireWork, error: BaseException | None) -> None:
        if error is None and work.signature.on_gpu:
            torch.cuda.synchronize()
        if error is not None or self.session.link is None or work.done:
            work.finish(error)
        else:
            self.session.link.hold(self._due(work), work.finish)

    def _due(self, work: WireWork) -> float:
        """When the emulated link would have delivered it."""
        link, name = self.session.link, work.signature.name
        seconds = link_seconds(link.link, name, work.signature.num_bytes, self.size)
        lane = {"send": OUT, "recv": IN}.get(name, BOTH)
        return link.reserve(lane, self._ready(work), seconds) + seconds

    def _ready(self, work: WireWork) -> float:
        """When the last rank had posted it: no link can start earlier."""
        if self.board is None:
            return time.perf_counter()
        if hasattr(work, "receives"):
            return work.started
        entries = (self.board.read(r, work.sequence) for r in range(self.size))
        return max([work.started, *(entry.time for entry in entries if entry is not None)])

    def _complete(self, work: WireWork) -> None:
        self.session.remove(work)
        if work.error is None:
            if work.signature.name == "recv":
                self.received[work.tag] += 1
            if self.listeners.callbacks:
                self.listeners.tell(self._event(work))

    def _event(self, work: WireWork) -> CommEvent:
        sig, (path, line, _) = work.signature, work.site
        peer = work.source_rank() if sig.name == "recv" else work.peer if sig.root is None else sig.root
        return CommEvent(
            rank=self.ranks[self.rank],
            op=sig.name,
            payload_bytes=sig.num_bytes,
            group=self.name,
            group_ranks=self.ranks,
            sequence=work.sequence,
            caller=f"{os.path.basename(path)}:{line}",
            start=work.started,
            end=time.perf_counter(),
            dtype=sig.dtype,
            shape=sig.shape,
            peer=None if peer is None else self.ranks[peer],
            reduce_op=sig.reduce_op,
        )

    # -- who is missing --------------------------------------------------------------------------------------------
    def describe(self, work: WireWork, now: float) -> PendingOp:
        point_to_point = hasattr(work, "receives")
        missing = self._missing_message(work) if point_to_point else self._missing(work)
        return PendingOp(
            group=self.name,
            group_ranks=self.ranks,
            sequence=work.sequence,
            op=work.signature.name,
            site=work.site,
            missing=tuple(self.ranks[r] for r in missing),
            age=now - work.started,
            peer=None if work.peer is None else self.ranks[work.peer],
            any_of=point_to_point and work.peer is None,
            waiting=work.num_waiting > 0,
        )

    def _missing(self, work: WireWork) -> list[int]:
        if self.board is None:
            return []
        needed = needed_by(work.signature.name, work.signature.root, self.rank, self.size)
        return [r for r in needed if not self.board.has_posted(r, work.sequence)]

    def _missing_message(self, work: WireWork) -> list[int]:
        if self.channels is None:
            return []
        if work.peer is None:
            others = [r for r in range(self.size) if r != self.rank]
            return [] if self.channels.anyone_sent(work.tag, self.received[work.tag]) else others
        return [] if self.channels.is_matched(work.receives, work.peer, work.tag, work.number) else [work.peer]

    # -- life ------------------------------------------------------------------------------------------------------
    def look(self) -> tuple[str, int | None] | None:
        """The first raised flag; and read the peers' messages on the way."""
        if self.board is None:
            return None
        self.channels.drain()
        return self.board.flagged()

    def cut(self) -> None:
        """Shut down the sockets that gloo opened for this group: its blocked threads end with an error."""
        for number, inode in self.sockets.items():
            with contextlib.suppress(OSError):
                if os.fstat(number).st_ino == inode:
                    with socket.socket(fileno=os.dup(number)) as one:
                        if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # gloo aborts if it cannot listen
                            one.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Nothing of this group is pending any more, or ever will be; its board goes with the last reference."""
        for group, work in self.session.works():
            if group is self:
                work.finish(WireError("its process group was destroyed"))
        with contextlib.suppress(ValueError):
            self.session.groups.remove(self)


@dataclass
class BlockingCall:
    """Looks like a work of gloo's whose `wait` does it all."""

    wait: Callable[[], None]


def needed_by(name: str, root: int | None, me: int, size: int) -> list[int]:
    """The ranks without which gloo cannot complete operation `name` on rank `me` (tried on torch 2.13).

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


def open_sockets() -> dict[int, int]:
    """Descriptor -> inode of every socket of this process."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def _error_of(future: torch.futures.Future) -> BaseException | None:
    try:
        future.value()
    except Exception as error:
        return error
    return None
