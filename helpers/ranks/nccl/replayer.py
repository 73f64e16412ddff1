"""Replays the journals of all ranks by NCCL's rules until everything is done or nothing moves, and finds deadlocks.

The ranks ran their program on gloo, and each wrote a journal: its calls, in order (journal.py). A replay asks whether
the same calls would have come to an end on NCCL. It needs no torch and no clock.

The words, per rank: the "host" is the rank's Python program. It "posts" operations, which are collectives, messages (a
send or a receive) or batches of messages, and goes on without waiting for them. A "stream" is a CUDA stream, on which
operations wait for each other. A "communicator" is NCCL's object for a set of ranks. Each communicator of a rank has a
queue.

The rules: nothing is buffered. An operation runs when it is at the head of its queue and the work that its stream waits
for is done. It is done when all its partners run theirs. The host goes on after every call, except where it waits for a
stream, for a barrier, or for the first use of a communicator, since all its ranks must make it together. With lazy
initialisation (init_process_group without device_id), the unbatched messages of a pair of ranks have a communicator of
their own. With eager initialisation a group has one communicator for everything.

A `Deadlock` describes what remains where nothing moves. Its nodes are hosts and the operations that are not done. A
node that waits for a host which may still post something is not certainly stuck. A node is certainly stuck where a
circle closes, or where the host that it waits for has ended or is blocked itself.

A task on live ranks, which go on to the next task, counts as ended when each host has come to its end and the
operations that its streams wait for are done. gloo has completed all of these. So if one of them is not done in the
replay, the only reason is NCCL's stricter order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from helpers.ranks.nccl.journal import MessageRecord, Record


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Which rules a replay follows."""

    eager: bool = False  # eager initialisation: the group's communicator serves everything
    buffered: bool = False  # a send is done without its receive, as a small message that fits into NCCL's buffers
    # A rank's collectives run one after the other, whatever their groups. Where that ends well, all ranks issue their
    # collectives in an order that agrees, so nothing depends on how the device schedules them.
    in_turn: bool = False


class PostedOperation:
    """An operation that a host has posted.

    key: the communicator in which it is queued, see `Replay.key_of`. deps: the operations that its stream waits for and
    that are not done. waiters: the operations that have this one among their deps. open: its messages that have not met
    their other side. runs: whether it has started on the device.
    """

    __slots__ = ("deps", "done", "key", "open", "rank", "record", "runs", "waiters")

    def __init__(self, rank: int, record: Record, key: tuple, deps: set[PostedOperation]):
        self.rank, self.record, self.key, self.deps = rank, record, key, deps
        self.open: list[MessageRecord] = list(record.messages)
        self.runs = self.done = False
        self.waiters: list[PostedOperation] = []


@dataclass(eq=False)  # two hosts are never equal, and each can be a key of a dict
class Host:
    """The host program of one rank, at record number `at` of its journal."""

    rank: int
    records: Sequence[Record]
    at: int = 0
    waits_for: set[PostedOperation] = field(default_factory=set)  # before the host goes on
    meets: tuple | None = None  # the communicator for whose first use it waits, until the other ranks come
    # Stream -> the operations that must be done before anything that is put on this stream from now on.
    frontier: defaultdict = field(default_factory=lambda: defaultdict(set))
    events: dict[int, set[PostedOperation]] = field(default_factory=dict)  # number of a CUDA event -> what it waits for
    posted: dict[int, PostedOperation] = field(default_factory=dict)  # number -> operation that is not done
    last_collective: PostedOperation | None = None

    @property
    def is_blocked(self) -> bool:
        return bool(self.waits_for) or self.meets is not None

    @property
    def record(self) -> Record:
        """The record at which the host is."""
        return self.records[min(self.at, len(self.records) - 1)]


class Replay:
    """A replay of `programs` (rank -> records), as far as they go. The constructor runs it.

    made: keys of the communicators that exist already. mismatched: for each send that met a receive with a different
    tag, form (dtype and size) or strides: the sender's operation and message, and the receiver's.
    """

    def __init__(self, programs: Mapping[int, Sequence[Record]], rules: ReplayOptions, made: frozenset = frozenset()):
        self.rules, self.made = rules, set(made)
        self.is_from_the_start = not made  # or else earlier records have been forgotten
        self.hosts = {rank: Host(rank, records) for rank, records in programs.items()}
        # (rank, communicator) -> its operations that are not done, in order
        self.queues: defaultdict[tuple, deque[PostedOperation]] = defaultdict(deque)
        # communicator -> rank -> the collective that it runs and that waits for the other ranks
        self.running: defaultdict[tuple, dict[int, PostedOperation]] = defaultdict(dict)
        # (communicator, sending rank, receiving rank) -> the sends and the receives that run and have not met
        self.lanes: defaultdict[tuple, tuple[deque, deque]] = defaultdict(lambda: (deque(), deque()))
        self.arrived: defaultdict[tuple, set[int]] = defaultdict(set)  # communicator -> ranks that came to make it
        self.mismatched: list[tuple[PostedOperation, MessageRecord, PostedOperation, MessageRecord]] = []
        # Ranks whose hosts may go on, and operations that may run. Where both are empty, nothing moves any more.
        self.awake, self.ready = deque(self.hosts), deque()
        while self.awake or self.ready:
            if self.awake:
                self._advance(self.hosts[self.awake.popleft()])
            else:
                self._run(self.ready.popleft())

    @property
    def is_stuck(self) -> bool:
        """Whether an operation is not done, or a host is blocked."""
        return any(self.queues.values()) or any(host.is_blocked for host in self.hosts.values())

    # -- the host --------------------------------------------------------------------------------------------------
    def _advance(self, host: Host) -> None:
        """Let a host go on until it must wait or its records end."""
        while not host.waits_for and host.at < len(host.records):
            record = host.records[host.at]
            if record.kind == "post" and not self._meet(host, record):
                return
            host.at += 1
            self._step(host, record)

    def _step(self, host: Host, record: Record) -> None:
        """What one record of the journal does (journal.py lists the kinds of record)."""
        frontier = host.frontier[record.stream]
        match record.kind:
            case "post":
                self._post(host, record)
            # work.wait() lets the stream wait, and not the host, except for a barrier.
            case "wait" if (posted := host.posted.get(record.number)) is not None and not posted.done:
                frontier.add(posted)
                if posted.record.name == "barrier":
                    self._hold(host, frontier)
            case "sync" if record.stream == "all":  # torch.cuda.synchronize() waits for the whole device
                self._hold(host, {one for one in host.posted.values() if not one.done})
            case "sync":  # the host waits for one stream
                self._hold(host, frontier)
            case "record":  # event.record(stream): the event stands for all that the stream has to do by now
                host.events[record.number] = set(frontier)
            case "wait_event":  # stream.wait_event(event)
                frontier |= host.events.get(record.number, set())
            case "wait_for_event":  # event.synchronize()
                self._hold(host, host.events.get(record.number, set()))

    def _hold(self, host: Host, posted: set[PostedOperation]) -> None:
        """Let the host wait until these operations are done."""
        host.waits_for = {one for one in posted if not one.done}

    def key_of(self, rank: int, record: Record) -> tuple:
        """The communicator of an operation.

        It is (group's name, group's ranks), or for the own communicator of a pair (name, ranks, one rank, other rank).
        """
        if record.messages and not record.is_batch and not self.rules.eager:
            return (*record.group, *sorted((rank, record.messages[0].peer)))
        return record.group

    @staticmethod
    def members(key: tuple) -> tuple[int, ...]:
        """The ranks of a communicator."""
        return key[2:] or key[1]  # those of a pair, or else those of the group

    def _meet(self, host: Host, record: Record) -> bool:
        """Whether the communicator of this operation exists. Its first use makes it, once all its ranks have come."""
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
        """Put an operation into its queue."""
        deps = {one for one in host.frontier[record.stream] if not one.done}
        last = host.last_collective
        if self.rules.in_turn and record.is_collective and last is not None and not last.done:
            deps.add(last)
        posted = PostedOperation(host.rank, record, self.key_of(host.rank, record), deps)
        for one in deps:
            one.waiters.append(posted)
        host.posted[record.number] = posted
        if record.is_collective:
            host.last_collective = posted
        if record.in_line:  # async_op=False: what follows on the stream waits for it
            host.frontier[record.stream] = {posted}
            if record.name == "barrier":  # for which the host waits, too
                host.waits_for = {posted}
        self.queues[host.rank, posted.key].append(posted)
        self.ready.append(posted)

    # -- the device ------------------------------------------------------------------------------------------------
    def _run(self, posted: PostedOperation) -> None:
        """Start an operation if it may run now, and complete whatever that completes."""
        queue = self.queues[posted.rank, posted.key]
        if posted.runs or posted.deps or not queue or queue[0] is not posted:
            return
        posted.runs = True
        if not posted.open:  # an operation without messages is a collective
            self._collective(posted)
        for message in list(posted.open):
            ends = (posted.rank, message.peer) if message.sends else (message.peer, posted.rank)
            sends, receives = self.lanes[posted.key, *ends]
            (sends if message.sends else receives).append((posted, message))
            if self.rules.buffered and message.sends:
                self._complete_message(posted, message)
            self._match(sends, receives)

    def _collective(self, posted: PostedOperation) -> None:
        """A rank runs a collective. It is done once all ranks of the communicator run one of the same name."""
        running = self.running[posted.key]
        running[posted.rank] = posted
        same = [one for one in running.values() if one.record.name == posted.record.name]
        if len(same) == len(self.members(posted.key)):
            self.running[posted.key] = {}
            for one in same:
                self._done(one)

    def _match(self, sends: deque, receives: deque) -> None:
        """NCCL pairs sends and receives of two ranks by their order alone: it compares neither tags nor sizes."""
        while sends and receives:
            (sender, sent), (receiver, received) = sends.popleft(), receives.popleft()
            if (sent.tag, sent.form, sent.strides) != (received.tag, received.form, received.strides):
                self.mismatched.append((sender, sent, receiver, received))
            if not self.rules.buffered:  # a buffered send was complete as soon as it ran
                self._complete_message(sender, sent)
            self._complete_message(receiver, received)

    def _complete_message(self, posted: PostedOperation, message: MessageRecord) -> None:
        """Complete a message of an operation, and with the last one the operation."""
        posted.open.remove(message)
        if not posted.open:
            self._done(posted)

    def _done(self, posted: PostedOperation) -> None:
        """Complete an operation, and wake the operations and the host that may go on now."""
        posted.done = True
        host, queue = self.hosts[posted.rank], self.queues[posted.rank, posted.key]
        queue.popleft()
        host.posted.pop(posted.record.number, None)
        for frontier in host.frontier.values():
            frontier.discard(posted)
        for one in posted.waiters:
            one.deps.discard(posted)
            self.ready.append(one)
        if queue:
            self.ready.append(queue[0])
        host.waits_for.discard(posted)
        self.awake.append(posted.rank)


Node = PostedOperation | Host  # what can wait, or be waited for


class Deadlock:
    """What keeps a replay from moving on.

    final: whether the ranks will certainly post nothing more. awaited: what must be done before the tasks are over.
    edges: each node with the nodes for which it waits. never_done: all nodes that will certainly never be done.
    cycle: nodes that wait for each other in a circle, or a chain whose last node is a host that has ended; [] where
    nothing awaited is certainly stuck.
    """

    def __init__(self, replay: Replay, final: bool):
        self.replay, self.final = replay, final
        self.awaited = [node for host in replay.hosts.values() for node in _awaited_by(host)]
        self.edges = self._edges()
        self.never_done = self._find_never_done()
        self.cycle = self._find_cycle()

    # -- who waits for whom ----------------------------------------------------------------------------------------
    def _edges(self) -> dict[Node, list[Node]]:
        """Each host and each operation that is not done, with what it waits for."""
        edges: dict[Node, list[Node]] = {host: self._of_host(host) for host in self.replay.hosts.values()}
        for queue in list(self.replay.queues.values()):
            for posted in queue:
                if posted is not queue[0]:
                    edges[posted] = [queue[0]]
                elif not posted.runs:
                    edges[posted] = list(posted.deps)
                else:
                    edges[posted] = self._of_collective(posted) if posted.record.is_collective else self._peers(posted)
        return edges

    def _of_host(self, host: Host) -> list[Node]:
        """What a host waits for: hosts that must make a communicator with it, or operations."""
        hosts = self.replay.hosts
        if host.meets is not None:
            absent = set(self.replay.members(host.meets)) - self.replay.arrived[host.meets]
            return [hosts[m] for m in self.replay.members(host.meets) if m in absent and m in hosts]
        if host.waits_for:
            return list(host.waits_for)
        stuck = self._operation_of(host)
        return [] if stuck is None else [stuck]

    def _operation_of(self, host: Host) -> PostedOperation | None:
        """The operation inside whose call the host hangs; None where there is none, or while more records may come.

        A call that has not returned is the last record of its journal.
        """
        last = host.records[-1] if host.records and self.final else None
        return host.posted.get(last.number) if last is not None and last.kind in ("wait", "post") else None

    def _of_collective(self, posted: PostedOperation) -> list[Node]:
        """What a running collective waits for: the ranks that do not run one of the same name."""
        running = self.replay.running[posted.key]
        same = {rank for rank, other in running.items() if other.record.name == posted.record.name}
        others = (m for m in self.replay.members(posted.key) if m not in same and m in self.replay.hosts)
        return [self._head_or_host(m, posted.key) for m in others]

    def _head_or_host(self, rank: int, key: tuple) -> Node:
        """What keeps a rank from joining: the operation at the head of its queue, or its host, which posted nothing."""
        queue = self.replay.queues[rank, key]
        return queue[0] if queue else self.replay.hosts[rank]

    def _peers(self, posted: PostedOperation) -> list[Node]:
        """What running messages wait for: the other side, where it is queued, or the host that has not posted it."""
        found = []
        for message in posted.open:
            if message.peer in self.replay.hosts:
                queue = self.replay.queues[message.peer, posted.key]
                answers = (one for one in queue if not one.runs and _answers(one, posted.rank, message.sends))
                found.append(next(answers, self.replay.hosts[message.peer]))
        return found

    # -- what can never move ---------------------------------------------------------------------------------------
    def has_ended(self, host: Host) -> bool:
        """Whether a host will certainly post nothing more.

        Its script has ended, or its task is over ("idle") while another host still waits, so no later task can come.
        """
        last = host.records[-1] if host.records else None
        if host.is_blocked or last is None:
            return False
        if last.kind == "idle":
            return self.final or bool(self.awaited)
        return last.kind == "end" and last.number == 1  # 1: the script ended without an error

    def _find_never_done(self) -> set[Node]:
        """All nodes that wait, without those that something may still move.

        A node becomes free once all the nodes for which it waits are free, starting from the hosts that may go on.
        """
        free = [host for host in self.replay.hosts.values() if not self.edges[host] and not self.has_ended(host)]
        waiting: defaultdict[Node, list[Node]] = defaultdict(list)  # node -> the nodes that wait for it
        left = {node: len(blockers) for node, blockers in self.edges.items()}  # how many blockers are not free yet
        for node, blockers in self.edges.items():
            for one in blockers:
                waiting[one].append(node)
        # An operation that waits for nothing is free as well.
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
        """The shortest circle or chain that can be reached from what is awaited."""
        starts = self.awaited or [queue[0] for queue in self.replay.queues.values() if queue]
        paths = [self._path_from(node) for node in starts if node in self.never_done]
        return min(paths, key=len, default=[])

    def _path_from(self, node: Node) -> list[Node]:
        """The path from a node along what it waits for, until it closes a circle or reaches a host that has ended.

        Returns the circle alone, or the last three nodes before the end, which are enough for a sentence.
        """
        seen: dict[Node, int] = {}  # node -> its place in the path
        while node not in seen:
            seen[node] = len(seen)
            onward = [one for one in self.edges[node] if one in self.never_done]
            if not onward:
                return list(seen)[-3:]
            node = min(onward, key=lambda one: seen.get(one, len(seen)))  # a node of the path closes a circle at once
        return list(seen)[seen[node] :]

    @property
    def is_circle(self) -> bool:
        """Whether `cycle` is a circle and not a chain, whose last node waits for nothing."""
        return bool(self.cycle) and bool(self.edges[self.cycle[-1]])


def _answers(other: PostedOperation, rank: int, sends: bool) -> bool:
    """Whether an operation has the other side of a message of `rank`, which sends or receives."""
    return any(one.peer == rank and one.sends != sends for one in other.open)


def _awaited_by(host: Host) -> list[Node]:
    """What must move before a host's task is over: the host itself if it is blocked, or what its streams wait for."""
    if host.is_blocked:
        return [host]
    is_over = host.records and host.records[-1].kind in ("idle", "end")
    return [*dict.fromkeys(chain(*host.frontier.values()))] if is_over else []
