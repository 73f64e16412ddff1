"""Emulates a network link of a given latency and bandwidth, or the links inside and between nodes, on one machine.

gloo moves the data at the speed of this machine. Every operation is then held back until a link that carries one
message at a time would have delivered it. A message starts when all its ranks have issued it and this rank's end of the
link is free. It takes latency + bytes / bandwidth (the alpha-beta model). An end has two lanes: sends occupy the
outgoing one, receives the incoming one, and collectives both. This works for CPU tensors only.

group.py calls `between` to find the link that joins the ranks of an operation, `link_seconds` for its duration,
`reserve` for the time at which it can start, and `hold` to complete it at the right moment. Points in time are seconds
of time.perf_counter.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from helpers.quantities.costs import seconds
from helpers.specs import Link, Nodes

BOTH, OUT, IN = "both", "out", "in"  # lanes


def link_seconds(link: Link, name: str, num_bytes: int, num_ranks: int) -> float:
    """Seconds that operation `name` with `num_bytes` bytes of payload takes on `link` among `num_ranks` ranks.

    The payload is what one rank passes in: one part for an all_gather, and the full tensor for the other collectives.
    The formulas are those of helpers/quantities/costs.py for the default algorithm of each operation. A gather or a
    scatter takes as long as its root is busy.
    """
    if num_ranks == 1:
        return 0.0
    if name in ("send", "recv"):
        return link.seconds(num_bytes)
    if name in ("gather", "scatter"):
        return (num_ranks - 1) * link.seconds(num_bytes)
    # The formulas of an all_gather take the bytes of its result.
    return seconds(name, num_bytes * (num_ranks if name == "all_gather" else 1), num_ranks, link)


def link_from_dict(fields: dict | None) -> Link | Nodes | None:
    """The Link or Nodes of which `dataclasses.asdict` made this dictionary."""
    if fields is None or "nodes" not in fields:
        return Link(**fields) if fields else None
    return Nodes(nodes=fields["nodes"], inside=Link(**fields["inside"]), across=Link(**fields["across"]))


class EmulatedLink:
    """One rank's end of the link: it knows when each lane is free, and calls back when a message would have arrived.

    For Nodes it has two ends with lanes of their own, as a GPU has NVLink beside its network card.
    """

    def __init__(self, link: Link | Nodes):
        self.link = link
        self.free: dict[tuple[Link | None, str], float] = defaultdict(float)  # (link, lane) -> when it is free
        self.queue: list[tuple[float, int, Callable[[], None]]] = []  # a heap of (due, order, callback)
        self.order = itertools.count()  # so that callbacks that are due at the same time keep their order
        self.changed, self.closed = threading.Condition(), False
        threading.Thread(target=self._deliver, daemon=True, name="emulated link").start()

    def between(self, ranks: Sequence[int], rank: int, peer: int | None) -> Link:
        """The link that joins all these global ranks, or, with a peer, `ranks[rank]` and `ranks[peer]`."""
        return self.link.between(ranks if peer is None else (ranks[rank], ranks[peer]))

    def reserve(self, lane: str, ready: float, duration: float, end: Link | None = None) -> float:
        """Occupy a lane for `duration` seconds, from `ready` on or from when it is free. Returns when that begins.

        end: which link it is, where there is one inside a node and one across nodes.
        """
        lanes = [(end, one) for one in ((OUT, IN) if lane == BOTH else (lane,))]
        with self.changed:
            start = max(ready, *(self.free[one] for one in lanes))
            self.free.update(dict.fromkeys(lanes, start + duration))
        return start

    def hold(self, due: float, deliver: Callable[[], None]) -> None:
        """Call `deliver` at `due` (seconds, time.perf_counter)."""
        with self.changed:
            heapq.heappush(self.queue, (due, next(self.order), deliver))
            self.changed.notify()

    def close(self) -> None:
        """Deliver nothing more."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def _deliver(self) -> None:
        """Run by a thread: call each callback when it is due."""
        while True:
            with self.changed:
                while not self.closed and self._seconds_left() > 0:
                    self.changed.wait(self._seconds_left() if self.queue else None)
                if self.closed:
                    return
                deliver = heapq.heappop(self.queue)[2]
            deliver()

    def _seconds_left(self) -> float:
        return self.queue[0][0] - time.perf_counter() if self.queue else math.inf
