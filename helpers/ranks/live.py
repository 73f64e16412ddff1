"""Provides Ranks: functions and cells on N live processes, from a notebook, a script, or under torchrun.

A `Ranks` starts a pool of processes (pool.py) that have joined one process group, and sends it functions (`run`) and
notebook cells (`cell`, which the %%ranks magic calls). The processes stay, so a cell finds the variables of earlier
cells. Ranks that hold no variables are stopped when nobody has used them for IDLE_LIMIT seconds, and start again with
the next run. Under torchrun each process is a rank already; then `Ranks` only calls the function there (inplace.py).
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from helpers.quantities.units import format_bytes
from helpers.ranks.board.errors import RankError
from helpers.ranks.board.interrupts import interrupts_in_waits_only
from helpers.ranks.board.sites import CELL_PREFIX, rank_names
from helpers.ranks.processes.limits import (
    card_bytes,
    check_num_ranks,
    choose_device,
    choose_rules,
    memory_warning,
    proportional_bytes,
)
from helpers.ranks.processes.messages import pack_call, print_by_rank, unpack
from helpers.ranks.processes.pool import Pool, PoolSettings
from helpers.ranks.processes.spec import launched

if TYPE_CHECKING:
    from helpers.ranks.inplace import LaunchedRanks
    from helpers.specs import Link, Nodes

IDLE_LIMIT = 600.0  # seconds after which ranks that hold no variables are stopped
DEFAULT_LIMIT = 300.0  # seconds for one run

_latest: weakref.ref[Ranks] | None = None  # the Ranks that were made last, on which %%ranks cells run


class Ranks:
    """`num_ranks` live processes that have met in one process group.

    num_ranks: 1 or more; under torchrun the launcher decides.
    device: "auto" (NCCL if there is a GPU for each rank, otherwise gloo on CPU), "cpu", "cuda", or "card", a practice
        card for each rank, which is a simulated GPU (see helpers/devices).
    memory: what a practice card holds, "64 MB"; by default a part of what is free.
    timeout: seconds that one run or cell may take.
    link: an emulated network `Link` between the ranks, or `Nodes` with a link inside and one across them; CPU only.
    check: compare every operation across ranks before it is issued.
    slow: {rank: seconds}, by which its operations are delayed: a straggler on purpose.
    rules: "nccl" says after each run what NCCL would have made of it; the default on practice cards.
    quiet: print nothing at the start.
    apart: the name of a module that these ranks have imported when they begin, for code that cannot be trusted, such as
        a learner's answer that is checked. Such ranks have a parent process of their own. Whatever the code does to its
        process or to the parent, no other Ranks end, and a rank that is gone is started again before the next run.

    Each rank draws random numbers of its own, as a process on a cluster does; they are the same whenever ranks are
    started anew, so that a notebook repeats. Call torch.manual_seed where all ranks must draw the same. The order of a
    set, which differs between the processes of a cluster, is the same on all ranks here; `helpers rehearse` varies it.

    Raises ValueError for a number, device or link that this machine cannot serve, RankError when ranks do not start.
    """

    def __init__(
        self,
        num_ranks: int = 4,
        *,
        device: str = "auto",
        memory: str | int | None = None,
        timeout: float = DEFAULT_LIMIT,
        link: Link | Nodes | None = None,
        check: bool = True,
        slow: dict[int, float] | None = None,
        rules: str | None = None,
        quiet: bool = False,
        apart: str = "",
    ):
        _refuse_nesting()
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is the seconds that one run may take, but got {timeout}: try timeout=60.")
        self.timeout, self.quiet = timeout, quiet
        self._lock = threading.Lock()  # held while a task runs
        self._slices: dict[int, Ranks] = {}  # number of ranks -> the smaller Ranks that ranks[:n] made
        self._timer: threading.Timer | None = None  # stops idle ranks
        self._cells, self._has_variables = 0, False  # cells so far, and whether the processes hold variables of one
        self._in_place = _launched_ranks(device, memory) if launched() else None
        if self._in_place:
            choose_rules(rules, "torchrun")  # only to raise ValueError for rules that torchrun's ranks cannot follow
            self.num_ranks, self.device = self._in_place.world_size, self._in_place.device
            return
        check_num_ranks(num_ranks)
        kind, backend, local = choose_device(device, num_ranks)
        if link is not None and backend != "wire":
            raise ValueError('an emulated link works on CPU only: use Ranks(…, device="cpu", link=…).')
        self.num_ranks, self.device = num_ranks, kind
        machine = {"num_ranks": num_ranks, "device": kind, "backend": backend, "local_devices": tuple(local)}
        machine["card_bytes"] = card_bytes(memory, num_ranks, kind)
        rules = choose_rules(rules, kind, backend)
        options = {"link": link, "check": check, "slow": slow, "apart": apart, "rules": rules}
        self._settings = PoolSettings(**machine, **options)
        self._pool = Pool(self._settings)
        self._start()
        _make_current(self)

    def __len__(self) -> int:
        return self.num_ranks

    def __repr__(self) -> str:
        if self._in_place:
            return f"{self.num_ranks} ranks under torchrun"
        return self._headline()

    # -- what learners call ----------------------------------------------------------------------------------------
    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank; the results in rank order. What ranks print is printed by rank.

        Raises ValueError if the call cannot be sent, RankError if a rank fails, hangs, or issues other operations.
        """
        if self._in_place:
            return self._in_place.run(fn, *args, **kwargs)
        blob = pack_call(fn, args, kwargs, num_ranks=self.num_ranks)
        outcome = self._task(("call", blob), range(self.num_ranks), self.timeout)
        print_by_rank(outcome.texts, outcome.warnings)
        return [unpack(value) for value in outcome.values]

    def cell(self, source: str, ranks: Sequence[int] | None = None, timeout: float | None = None) -> None:
        """Run `source` on the chosen ranks, each in its own lasting namespace; print what they print and show.

        Raises ValueError for a rank that does not exist, RankError as `run` does.
        """
        if self._in_place:
            raise ValueError("cells run on live ranks of a notebook; under torchrun use Ranks().run(fn).")
        chosen = list(range(self.num_ranks)) if ranks is None else self._checked(ranks)
        name = f"{CELL_PREFIX} {self._cells}>"  # the file name under which the cell is compiled
        self._cells += 1
        # Tracebacks take the lines of the cell from here. The None is a file's time, and a cell has none.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        outcome = self._task(("cell", source, name), chosen, timeout or self.timeout, name)
        shown = dict(zip(chosen, outcome.values, strict=True))
        texts = {r: outcome.texts[r] + (shown[r] + "\n" if shown[r] is not None else "") for r in chosen}
        print_by_rank(texts, outcome.warnings)

    def __getitem__(self, which: slice) -> Ranks:
        """`ranks[:2]`: Ranks with the same settings but two processes of their own, which stay until `close`."""
        if not isinstance(which, slice) or which.start not in (None, 0) or which.step not in (None, 1):
            raise ValueError(f"a smaller world is the first ranks of this one, as in ranks[:2]: got ranks[{which!r}].")
        size = len(range(self.num_ranks)[which])
        if size == 0:
            raise ValueError(f"ranks[:{which.stop}] leaves no rank: use ranks[:1] to ranks[:{self.num_ranks}].")
        if size == self.num_ranks:
            return self
        if self._in_place:
            raise ValueError("torchrun gives one world, without slices: use dist.new_group for some of its ranks.")
        if size not in self._slices:
            self._slices[size] = self._smaller(size)
        return self._slices[size]

    def _smaller(self, size: int) -> Ranks:
        """New Ranks with the same settings, on which no %%ranks cell runs."""
        settings = self._settings
        same = {name: getattr(settings, name) for name in ("device", "link", "check", "slow", "rules", "apart")}
        with keep_current():
            return Ranks(size, memory=settings.card_bytes or None, timeout=self.timeout, quiet=True, **same)

    def close(self) -> None:
        """End every process of this world and of its slices. The next run starts them again."""
        for smaller in self._slices.values():
            smaller.close()
        self._cancel_timer()
        if not self._in_place:
            with self._lock:
                self._pool.stop()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_pool"):
            self._cancel_timer()
            self._pool.stop()

    # -- how it works ----------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """Start the processes, and print one line with their number, device, start time and memory."""
        start = time.monotonic()
        self._pool.start()
        self._has_variables = False
        if not self.quiet:
            print(f"{self._headline()}, ready in {time.monotonic() - start:.1f} s · {self._footprint()}")
            print(memory_warning(), end="")

    def _headline(self) -> str:
        backend = "NCCL" if self._settings.backend == "nccl" else "gloo"
        rules = ", NCCL's rules" if self._settings.rules == "nccl" else ""
        return f"{self.num_ranks} rank{'s' if self.num_ranks > 1 else ''} on {self._device_name()} ({backend}{rules})"

    def _device_name(self) -> str:
        if self.device == "cpu":
            return "CPU"
        if self.device == "card":
            return f"practice cards of {format_bytes(self._settings.card_bytes)}"
        count = len(set(self._settings.local_devices))
        return f"{count} GPU{'s' if count > 1 else ''}"

    def _footprint(self) -> str:
        """The mean memory of a rank, to which a page that several processes share counts in part only."""
        sizes = [size for pid in self.pids if (size := proportional_bytes(pid))]
        return f"{sum(sizes) / len(sizes) / 1e6:.0f} MB each" if sizes else "memory unknown"

    def issued(self) -> dict[tuple[str, str], dict[int, int]]:
        """How many operations each rank issued, as {(file of a board, group): {rank: number}}.

        A board is a file in shared memory in which the ranks of a group write down their operations. They are counted
        there, because a rank's Python cannot reset them.
        """
        return {} if self._in_place else self._pool.issued()

    def renew(self) -> None:
        """Stop these ranks, but not their slices, if one of them has died or is not fit for another task.

        The next run starts new ones. Messages that were sent and not received are dropped, so that no later task gets
        them.
        """
        if not self._pool.is_whole():
            self._pool.stop()
        elif self._pool.has_unmatched_messages():
            self._pool.drop_messages()

    @property
    def folder(self) -> str | None:
        """A folder to which all ranks can write. It is removed when the ranks stop, and None while they are stopped."""
        return self._pool.folder

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order; empty while the ranks are stopped."""
        return [member.pid for member in self._pool.members]

    def _task(self, message: tuple, ranks: Sequence[int], limit: float | None, cell: str | None = None):
        """Have the pool run a task (see Pool.task), after starting the ranks if they are stopped."""
        with interrupts_in_waits_only():
            if not self._lock.acquire(blocking=False):
                raise ValueError("these ranks are busy with another run: wait for it to end, or make other Ranks.")
            try:
                self._cancel_timer()
                if self._settings.apart:
                    self.renew()
                if not self._pool.is_up:
                    self._start()
                self._has_variables = self._has_variables or cell is not None
                return self._pool.task(message, ranks, limit, cell)
            except RankError as error:
                print_by_rank(getattr(error, "texts", {}))  # what the ranks printed before the failure
                raise error from None
            finally:
                self._lock.release()
                self._set_timer()

    def _checked(self, ranks: Sequence[int]) -> list[int]:
        """These ranks in order, each once. Raises ValueError for one that does not exist."""
        wrong = [rank for rank in ranks if not 0 <= rank < self.num_ranks]
        if wrong:
            raise ValueError(f"there is no {rank_names(wrong)}: these are ranks 0 to {self.num_ranks - 1}.")
        return sorted(set(ranks))

    def _set_timer(self) -> None:
        """Stop the ranks in IDLE_LIMIT seconds, unless they hold variables or another task comes before."""
        if self._has_variables:
            return  # stopping would lose what the learner computed
        self._timer = threading.Timer(IDLE_LIMIT, _stop_if_idle, [weakref.ref(self)])
        self._timer.daemon = True
        self._timer.start()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _stop_if_idle(reference: weakref.ref[Ranks]) -> None:
    """Called by the timer. It has only a weak reference, so that a timer does not keep unused Ranks alive."""
    ranks = reference()
    if ranks is not None and ranks._lock.acquire(blocking=False):
        try:
            ranks._pool.stop()
        finally:
            ranks._lock.release()


def current() -> Ranks | None:
    """The Ranks that were made last: those that a %%ranks cell runs on."""
    return _latest() if _latest is not None else None


@contextlib.contextmanager
def keep_current() -> Iterator[None]:
    """While this context lasts, code may make other Ranks; afterwards %%ranks cells run on the same Ranks as before."""
    before = current()
    try:
        yield
    finally:
        _make_current(before)


def _make_current(ranks: Ranks | None) -> None:
    global _latest
    _latest = weakref.ref(ranks) if ranks is not None else None


def _launched_ranks(device: str, memory: str | int | None) -> LaunchedRanks:
    """The ranks that a launcher has started, of which this process is one."""
    from helpers.ranks.inplace import LaunchedRanks  # which a notebook need not load

    return LaunchedRanks(device, memory)


def _refuse_nesting() -> None:
    """Raise ValueError if this process is a rank itself."""
    worker = sys.modules.get("helpers.ranks.processes.worker")
    if worker is not None and worker.ACTIVE is not None:
        raise ValueError(
            f"this code already runs on rank {worker.ACTIVE.rank}, and a rank cannot start ranks of its own: "
            "make Ranks in the notebook, and use dist.new_group for a group of some of them."
        )


# A forked child, such as a rank, must not use the Ranks of its parent.
os.register_at_fork(after_in_child=lambda: globals().update(_latest=None))
