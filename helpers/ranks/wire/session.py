"""Holds what all groups of one process share: settings, injected fault, pending operations, link and listeners.

The "wire" is a ProcessGroup around gloo's (wire.py), through which every operation of torch.distributed passes. A
`WireConfig` has its settings. A `Session` belongs to one world. A "world" is all process groups that a process makes
between one install() or reset() and the next; after a failure the ranks begin a new one. A `WireWork` is an operation
in flight. An `EmulatedLink` delays each operation as a network would; group.py finds the link that joins the ranks of
an operation with `between`, its duration with `link_seconds`, the time at which it can start with `reserve`, and
completes it at the right moment with `hold`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import signal
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from helpers.learner.words import Words
from helpers.quantities.costs import seconds
from helpers.ranks.wire.gloo import Waiters
from helpers.ranks.wire.rules import RankRules
from helpers.ranks.wire.work import WireError, WireWork
from helpers.records import CommEvent
from helpers.specs import Link, Nodes

BOTH, OUT, IN = "both", "out", "in"  # lanes of an emulated link


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that is injected into one rank on purpose.

    Its operations start `seconds` late (only those named `op`, such as "all_reduce", if it is given), and after
    `drop_after` operations the rank kills itself.
    """

    seconds: float = 0.0
    op: str | None = None
    drop_after: int | None = None

    @classmethod
    def of(cls, slow: Mapping, rank: int) -> Fault | None:
        """The fault of `rank` in {rank: seconds} or {rank: {"seconds": …, "op": …, "drop_after": …}}."""
        for key, value in slow.items():
            if not str(key).isdecimal() or (isinstance(value, Mapping) and set(value) - set(cls.__dataclass_fields__)):
                raise ValueError(
                    f"slow is {slow!r}, but it maps a rank to seconds, for example {{1: 0.2}}, "
                    "or to a dict of 'seconds', 'op' and 'drop_after'"
                )
        given = {int(key): value for key, value in slow.items()}.get(rank)
        return cls(**given) if isinstance(given, Mapping) else None if given is None else cls(seconds=given)

    def apply(self, name: str, num_before: int) -> None:
        """Called before each operation: delay it, or kill the rank.

        name: of the operation, such as "all_reduce". num_before: how many operations this rank has issued before it.
        """
        if self.drop_after is not None and num_before >= self.drop_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.op in (None, name):
            time.sleep(self.seconds)


@dataclass(frozen=True, kw_only=True)
class WireConfig:
    """How the wire of one process behaves."""

    rank: int  # the rank of this process
    world_size: int
    # A folder that all ranks share, a new one for each world. In it lie the boards, which are files in which ranks
    # compare operations, and the journals of NCCL's rules.
    board_dir: str
    link: Link | Nodes | None = None  # the network to emulate, or the links inside and between nodes; CPU only
    check: bool = True  # whether ranks compare each operation before they issue it
    slow: dict | None = None  # a straggler on purpose: {rank: seconds}, or {rank: {…}} with the fields of Fault
    inner: str = "gloo"  # the backend that does the work: "gloo" or "nccl"
    rules: str = "gloo"  # "nccl": keep a journal, from which one can say what NCCL would have done (nccl/)
    eager: bool | None = None  # whether init_process_group got a device_id, or None where that is not known
    # Where ranks have cards (simulated GPUs), tensors on the CPU are "refused", as where "nccl" is the only backend; or
    # go "apart" through a second group, as with the backend "cpu:gloo,cuda:nccl"; or "together" with the cards'.
    cpu: str = "together"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"WireConfig: rank {self.rank} is not below world_size {self.world_size}; ranks start at 0"
            )
        for name, value in (("inner", self.inner), ("rules", self.rules)):
            if value not in ("gloo", "nccl"):
                raise ValueError(f"WireConfig: {name} is {value!r}, but it must be 'gloo' or 'nccl'")
        if (self.check or self.rules == "nccl") and not os.path.isdir(self.board_dir):
            raise ValueError(
                f"WireConfig: board_dir {self.board_dir!r} is no folder; make it, or pass check=False, rules='gloo'"
            )
        if self.link is not None and self.inner == "nccl":
            raise ValueError("WireConfig: a link is emulated on the CPU only; use inner='gloo', or link=None")
        Fault.of(self.slow or {}, self.rank)  # raises ValueError for a wrong `slow`


def link_seconds(link: Link, name: str, num_bytes: int, num_ranks: int) -> float:
    """Seconds that operation `name` with `num_bytes` bytes of payload takes on `link` among `num_ranks` ranks.

    The payload is what one rank passes in: one part for an all_gather, and the full tensor for the other collectives.
    The formulas, in helpers/quantities/costs.py, are for the default algorithm of each operation. A gather or a
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
    """One rank's end of a link of a given latency and bandwidth: it calls back when a message would have arrived.

    gloo moves the data at the speed of this machine. Every operation is then held back until a link that carries one
    message at a time would have delivered it. A message starts when all its ranks have issued it and this rank's end of
    the link is free. It takes latency + bytes / bandwidth (the alpha-beta model). An end has two lanes: sends occupy
    the outgoing one, receives the incoming one, and collectives both. This works for CPU tensors only. Points in time
    are seconds of time.perf_counter.

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


class Session:
    """The state that all groups of one world share. It knows no group; the groups and the World (wire.py) hold it.

    waiters: threads that wait inside gloo.
    """

    def __init__(self, config: WireConfig, waiters: Waiters):
        self.config, self.waiters = config, waiters
        self.counters: dict[str, int] = {}  # name of a group -> collectives that this rank has issued
        self.pending: dict[int, tuple[object, WireWork]] = {}  # id of a work -> the group that issued it, and the work
        self.link = EmulatedLink(config.link) if config.link else None
        self.fault = Fault.of(config.slow or {}, config.rank)
        self.broken: WireError | None = None  # why nothing more may be issued in this world
        self.num_operations = 0  # that this rank has issued
        self.num_not_awaited = 0  # operations for whose end the program has not waited
        self.rules: RankRules | None = None  # the rules of another backend, while they are in force
        self.busy = threading.Event()  # set while something is pending

    # -- one operation ---------------------------------------------------------------------------------------------
    def begin(self, name: str) -> None:
        """Before an operation is posted: refuse it in a broken world, and apply the fault."""
        self.raise_if_broken()
        if self.fault is not None:
            self.fault.apply(name, self.num_operations)
        self.num_operations += 1

    def raise_if_broken(self) -> None:
        """Raise a new WireError like the one that broke this world."""
        if self.broken is not None:
            raise WireError(self.broken.words, kind=self.broken.kind, culprit=self.broken.culprit)

    def add(self, group: object, work: WireWork) -> None:
        self.pending[id(work)] = group, work
        if not self.busy.is_set():
            self.busy.set()

    def remove(self, work: WireWork) -> None:
        self.pending.pop(id(work), None)

    def count_until_awaited(self, work: WireWork) -> None:
        """The operation has been issued; it counts as not awaited until the program waits for it."""
        self.num_not_awaited += 1
        work.on_awaited = self._count_awaited

    def _count_awaited(self) -> None:
        self.num_not_awaited -= 1

    def works(self) -> list[tuple[object, WireWork]]:
        return list(self.pending.values())

    # -- its end ---------------------------------------------------------------------------------------------------
    def give_up(self, message: Words | str, *, kind: str = "aborted", culprit: int | None = None) -> bool:
        """Mark this world as broken, so that nothing more is issued. Only the first reason counts.

        kind, culprit: see WireError. Returns whether this is the first reason.
        """
        if self.broken is not None:
            return False
        self.broken = WireError(message, kind=kind, culprit=culprit)
        return True

    def fail(self, message: Words | str, *, kind: str = "aborted", culprit: int | None = None) -> None:
        """End every pending operation with an error."""
        for _, work in self.works():
            work.finish(WireError(message, kind=kind, culprit=culprit))
            if work.direct is not None:  # an operation for which a thread may wait inside gloo
                work.direct.end()


class Listeners:
    """Callbacks that are given a CommEvent, a record for a log, for every completed operation of this process."""

    def __init__(self):
        self.callbacks: list[Callable[[CommEvent], None]] = []

    def add(self, callback: Callable[[CommEvent], None]) -> Callable[[], None]:
        """Add a callback. Returns a function that removes it."""
        self.callbacks = [*self.callbacks, callback]

        def remove() -> None:
            self.callbacks = [one for one in self.callbacks if one is not callback]

        return remove

    def tell(self, event: CommEvent) -> None:
        """Call every callback with this event."""
        for callback in self.callbacks:
            try:
                callback(event)
            except Exception:  # in this thread of gloo's, an error would be lost, and the operation did complete
                traceback.print_exc()
