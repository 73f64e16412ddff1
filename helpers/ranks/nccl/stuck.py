"""Where nothing moves: who waits for whom, and the circle or the missing rank that it comes down to. No torch.

Nodes are operations that are not done, and hosts. What waits for a host that may still post is not stuck for certain;
it is where a circle closes, or where the host has ended, or is blocked itself. A task on live ranks ends on NCCL when
its hosts have come to their end, and what they wait for is done: gloo has done it, so its other side was there.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from helpers.ranks.nccl.queues import Host, Play, Posted

Node = Posted | Host


class Knot:
    """What keeps a play from moving. `core`: the nodes of a circle, or a chain whose last node is a host that ended."""

    def __init__(self, play: Play, final: bool):
        self.play, self.final = play, final
        self.owed = [node for host in play.hosts.values() for node in _owed(host)]
        self.edges = self._edges()
        self.hopeless = self._hopeless()
        self.core = self._core()

    # -- who waits for whom ----------------------------------------------------------------------------------------
    def _edges(self) -> dict[Node, list[Node]]:
        edges: dict[Node, list[Node]] = {host: self._of_host(host) for host in self.play.hosts.values()}
        for queue in list(self.play.queues.values()):
            for place, posted in enumerate(queue):
                edges[posted] = list(posted.deps) if not place else [queue[0]]
                if not place and posted.runs:
                    edges[posted] = self._of_collective(posted) if posted.record.is_collective else self._peers(posted)
        return edges

    def _of_host(self, host: Host) -> list[Node]:
        if host.meets is not None:
            here = self.play.arrived[host.meets]
            return [self.play.hosts[m] for m in self.play.members(host.meets) if m not in here and m in self.play.hosts]
        return list(host.waits_for) or [one for one in [self._stands_in(host)] if one is not None]

    def _stands_in(self, host: Host) -> Posted | None:
        """In a world that stands still for good: the operation that this host waits for without an end."""
        last = host.records[-1] if host.records and self.final else None
        return host.posted.get(last.number) if last is not None and last.kind in ("wait", "post") else None

    def _of_collective(self, posted: Posted) -> list[Node]:
        running = self.play.running[posted.key]
        same = {rank for rank, other in running.items() if other.record.name == posted.record.name}
        others = (m for m in self.play.members(posted.key) if m not in same and m in self.play.hosts)
        return [self._head_or_host(m, posted.key) for m in others]

    def _head_or_host(self, rank: int, key: tuple) -> Node:
        queue = self.play.queues[rank, key]
        return queue[0] if queue else self.play.hosts[rank]

    def _peers(self, posted: Posted) -> list[Node]:
        found = []
        for message in posted.open:
            if message.peer in self.play.hosts:
                queue = self.play.queues[message.peer, posted.key]
                answers = (one for one in queue if not one.runs and _answers(one, posted.rank, message.sends))
                found.append(next(answers, self.play.hosts[message.peer]))
        return found

    # -- what can never move ---------------------------------------------------------------------------------------
    def has_ended(self, host: Host) -> bool:
        """Whether it will certainly post nothing more. A task that is over counts where another host cannot end it."""
        last = host.records[-1] if host.records else None
        if host.is_blocked or last is None:
            return False
        if last.kind == "idle":
            return self.final or bool(self.owed)
        return last.kind == "end" and last.number == 1

    def _hopeless(self) -> set[Node]:
        """All that waits, less what some day may move."""
        free = [host for host in self.play.hosts.values() if not self.edges[host] and not self.has_ended(host)]
        waiting: defaultdict[Node, list[Node]] = defaultdict(list)
        left = {node: len(blockers) for node, blockers in self.edges.items()}
        for node, blockers in self.edges.items():
            for one in blockers:
                waiting[one].append(node)
        free += [node for node, number in left.items() if not number and isinstance(node, Posted)]
        hopeless = set(self.edges) - set(free)
        while free:
            for node in waiting[free.pop()]:
                left[node] -= 1
                if not left[node]:
                    hopeless.discard(node)
                    free.append(node)
        return hopeless

    def _core(self) -> list[Node]:
        starts = self.owed or [queue[0] for queue in self.play.queues.values() if queue]
        walks = [self._walk(node) for node in starts if node in self.hopeless]
        return min(walks, key=len, default=[])

    def _walk(self, node: Node) -> list[Node]:
        """From a node to what it waits for, until a circle is closed or a host has ended."""
        seen: dict[Node, int] = {}
        while node not in seen:
            seen[node] = len(seen)
            onward = [one for one in self.edges[node] if one in self.hopeless]
            if not onward:
                return list(seen)[-3:]
            node = min(onward, key=lambda one: seen.get(one, len(seen)))
        return list(seen)[seen[node] :]

    @property
    def is_circle(self) -> bool:
        return bool(self.core) and bool(self.edges[self.core[-1]])


def _answers(other: Posted, rank: int, sends: bool) -> bool:
    return any(one.peer == rank and one.sends != sends for one in other.open)


def _owed(host: Host) -> list[Node]:
    """What has to come before a host's task is over: itself, if it is blocked, or what its streams wait for."""
    is_over = host.records and host.records[-1].kind in ("idle", "end")
    return [host] if host.is_blocked else [*dict.fromkeys(chain(*host.frontier.values()))] if is_over else []
