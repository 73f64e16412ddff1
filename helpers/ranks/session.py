"""Holds what all groups of one process share: settings, injected fault, pending operations, link and listeners."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helpers.learner.words import Words
from helpers.ranks.gloo import Waiters
from helpers.ranks.link import EmulatedLink
from helpers.ranks.rules import RankRules
from helpers.ranks.work import WireError, WireWork
from helpers.records import CommEvent
from helpers.specs import Link, Nodes


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
        """Before an operation called `name`, the rank's operation number `num_before`."""
        if self.drop_after is not None and num_before >= self.drop_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.op in (None, name):
            time.sleep(self.seconds)


@dataclass(frozen=True, kw_only=True)
class WireConfig:
    """How the wire of one process behaves.

    rank, world_size: of this process in the world. board_dir: an existing folder that all ranks share (see
    `limits.shared_folder`); a new one for each world. link: emulate this link (CPU only). check: compare operations.
    slow: a straggler on purpose, {rank: seconds}, or {rank: {…}} (see Fault). inner: "gloo" or "nccl".
    rules: "nccl" keeps a journal in board_dir (nccl/). eager: whether init_process_group got a device_id, None where
    nobody says. cpu: where ranks have cards, tensors on the CPU are "refused", as where "nccl" is the only backend; go
    "apart", as by "cpu:gloo,cuda:nccl"; or "together" with the cards'.
    """

    rank: int
    world_size: int
    board_dir: str
    link: Link | Nodes | None = None
    check: bool = True
    slow: dict | None = None
    inner: str = "gloo"
    rules: str = "gloo"
    eager: bool | None = None
    cpu: str = "together"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"WireConfig: rank {self.rank} is not below world_size {self.world_size}; ranks start at 0"
            )
        if self.inner not in ("gloo", "nccl"):
            raise ValueError(f"WireConfig: inner is {self.inner!r}, but it must be 'gloo' or 'nccl'")
        if self.rules not in ("gloo", "nccl"):
            raise ValueError(f"WireConfig: rules is {self.rules!r}, but it must be 'gloo' or 'nccl'")
        if (self.check or self.rules == "nccl") and not os.path.isdir(self.board_dir):
            raise ValueError(
                f"WireConfig: board_dir {self.board_dir!r} is no folder; make it, or pass check=False, rules='gloo'"
            )
        if self.link is not None and self.inner == "nccl":
            raise ValueError("WireConfig: a link is emulated on the CPU only; use inner='gloo', or link=None")
        Fault.of(self.slow or {}, self.rank)


class Session:
    """The state that all groups of one world share. It knows no group; the groups and the World (wire.py) hold it."""

    def __init__(self, config: WireConfig, waiters: Waiters):
        self.config, self.waiters = config, waiters
        self.counters: dict[str, int] = {}
        self.pending: dict[int, tuple[object, WireWork]] = {}  # each with the group that issued it
        self.link = EmulatedLink(config.link) if config.link else None
        self.fault = Fault.of(config.slow or {}, config.rank)
        self.broken: WireError | None = None
        self.num_operations = 0
        self.rules: RankRules | None = None  # of another backend, while they are in force
        self.busy = threading.Event()  # while something is pending

    # -- one operation ---------------------------------------------------------------------------------------------
    def begin(self, name: str) -> None:
        """Before an operation is posted: refuse it in a broken world, and apply the fault."""
        self.raise_if_broken()
        if self.fault is not None:
            self.fault.apply(name, self.num_operations)
        self.num_operations += 1

    def raise_if_broken(self) -> None:
        if self.broken is not None:
            raise WireError(self.broken.words, kind=self.broken.kind, culprit=self.broken.culprit)

    def add(self, group: object, work: WireWork) -> None:
        self.pending[id(work)] = group, work
        if not self.busy.is_set():
            self.busy.set()

    def remove(self, work: WireWork) -> None:
        self.pending.pop(id(work), None)

    def works(self) -> list[tuple[object, WireWork]]:
        return list(self.pending.values())

    # -- its end ---------------------------------------------------------------------------------------------------
    def give_up(self, message: Words | str, *, kind: str = "aborted", culprit: int | None = None) -> bool:
        """Nothing more may be issued. Only the first reason counts; returns whether this is the first."""
        if self.broken is not None:
            return False
        self.broken = WireError(message, kind=kind, culprit=culprit)
        return True

    def fail(self, message: Words | str, *, kind: str = "aborted", culprit: int | None = None) -> None:
        """End every pending operation with an error."""
        for _, work in self.works():
            work.finish(WireError(message, kind=kind, culprit=culprit))
            if work.direct is not None:
                work.direct.end()


class Listeners:
    """Callbacks that are given a CommEvent for every completed operation of this process."""

    def __init__(self):
        self.callbacks: list[Callable[[CommEvent], None]] = []

    def add(self, callback: Callable[[CommEvent], None]) -> Callable[[], None]:
        self.callbacks = [*self.callbacks, callback]

        def remove() -> None:
            self.callbacks = [one for one in self.callbacks if one is not callback]

        return remove

    def tell(self, event: CommEvent) -> None:
        for callback in self.callbacks:
            try:
                callback(event)
            except Exception:  # this is gloo's thread: nobody would see it, and the operation did complete
                traceback.print_exc()
