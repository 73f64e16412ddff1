"""Takes each operation of one process group through the wire, in the steps below.

The "wire" is a ProcessGroup around the real one, gloo's (wire.py). It logs every operation, compares it across ranks,
can emulate a slow network link, and can inject a fault. methods.py has the methods that torch calls, such as
`allreduce`; each of them calls `WireGroup.collective` or `WireGroup.message`. The steps are:

    begin     checks that no operation of this process was refused before, and injects the fault, if one was asked for
    post      writes on the board what this rank is about to do (the board is a file in shared memory, board.py)
    compare   with what the other ranks have posted: a difference raises here, and nothing is issued
    issue     makes the same call on the real group
    follow    until gloo is done, and the emulated link, too
    complete  reports the operation to the log and releases whoever waits

A "collective" is called by all ranks of the group. A "message" is a send or a receive. A "signature" describes an
operation: its name, and what is compared across ranks. A "work" is torch's object for an operation in flight, and
`WireWork` is this package's. The "session" has what all groups of this process share. Ranks here are group ranks, and
`ranks` maps them to global ranks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from helpers.devices.call_site import call_site
from helpers.learner.words import Words
from helpers.ranks.board.board import RECORDS, Board, BoardEntry, Channels, describe_message_mismatch
from helpers.ranks.board.report import explain_mismatch
from helpers.ranks.board.sites import describe, rank_names, words
from helpers.ranks.wire.gloo import (
    WITHOUT_FUTURE,
    BlockingCall,
    Connections,
    DirectWait,
    error_of,
    is_timeout,
    ranks_needed_by,
)
from helpers.ranks.wire.session import BOTH, IN, OUT, Listeners, Session, link_seconds
from helpers.ranks.wire.work import (
    MessageWork,
    PendingOp,
    Signature,
    WireError,
    WireWork,
    event_of,
    message_signature,
)

Issue = Callable[[], dist.Work]  # makes the call on the real group


class WireGroup:
    """One process group as the wire sees it. name: torch's. ranks: the global rank of each member. rank: this one's."""

    def __init__(self, session: Session, listeners: Listeners, name: str, ranks: tuple[int, ...], rank: int):
        self.session, self.listeners, self.name, self.ranks, self.rank = session, listeners, name, ranks, rank
        self.size = len(ranks)
        self.board: Board | None = None  # None where ranks do not compare operations
        self.channels: Channels | None = None  # the part of the board for sends and receives
        self.order = threading.RLock()  # operations are posted and issued in one order, from whatever thread
        self.sequence = self.num_messages = 0  # the numbers of the next collective and of the next message
        # For the emulated link: number of a collective -> its work, once gloo has completed it, and the number of the
        # collective that the link takes next.
        self.turn, self.delivered, self.next_delivery = threading.Lock(), {}, 0
        self.received: Counter = Counter()  # tag -> completed receives
        self.connections: Connections  # set once the real group is made
        self.issued: set[WireWork] = set()  # collectives that gloo has not completed yet, as far as this rank knows
        self.is_native = session.config.inner == "nccl"  # then the caller gets the real group's works as they are
        self.is_released = False  # whether the group was destroyed
        self.batch = None  # with NCCL's rules: the messages of the batch_isend_irecv that runs now, one operation
        session.counters[name] = 0

    def use_board(self, path: str) -> None:
        """Compare operations from now on, in this file."""
        self.board = Board(path, self.rank)
        self.channels = Channels(self.board)

    # -- the two kinds of operation --------------------------------------------------------------------------------
    def collective(self, sig: Signature, issue: Issue, outputs: list, opts=None, inputs: Sequence = ()) -> dist.Work:
        """Take a collective through all steps.

        outputs: the tensors that it fills. opts: torch's options object. inputs: () where they are the outputs.
        """
        site = call_site()
        with self.order:
            self.session.begin(sig.name)
            work = WireWork(sig, self.sequence, site, outputs, self._complete)
            if self.session.rules is not None:
                self.session.rules.collective(self, work, list(inputs), opts)
            self._run(work, lambda: self._post(work), issue)
        return self._follow(work)

    def message(self, name: str, tensors: list, peer: int | None, tag: int, issue: Issue, given: tuple) -> dist.Work:
        """A send to, or a receive from, `peer` (None: from any source).

        given: () or, where the rules of another backend are in force, the script's tag and the memory order of the
        tensor. `tag` is then 0, because such a backend knows no tags.
        """
        site, sig = call_site(), message_signature(name, tensors[0])
        with self.order:
            self.session.begin(name)
            work = MessageWork(sig, self.num_messages, site, tensors, self._complete, peer=peer, tag=tag)
            self.num_messages += 1
            if given:
                self.session.rules.message(self, work, *given)
            self._run(work, lambda: self._announce(work), issue)
        return self._follow(work)

    def blocking(self, sig: Signature, call: Callable[[], object]) -> None:
        """A collective that gloo offers only as a blocking call: made in a thread, so that it can be ended."""
        self.collective(sig, lambda: BlockingCall(call), []).wait()

    def _run(self, work: WireWork, post: Callable[[], None], issue: Issue) -> None:
        """Post and issue an operation. Where one of them raises, the operation counts as never made."""
        self.session.add(self, work)
        try:
            post()
            try:
                work.inner = issue()
                if not isinstance(work, MessageWork):
                    self.issued.add(work)
            except BaseException:
                self._withdraw(work)
                raise
        except BaseException:
            self.session.remove(work)
            raise
        self.session.count_until_awaited(work)

    # -- post and compare ------------------------------------------------------------------------------------------
    def _post(self, work: WireWork) -> None:
        """Write a collective on the board and compare it. Raises WireError where another rank posted something else."""
        if self.board is not None:
            self._wait_for_room(work.sequence)
            sig = work.signature
            entry = BoardEntry(sig.what, sig.give, sig.take, work.site, work.started)
            self.board.post(work.sequence, entry)
        self.sequence += 1
        self.session.counters[self.name] = self.sequence
        if self.board is not None and self.board.first_disagreement(work.sequence, entry) is not None:
            self._refuse(*explain_mismatch(self.board, work.sequence))

    def _wait_for_room(self, sequence: int) -> None:
        """Wait until every rank has called all but the last RECORDS operations, which are all that the board can store.

        Without that, this rank would overwrite what a slower rank has not read yet.
        """
        while sequence >= RECORDS and min(map(self.board.count, range(self.size))) <= sequence - RECORDS:
            time.sleep(0.001)
            self.look()
            self.session.raise_if_broken()

    def _announce(self, work: MessageWork) -> None:
        """Write a message on the board and compare it. A send also takes its place on the emulated link."""
        link = self.session.link
        if link is not None and not work.receives:
            joining = link.between(self.ranks, self.rank, work.peer)  # inside a node or across nodes
            duration = link_seconds(joining, "send", work.signature.num_bytes, self.size)
            work.link_start = link.reserve(OUT, work.started, duration, joining)
        if self.channels is None:
            return
        # A receive from any source has no peer, and is posted under this rank's own number.
        key = work.receives, self.rank if work.peer is None else work.peer, work.tag
        work.number = self.channels.post(*key, work.signature.what, work.site, work.link_start)
        other = None if work.peer is None else self.channels.counterpart(*key, work.number)
        if other is not None and other.what != work.signature.what:
            me, peer = self.ranks[self.rank], self.ranks[work.peer]
            message = describe_message_mismatch(work.signature.name, me, peer, work.signature.what, work.site, other)
            self._refuse(message, None)  # None: with two sides, nobody can tell which one is wrong

    def _refuse(self, message: Words, culprit: int | None) -> None:
        """Tell every rank through the board, and raise, before anything is issued."""
        self.board.flag(message, culprit)
        self.look()
        raise WireError(message, kind="mismatch", culprit=culprit)

    def _withdraw(self, work: WireWork) -> None:
        """The operation was posted, but the real group would not take it: nobody should wait for it."""
        if isinstance(work, MessageWork):
            return  # only the records of collectives can be withdrawn, and only collectives take the link in order
        if self.board is not None:
            self.board.withdraw(work.sequence)
        if self.session.link is not None:
            self._deliver_in_order(work)

    # -- follow and complete ---------------------------------------------------------------------------------------
    def _follow(self, work: WireWork) -> dist.Work:
        """Have `_arrived` called once gloo is done, whether it offers a future or not."""
        if self.is_native:  # NCCL's work, which the caller gets, knows best when it is complete
            self.issued.discard(work)
            work.finish()
            return work.inner
        if work.signature.name in WITHOUT_FUTURE or isinstance(work.inner, BlockingCall):
            arrived = partial(self._arrived, work)
            work.direct = DirectWait(work.inner.wait, arrived, self.session.waiters, self.cut)
            is_from_any_source = isinstance(work, MessageWork) and work.peer is None
            if is_from_any_source:  # nothing can end such a wait, so only a spare thread may be caught in it
                work.direct.hand_over()
        else:
            work.inner.get_future().add_done_callback(lambda future: self._arrived(work, error_of(future)))
        return work

    def _arrived(self, work: WireWork, error: BaseException | None) -> None:
        """gloo has completed the operation, or failed. The emulated link may hold its completion back."""
        self.issued.discard(work)
        if error is None and work.signature.runs_later:  # on a GPU the call has returned before the data arrived
            torch.accelerator.synchronize()
        if error is not None or self.session.link is None:
            work.finish(error and self._explain(work, error))
        elif isinstance(work, MessageWork):
            self.session.link.hold(self._arrival_time(work), work.finish)
        else:
            self._deliver_in_order(work)

    def _deliver_in_order(self, work: WireWork) -> None:
        """Collectives take the link in the order of their posting; gloo's two threads complete them in any order."""
        with self.turn:
            self.delivered[work.sequence] = work
            while self.next_delivery in self.delivered:
                work = self.delivered.pop(self.next_delivery)
                self.next_delivery += 1
                if work.inner is not None:  # None: it was posted but could not be issued
                    self.session.link.hold(self._arrival_time(work), work.finish)

    def _explain(self, work: WireWork, error: BaseException) -> BaseException:
        """gloo's error, or for a timeout one that names the ranks that never came."""
        missing = self.missing(work) if is_timeout(error) else []
        if not missing:
            return error
        what = {"what": work.signature.what, "place": describe(work.site), "error": error}
        who = {"ranks": rank_names(missing), "count": len(missing), "seconds": time.perf_counter() - work.started}
        return RuntimeError(words("timed_out", **what, **who))

    def _arrival_time(self, work: WireWork) -> float:
        """When the emulated link would have delivered it, in seconds of time.perf_counter.

        Each rank's end of the link has two lanes: a send takes OUT, a receive IN, and a collective BOTH.
        `reserve` returns when the link is free to begin. A send has reserved its place when it was posted.
        """
        link, sig = self.session.link, work.signature
        joining = link.between(self.ranks, self.rank, getattr(work, "peer", None))
        duration = link_seconds(joining, sig.name, sig.num_bytes, self.size)
        ready = self._ready(work)
        if isinstance(work, MessageWork):
            return duration + (link.reserve(IN, ready, duration, joining) if work.receives else ready)
        return duration + link.reserve(BOTH, ready, duration, joining)

    def _ready(self, work: WireWork) -> float:
        """When the last rank had posted it, since no link can begin earlier."""
        if self.board is None:  # nothing is known of the other ranks
            return max(work.started, getattr(work, "link_start", 0.0))
        if isinstance(work, MessageWork):
            peer = work.source_rank()
            other = self.channels.counterpart(work.receives, peer, work.tag, work.number)
            return max(work.link_start, other.time if other else 0.0)
        entries = (self.board.read(r, work.sequence) for r in range(self.size))
        return max(entry.time for entry in entries if entry is not None)

    def _complete(self, work: WireWork) -> None:
        """Called once by each work when it is complete or has failed."""
        self.session.remove(work)
        if work.error is not None:
            return
        if isinstance(work, MessageWork) and self.channels is not None and work.peer is not None:
            self.channels.forget(work.receives, work.peer, work.tag, work.number)
        if isinstance(work, MessageWork) and work.receives:
            self.received[work.tag] += 1
        if self.listeners.callbacks:  # who get a CommEvent, the log's record, for each operation
            self.listeners.tell(event_of(work, self.name, self.ranks, self.rank))

    # -- who is missing --------------------------------------------------------------------------------------------
    def describe(self, work: WireWork, now: float) -> PendingOp:
        """What the notebook's process is told about a pending operation. now: seconds of time.perf_counter."""
        peer = work.peer if isinstance(work, MessageWork) else None
        return PendingOp(
            group=self.name,
            group_ranks=self.ranks,
            sequence=work.sequence,
            op=work.signature.name,
            site=work.site,
            missing=tuple(self.missing(work)),
            age=now - work.started,
            peer=None if peer is None else self.ranks[peer],
            any_of=isinstance(work, MessageWork) and peer is None,
            waiting=work.num_waiting > 0,
        )

    def missing(self, work: WireWork) -> list[int]:
        """Global ranks that have not posted what `work` needs from them."""
        find = self._missing_message if isinstance(work, MessageWork) else self._missing_collective
        return [] if self.board is None else [self.ranks[r] for r in find(work)]

    def _missing_collective(self, work: WireWork) -> list[int]:
        """Group ranks without whose call gloo cannot complete it, and which have not posted it."""
        needed = ranks_needed_by(work.signature.name, work.signature.root, self.rank, self.size)
        return [r for r in needed if not self.board.has_posted(r, work.sequence)]

    def _missing_message(self, work: MessageWork) -> list[int]:
        """Group ranks that have not posted the other side; for a receive from any source, any one of them may do so."""
        if work.peer is None:
            others = [r for r in range(self.size) if r != self.rank]
            return [] if self.channels.anyone_sent(work.tag, self.received[work.tag]) else others
        return [] if self.channels.is_matched(work.receives, work.peer, work.tag, work.number) else [work.peer]

    # -- life ------------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Read the board, and end every pending operation of this process if something has gone wrong on any rank."""
        if self.board is None or self.is_released:
            return
        self.channels.drain()
        # A sentence on what went wrong: a rank refused an operation that differs, or its real group took none.
        message, culprit = self.board.flagged() or self._withdrawn() or (None, None)
        if message and self.session.give_up(message, kind="mismatch", culprit=culprit):
            self.session.fail(message, kind="mismatch", culprit=culprit)

    def _withdrawn(self) -> tuple[Words, int] | None:
        """A sentence, and the rank, where a rank's real group would not take an operation that this rank has issued.

        Nobody can complete such an operation. None where there is none.
        """
        for work in self._pending_works():
            if work.inner is not None and not isinstance(work, MessageWork):
                for rank in range(self.size):
                    entry = self.board.read(rank, work.sequence)
                    if entry is not None and entry.withdrawn:
                        who = self.ranks[rank]
                        return words["withdrawn"].format(rank=who, what=entry.what, place=describe(entry.site)), who
        return None

    def cut(self) -> None:
        """Close its connections. Nothing more can be sent in it, so its world is over, too."""
        self.session.give_up(words["cut"])
        self.connections.close()

    def release(self) -> None:
        """Destroy the group: its pending operations fail. Its board is unmapped with the last reference to it."""
        self.is_released, works = True, self._pending_works()
        for work in works:
            work.finish(WireError(words["destroyed"]))
        if works:
            self.connections.close()  # a thread that waits inside gloo then returns

    def _pending_works(self) -> list[WireWork]:
        return [work for group, work in self.session.works() if group is self]
