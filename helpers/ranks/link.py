"""The dial: a laptop's loopback behaves like a link of a given latency and bandwidth.

Every message is held back until a link that carries one message at a time would have delivered it. A message starts
when both (or all) sides have posted it and this rank's link is free; it takes its alpha-beta time. Sends occupy the
outgoing lane, receives the incoming one, collectives both. Only for CPU tensors.

Source of the factors: ring algorithms, Thakur, Rabenseifner & Gropp 2005; a broadcast as a pipelined chain,
a gather and a scatter as the root's lane sees them. n ranks, P bytes handed in, alpha seconds, B bytes per second.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from helpers.specs import Link

BOTH, OUT, IN = "both", "out", "in"


def link_seconds(link: Link, name: str, num_bytes: int, num_ranks: int) -> float:
    """Seconds that operation `name` with `num_bytes` bytes of payload takes on `link` among `num_ranks` ranks.

    The payload of all_gather is one rank's part; of every other collective, the whole tensor handed in.
    """
    n, others, share = num_ranks, num_ranks - 1, 1 - 1 / num_ranks
    steps, factor = {
        "all_reduce": (2 * others, 2 * share),
        "all_gather": (others, others),
        "reduce_scatter": (others, share),
        "all_to_all": (others, share),
        "broadcast": (others, 1),
        "reduce": (others, 1),
        "gather": (others, others),
        "scatter": (others, others),
        "barrier": ((n - 1).bit_length(), 0),
        "send": (1, 1),
        "recv": (1, 1),
    }[name]
    return 0.0 if n == 1 else steps * link.latency + factor * num_bytes / link.bandwidth


class EmulatedLink:
    """One rank's end of the link: knows when each lane is free, and calls back when a message would have arrived."""

    def __init__(self, link: Link):
        self.link = link
        self.free = {OUT: 0.0, IN: 0.0}
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.changed = threading.Condition()
        threading.Thread(target=self._deliver, daemon=True, name="emulated link").start()

    def reserve(self, lane: str, ready: float, seconds: float) -> float:
        """Occupy `lane` for `seconds`, from `ready` or from when it is free. The time of the message's start."""
        lanes = (OUT, IN) if lane == BOTH else (lane,)
        with self.changed:
            start = max(ready, *(self.free[one] for one in lanes))
            self.free.update(dict.fromkeys(lanes, start + seconds))
        return start

    def hold(self, due: float, deliver: Callable[[], None]) -> None:
        """Call `deliver` at `due` (seconds, time.perf_counter)."""
        with self.changed:
            heapq.heappush(self.queue, (due, next(self.order), deliver))
            self.changed.notify()

    def _deliver(self) -> None:
        while True:
            with self.changed:
                while not self.queue or self.queue[0][0] > time.perf_counter():
                    self.changed.wait(self.queue[0][0] - time.perf_counter() if self.queue else None)
                deliver = heapq.heappop(self.queue)[2]
            deliver()
