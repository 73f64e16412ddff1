"""Replays the journals of all ranks by NCCL's rules until everything is done or nothing moves, and finds deadlocks.

Each rank has a queue for each communicator, and nothing is buffered. An operation runs when it is at the head of its
queue and the work that its stream waits for is done. It is done when all its partners run theirs. The host goes on
after every call, except where it waits for a stream, for a barrier, or for the first use of a communicator, which all
its ranks make together. With lazy initialisation, the unbatched messages of a pair have a communicator of their own;
with eager initialisation a group has one communicator for everything.

A `Deadlock` is what remains where nothing moves. Its nodes are operations that are not done, and hosts. What waits for
a host that may still post something is not certainly stuck. It is where a circle closes, or where the host has ended or
is blocked itself. A task on live ranks ends on NCCL when its hosts have come to their end and what they wait for is
done: gloo has done it, so its other side was there. The file imports no torch and uses no clock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from helpers.ranks.nccl.journal import MessageRecord, Record


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How a replay differs from NCCL's own rules.

    eager: the group's communicator serves everything. buffered: a send needs no receive. in_turn: a rank's collectives
    run one after the other, whatever their groups; where that ends well, all ranks keep one order.
    """

    eager: bool = False
    buffered: bool = False
    in_turn: bool = False


class PostedOperation:
    """An operation in its queue. deps: what its stream waits for. open: messages that have not met their other side."""

    __slots__ = ("deps", "done", "key", "open", "rank", "record", "runs", "waiters")

    def __init__(self, rank: int, record: Record, key: tuple, deps: set[PostedOperation]):
        self.rank, self.record, self.key, self.deps = rank, record, key, deps
        self.open: list[MessageRecord] = list(record.messages)  # what has not met its other side
        self.runs = self.done = False
        self.waiters: list[PostedOperation] = []


@dataclass(eq=False)
class Host:
    """The host program of one rank, at record number `at`. meets: the communicator that it makes with other ranks."""

    rank: int
    records: Sequence[Record]
    at: int = 0
    waits_for: set[PostedOperation] = field(default_factory=set)
    meets: tuple | None = None  # the communicator that it makes with others
    frontier: defaultdict = field(default_factory=lambda: defaultdict(set))  # stream -> what it waits for
    events: dict[int, set[PostedOperation]] = field(default_factory=dict)
    posted: dict[int, PostedOperation] = field(default_factory=dict)
    last_collective: PostedOperation | None = None

    @property
    def is_blocked(self) -> bool:
        return bool(self.waits_for) or self.meets is not None

    @property
    def record(self) -> Record:
        """The record at which the host is."""
        return self.records[min(self.at, len(self.records) - 1)]


class Replay:
    """A replay of `programs` (rank -> records), as far as they go. made: communicators that existed before.

    mismatched: each send and the receive that it met, with a different tag, form or strides.
    """

    def __init__(self, programs: Mapping[int, Sequence[Record]], rules: ReplayOptions, made: frozenset = frozenset()):
        self.rules, self.made = rules, set(made)
        self.hosts = {rank: Host(rank, records) for rank, records in programs.items()}
        # (rank, communicator) -> operations; communicator -> rank -> the collective that it runs
        self.queues: defaultdict[tuple, deque[PostedOperation]] = defaultdict(deque)
        self.running: defaultdict[tuple, dict[int, PostedOperation]] = defaultdict(dict)
        self.lanes: defaultdict[tuple, tuple[deque, deque]] = defaultdict(lambda: (deque(), deque()))
        self.arrived: defaultdict[tuple, set[int]] = defaultdict(set)
        self.mismatched: list[tuple[PostedOperation, MessageRecord, PostedOperation, MessageRecord]] = []
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

    def _hold(self, host: Host, posted: set[PostedOperation]) -> None:
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
        posted = PostedOperation(host.rank, record, self.key_of(host.rank, record), deps)
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
    def _run(self, posted: PostedOperation) -> None:
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

    def _collective(self, posted: PostedOperation) -> None:
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
                self.mismatched.append((sender, sent, receiver, received))
            if not self.rules.buffered:
                self._over(sender, sent)
            self._over(receiver, received)

    def _over(self, posted: PostedOperation, message: MessageRecord) -> None:
        posted.open.remove(message)
        if not posted.open:
            self._done(posted)

    def _done(self, posted: PostedOperation) -> None:
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


Node = PostedOperation | Host


class Deadlock:
    """What keeps a replay from moving on.

    cycle: operations and hosts that wait for each other in a circle, or a chain whose last node is a host that has
    ended. never_done: everything that will certainly never be done. final: the ranks will certainly post nothing more.
    """

    def __init__(self, replay: Replay, final: bool):
        self.replay, self.final = replay, final
        self.awaited = [node for host in replay.hosts.values() for node in _awaited_by(host)]
        self.edges = self._edges()
        self.never_done = self._find_never_done()
        self.cycle = self._find_cycle()

    # -- who waits for whom ----------------------------------------------------------------------------------------
    def _edges(self) -> dict[Node, list[Node]]:
        edges: dict[Node, list[Node]] = {host: self._of_host(host) for host in self.replay.hosts.values()}
        for queue in list(self.replay.queues.values()):
            for position, posted in enumerate(queue):
                edges[posted] = list(posted.deps) if not position else [queue[0]]
                if not position and posted.runs:
                    edges[posted] = self._of_collective(posted) if posted.record.is_collective else self._peers(posted)
        return edges

    def _of_host(self, host: Host) -> list[Node]:
        if host.meets is not None:
            here = self.replay.arrived[host.meets]
            return [
                self.replay.hosts[m]
                for m in self.replay.members(host.meets)
                if m not in here and m in self.replay.hosts
            ]
        return list(host.waits_for) or [one for one in [self._operation_of(host)] if one is not None]

    def _operation_of(self, host: Host) -> PostedOperation | None:
        """In a world that hangs forever: the operation for which this host waits without end."""
        last = host.records[-1] if host.records and self.final else None
        return host.posted.get(last.number) if last is not None and last.kind in ("wait", "post") else None

    def _of_collective(self, posted: PostedOperation) -> list[Node]:
        running = self.replay.running[posted.key]
        same = {rank for rank, other in running.items() if other.record.name == posted.record.name}
        others = (m for m in self.replay.members(posted.key) if m not in same and m in self.replay.hosts)
        return [self._head_or_host(m, posted.key) for m in others]

    def _head_or_host(self, rank: int, key: tuple) -> Node:
        queue = self.replay.queues[rank, key]
        return queue[0] if queue else self.replay.hosts[rank]

    def _peers(self, posted: PostedOperation) -> list[Node]:
        found = []
        for message in posted.open:
            if message.peer in self.replay.hosts:
                queue = self.replay.queues[message.peer, posted.key]
                answers = (one for one in queue if not one.runs and _answers(one, posted.rank, message.sends))
                found.append(next(answers, self.replay.hosts[message.peer]))
        return found

    # -- what can never move ---------------------------------------------------------------------------------------
    def has_ended(self, host: Host) -> bool:
        """Whether it will certainly post nothing more. A task that is over counts where another host cannot end it."""
        last = host.records[-1] if host.records else None
        if host.is_blocked or last is None:
            return False
        if last.kind == "idle":
            return self.final or bool(self.awaited)
        return last.kind == "end" and last.number == 1

    def _find_never_done(self) -> set[Node]:
        """All nodes that wait, without those that something may still move."""
        free = [host for host in self.replay.hosts.values() if not self.edges[host] and not self.has_ended(host)]
        waiting: defaultdict[Node, list[Node]] = defaultdict(list)
        left = {node: len(blockers) for node, blockers in self.edges.items()}
        for node, blockers in self.edges.items():
            for one in blockers:
                waiting[one].append(node)
        free += [node for node, number in left.items() if not number and isinstance(node, PostedOperation)]
        never_done = set(self.edges) - set(free)
        while free:
            for node in waiting[free.pop()]:
                left[node] -= 1
                if not left[node]:
                    never_done.discard(node)
                    free.append(node)
        return never_done

    def _find_cycle(self) -> list[Node]:
        starts = self.awaited or [queue[0] for queue in self.replay.queues.values() if queue]
        paths = [self._path_from(node) for node in starts if node in self.never_done]
        return min(paths, key=len, default=[])

    def _path_from(self, node: Node) -> list[Node]:
        """The path from a node along what it waits for, until it closes a circle or reaches a host that has ended."""
        seen: dict[Node, int] = {}
        while node not in seen:
            seen[node] = len(seen)
            onward = [one for one in self.edges[node] if one in self.never_done]
            if not onward:
                return list(seen)[-3:]
            node = min(onward, key=lambda one: seen.get(one, len(seen)))
        return list(seen)[seen[node] :]

    @property
    def is_circle(self) -> bool:
        return bool(self.cycle) and bool(self.edges[self.cycle[-1]])


def _answers(other: PostedOperation, rank: int, sends: bool) -> bool:
    return any(one.peer == rank and one.sends != sends for one in other.open)


def _awaited_by(host: Host) -> list[Node]:
    """What must come before a host's task is over: the host itself if it is blocked, or what its streams wait for."""
    is_over = host.records and host.records[-1].kind in ("idle", "end")
    return [host] if host.is_blocked else [*dict.fromkeys(chain(*host.frontier.values()))] if is_over else []
