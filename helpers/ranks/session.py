"""What the wire of one process keeps: its groups, what is pending, who listens, the link, and the watching thread."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.ranks.gloo import shut_down
from helpers.ranks.link import EmulatedLink
from helpers.ranks.waiting import Waiters
from helpers.ranks.work import PendingOp, WireError, WireWork
from helpers.records import CommEvent
from helpers.specs import Link

if TYPE_CHECKING:
    from helpers.ranks.group import WireGroup

TICK = 0.05  # seconds between two looks at the board


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong on one rank, on purpose: its operations start `seconds` late (only those named `op`, such as
    "all_reduce", if it is given); after `drop_after` operations the rank kills itself."""

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
    """

    rank: int
    world_size: int
    board_dir: str
    link: Link | None = None
    check: bool = True
    slow: dict | None = None
    inner: str = "gloo"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"WireConfig: rank {self.rank} is not below world_size {self.world_size}; ranks start at 0"
            )
        if self.inner not in ("gloo", "nccl"):
            raise ValueError(f"WireConfig: inner is {self.inner!r}, but it must be 'gloo' or 'nccl'")
        if self.check and not os.path.isdir(self.board_dir):
            raise ValueError(f"WireConfig: board_dir {self.board_dir!r} is no folder; make it, or pass check=False")
        if self.link is not None and self.inner == "nccl":
            raise ValueError("WireConfig: a link is emulated on the CPU only; use inner='gloo', or link=None")
        Fault.of(self.slow or {}, self.rank)


class Session:
    def __init__(self, config: WireConfig, waiters: Waiters):
        self.config, self.waiters = config, waiters
        self.groups: list[WireGroup] = []
        self.counters: dict[str, int] = {}
        self.pending: dict[int, tuple[WireGroup, WireWork]] = {}
        self.link = EmulatedLink(config.link) if config.link else None
        self.fault = Fault.of(config.slow or {}, config.rank)
        self.broken: WireError | None = None
        self.num_operations = 0
        self.closed, self.busy = False, threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="wire watch").start()

    # -- one operation ---------------------------------------------------------------------------------------------
    def begin(self, name: str) -> None:
        """Before an operation is posted: refuse it in a broken world, and apply the fault."""
        self.raise_if_broken()
        if self.fault is not None:
            self.fault.apply(name, self.num_operations)
        self.num_operations += 1

    def raise_if_broken(self) -> None:
        if self.broken is not None:
            raise WireError(self.broken.message, kind=self.broken.kind, culprit=self.broken.culprit)

    def add(self, group: WireGroup, work: WireWork) -> None:
        self.pending[id(work)] = group, work
        if not self.busy.is_set():
            self.busy.set()

    def remove(self, work: WireWork) -> None:
        self.pending.pop(id(work), None)

    def works(self) -> list[tuple[WireGroup, WireWork]]:
        return list(self.pending.values())

    # -- the watch -------------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Every 50 ms, as long as something is pending: follow what nobody waits for; end all if a rank says so."""
        while not self.closed:
            self.busy.wait()
            time.sleep(TICK)
            if not self.pending:
                self.busy.clear()
                if self.pending:
                    self.busy.set()
                continue
            self._follow_the_unfollowed()
            self.look()

    def _follow_the_unfollowed(self) -> None:
        """Nobody has waited for these yet, and perhaps nobody will."""
        for _, work in self.works():
            if work.direct is not None and time.perf_counter() - work.started > TICK:
                work.direct.hand_over()

    def look(self) -> None:
        for group in list(self.groups):
            found = group.look()
            if found is not None and self.broken is None:
                self.broken = WireError(found[0], kind="mismatch", culprit=found[1])
                self.fail(found[0], kind="mismatch", culprit=found[1])

    def fail(self, message: str, *, kind: str = "aborted", culprit: int | None = None) -> None:
        for _, work in self.works():
            work.finish(WireError(message, kind=kind, culprit=culprit))
            if work.direct is not None:
                work.direct.end()

    def cut(self) -> None:
        """End every connection of this world: nothing more can be sent in it."""
        if self.broken is None:
            self.broken = WireError("the connections of this world were cut; it has to be made anew")
        for group in list(self.groups):
            shut_down(group.sockets)

    def close(self) -> None:
        """End this session: what is pending fails, the boards are let go."""
        self.closed = True
        self.busy.set()
        self.fail("the process group was replaced by a new one")
        for group in list(self.groups):
            group.release()
        self.groups.clear()
        if self.link is not None:
            self.link.close()

    def describe_pending(self) -> Iterator[PendingOp]:
        now = time.perf_counter()
        for group, work in self.works():
            if not work.done:
                yield group.describe(work, now)


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
