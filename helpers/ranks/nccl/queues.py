"""The play: every rank's records by NCCL's rules, until all is done or nothing moves. No torch, no clock.

A queue per rank and communicator, nothing buffered: an operation runs at the head of its queue, when what its stream
waits for is done, and is done when all its partners run theirs. The host goes on after every call, except where it
waits for a stream, for a barrier, or for the first use of a communicator that all its ranks make together.
Initialised lazily, a pair's unbatched messages have a communicator of their own; eagerly, a group has one for all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from helpers.ranks.nccl.records import Message, Record


@dataclass(frozen=True, kw_only=True)
class Rules:
    """eager: the group's communicator serves all. buffered: a send needs no receive. in_turn: a rank's collectives run
    one after the other, whatever their groups: where that ends well, all ranks keep one order."""

    eager: bool = False
    buffered: bool = False
    in_turn: bool = False


class Posted:
    """An operation in its queue."""

    __slots__ = ("deps", "done", "key", "open", "rank", "record", "runs", "waiters")

    def __init__(self, rank: int, record: Record, key: tuple, deps: set[Posted]):
        self.rank, self.record, self.key, self.deps = rank, record, key, deps
        self.open: list[Message] = list(record.messages)  # what has not met its other side
        self.runs = self.done = False
        self.waiters: list[Posted] = []


@dataclass(eq=False)
class Host:
    rank: int
    records: Sequence[Record]
    at: int = 0
    waits_for: set[Posted] = field(default_factory=set)
    meets: tuple | None = None  # the communicator that it makes with others
    frontier: defaultdict = field(default_factory=lambda: defaultdict(set))  # stream -> what it waits for
    events: dict[int, set[Posted]] = field(default_factory=dict)
    posted: dict[int, Posted] = field(default_factory=dict)
    last_collective: Posted | None = None

    @property
    def is_blocked(self) -> bool:
        return bool(self.waits_for) or self.meets is not None

    @property
    def record(self) -> Record:
        """Where it stands."""
        return self.records[min(self.at, len(self.records) - 1)]


class Play:
    """Plays `programs` (rank -> records) as far as they go. `made`: communicators that were there before."""

    def __init__(self, programs: Mapping[int, Sequence[Record]], rules: Rules, made: frozenset = frozenset()):
        self.rules, self.made = rules, set(made)
        self.hosts = {rank: Host(rank, records) for rank, records in programs.items()}
        self.queues: defaultdict[tuple, deque[Posted]] = defaultdict(deque)  # (rank, communicator) -> operations
        self.running: defaultdict[tuple, dict[int, Posted]] = defaultdict(dict)  # communicator -> rank -> collective
        self.lanes: defaultdict[tuple, tuple[deque, deque]] = defaultdict(lambda: (deque(), deque()))
        self.arrived: defaultdict[tuple, set[int]] = defaultdict(set)
        self.odd: list[tuple[Posted, Message, Posted, Message]] = []  # a send and its receive, which do not agree
        self.awake, self.ready = deque(self.hosts), deque()
        while self.awake or self.ready:
            if self.awake:
                self._advance(self.hosts[self.awake.popleft()])
            else:
                self._run(self.ready.popleft())

    @property
    def is_stuck(self) -> bool:
        return any(self.queues.values()) or any(host.is_blocked for host in self.hosts.values())

    # -- the host --------------------------------------------------------------------------------------------------
    def _advance(self, host: Host) -> None:
        while not host.waits_for and host.at < len(host.records):
            record = host.records[host.at]
            if record.kind == "post" and not self._meet(host, record):
                return
            host.at += 1
            self._step(host, record)

    def _step(self, host: Host, record: Record) -> None:
        stream = host.frontier[record.stream]
        match record.kind:
            case "post":
                self._post(host, record)
            case "wait" if (posted := host.posted.get(record.number)) is not None and not posted.done:
                stream.add(posted)
                if posted.record.name == "barrier":
                    self._hold(host, stream)
            case "sync" if record.stream == "all":
                self._hold(host, {one for one in host.posted.values() if not one.done})
            case "sync":
                self._hold(host, stream)
            case "record":
                host.events[record.number] = set(stream)
            case "wait_event":
                stream |= host.events.get(record.number, set())
            case "wait_for_event":
                self._hold(host, host.events.get(record.number, set()))

    def _hold(self, host: Host, posted: set[Posted]) -> None:
        host.waits_for = {one for one in posted if not one.done}

    def key_of(self, rank: int, record: Record) -> tuple:
        if record.messages and not record.is_batch and not self.rules.eager:
            return (*record.group, *sorted((rank, record.messages[0].peer)))
        return record.group

    @staticmethod
    def members(key: tuple) -> tuple[int, ...]:
        return key[2:] or key[1]

    def _meet(self, host: Host, record: Record) -> bool:
        """The first use of a communicator makes it: the host waits until all its ranks have come."""
        key = self.key_of(host.rank, record)
        if self.rules.eager or key in self.made:
            host.meets = None
            return True
        self.arrived[key].add(host.rank)
        if self.arrived[key] >= set(self.members(key)):
            self.made.add(key)
            host.meets = None
            self.awake.extend(rank for rank in self.members(key) if rank != host.rank)
            return True
        host.meets = key
        return False

    def _post(self, host: Host, record: Record) -> None:
        stream = host.frontier[record.stream]
        deps = {one for one in stream if not one.done}
        last = host.last_collective
        if self.rules.in_turn and record.is_collective and last is not None and not last.done:
            deps.add(last)
        posted = Posted(host.rank, record, self.key_of(host.rank, record), deps)
        for one in deps:
            one.waiters.append(posted)
        host.posted[record.number] = posted
        if record.is_collective:
            host.last_collective = posted
        if record.in_line:
            host.frontier[record.stream] = {posted}
            if record.name == "barrier":
                host.waits_for = {posted}
        self.queues[host.rank, posted.key].append(posted)
        self.ready.append(posted)

    # -- the device ------------------------------------------------------------------------------------------------
    def _run(self, posted: Posted) -> None:
        queue = self.queues[posted.rank, posted.key]
        if posted.runs or posted.deps or not queue or queue[0] is not posted:
            return
        posted.runs = True
        if not posted.open:
            self._collective(posted)
        for message in list(posted.open):
            ends = (posted.rank, message.peer) if message.sends else (message.peer, posted.rank)
            lane = self.lanes[posted.key, *ends]
            lane[not message.sends].append((posted, message))
            if self.rules.buffered and message.sends:
                self._over(posted, message)
            self._match(*lane)

    def _collective(self, posted: Posted) -> None:
        running = self.running[posted.key]
        running[posted.rank] = posted
        same = [one for one in running.values() if one.record.name == posted.record.name]
        if len(same) == len(self.members(posted.key)):
            self.running[posted.key] = {}
            for one in same:
                self._done(one)

    def _match(self, sends: deque, receives: deque) -> None:
        while sends and receives:
            (sender, sent), (receiver, received) = sends.popleft(), receives.popleft()
            if (sent.tag, sent.form, sent.strides) != (received.tag, received.form, received.strides):
                self.odd.append((sender, sent, receiver, received))
            if not self.rules.buffered:
                self._over(sender, sent)
            self._over(receiver, received)

    def _over(self, posted: Posted, message: Message) -> None:
        posted.open.remove(message)
        if not posted.open:
            self._done(posted)

    def _done(self, posted: Posted) -> None:
        posted.done = True
        host, queue = self.hosts[posted.rank], self.queues[posted.rank, posted.key]
        queue.popleft()
        host.posted.pop(posted.record.number, None)
        for stream in host.frontier.values():
            stream.discard(posted)
        for one in posted.waiters:
            one.deps.discard(posted)
            self.ready.append(one)
        if queue:
            self.ready.append(queue[0])
        host.waits_for.discard(posted)
        self.awake.append(posted.rank)
