"""Wraps every process group of torch.distributed: it logs, compares across ranks, emulates a link and injects faults.

    install(WireConfig(rank=0, world_size=4, board_dir=folder))
    dist.init_process_group("wire", store=store, rank=0, world_size=4)

Every operation of every group passes through `Wire`, a ProcessGroup around the real one, gloo. Strategies know nothing
of it. `World` holds all groups of this process, with the thread that watches over them. With `inner="nccl"` the wire
keeps the log and compares operations before it issues them, but it cannot end a blocked NCCL kernel.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_iter

from helpers.devices import GPU, is_on_python_device, known_kinds
from helpers.devices.call_site import call_site
from helpers.ranks.board import Board
from helpers.ranks.gloo import ClosedGroups, Connections, Waiters, open_sockets
from helpers.ranks.group import WireGroup
from helpers.ranks.methods import Methods
from helpers.ranks.rules import rules_named
from helpers.ranks.session import Listeners, Session, WireConfig
from helpers.ranks.sites import words
from helpers.ranks.work import PendingOp, WireError
from helpers.records import CommEvent

TICK = 0.05  # seconds between two looks at the board


class World:
    """All groups of one process, and the thread that watches over them."""

    def __init__(self, config: WireConfig, waiters: Waiters):
        self.session, self.closed = Session(config, waiters), False
        self.groups: list[WireGroup] = []
        self.rules = self.session.rules = rules_named(config.rules).start_on_rank(config)
        threading.Thread(target=self._watch, daemon=True, name="wire watch").start()

    def join(self, group: WireGroup) -> None:
        others = [one for one in self.groups if not one.is_released]
        if not others:  # torch counts the names of a world's groups from 0 again
            self.session.counters = {group.name: 0}
        self.groups = [*others, group]

    def _watch(self) -> None:
        """Every 50 ms, as long as something is pending: follow what nobody waits for; end all if a rank says so."""
        session = self.session
        while not self.closed:
            session.busy.wait()
            time.sleep(TICK)
            if not session.pending:
                session.busy.clear()
                if session.pending:
                    session.busy.set()
                continue
            self._follow_the_unfollowed()
            for group in self.groups:
                group.look()

    def _follow_the_unfollowed(self) -> None:
        """Nobody has waited for these yet, and perhaps nobody will."""
        for _, work in self.session.works():
            if work.direct is not None and time.perf_counter() - work.started > TICK:
                work.direct.hand_over()

    def cut(self) -> None:
        """End every connection of this world: nothing more can be sent in it."""
        for group in self.groups:
            group.cut()

    def close(self) -> None:
        """End this world: what is pending fails, the boards are let go."""
        self.closed = True
        self.session.busy.set()
        self.session.fail(words["replaced"])
        for group in self.groups:
            group.release()
        self.groups = []
        if self.rules is not None:
            self.session.rules = None
            self.rules.close()
        if self.session.link is not None:
            self.session.link.close()

    def pending(self) -> Iterator[PendingOp]:
        now = time.perf_counter()
        for group, work in self.session.works():
            if not work.done:
                yield group.describe(work, now)


__all__ = [
    "PendingOp",
    "Wire",
    "WireConfig",
    "WireError",
    "broken",
    "cause_of",
    "counters",
    "cut",
    "fail_pending",
    "current_session",
    "install",
    "release_closed_groups",
    "pending",
    "reset",
    "subscribe",
]

_world: World | None = None
_listeners, _waiters, _ended = Listeners(), Waiters(), ClosedGroups()  # for all worlds of this process


class Wire(Methods, dist.ProcessGroup):
    """A process group around the one that does the work (`inner`); every method is in methods.py."""

    def __init__(self, store: dist.Store, group: WireGroup, backend: dist.Backend, kind: dist.ProcessGroup.BackendType):
        super().__init__(group.rank, group.size)  # torch refuses a store from a subclass
        self.group, self.inner = group, dist.ProcessGroup(store, group.rank, group.size)
        for each in (self, self.inner):  # self too, so that torch finds its devices, timeout and name there
            hides_cpu = each is self and group.session.config.cpu == "refused"  # or torch would send objects from there
            for device in _devices(kind)[hides_cpu:]:  # the CPU is the first
                each._register_backend(torch.device(device), kind, backend)
            each._set_default_backend(kind)
        self.inner._set_group_name(group.name)

    @property
    def matches_messages_by_order(self) -> bool:
        """Whether a receive takes its peer's next message whatever its tag, as on NCCL. A strategy may ask for it."""
        return self.group.session.rules is not None

    def shutdown(self) -> None:
        _ended.shut_down.append(self)
        super().shutdown()


class TwoWires(Wire):
    """A Wire with a second wire for tensors on the CPU, which is not part of the order of the cards' operations."""

    cpu_wire: Wire

    def shutdown(self) -> None:
        self.cpu_wire.shutdown()
        super().shutdown()

    def abort(self) -> None:
        self.cpu_wire.abort()
        super().abort()


def _by_device(method: Callable) -> Callable:
    @functools.wraps(method)
    def call(self: TwoWires, *args, **kwargs):
        tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        on_cpu = tensors and not any(map(is_on_python_device, tensors))
        return method(self.cpu_wire if on_cpu else self, *args, **kwargs)

    return call


for _name, _method in list(vars(Methods).items()):
    if callable(_method) and not _name.startswith("_") and _name not in vars(TwoWires):
        setattr(TwoWires, _name, _by_device(_method))


def install(config: WireConfig) -> None:
    """Register the backend "wire" and set how this process's groups behave from now on."""
    global _world
    if _world is not None:
        _world.close()
    _world = World(config, _waiters)
    if "WIRE" not in dist.Backend._plugins:
        dist.Backend.register_backend("wire", _create, extended_api=True, devices=list(known_kinds()))
        dist.monitored_barrier = distributed_c10d.monitored_barrier = _monitored_barrier
        dist.batch_isend_irecv = distributed_c10d.batch_isend_irecv = _batch_isend_irecv
        distributed_c10d._process_group_name = _process_group_name


def subscribe(callback: Callable[[CommEvent], None]) -> Callable[[], None]:
    """Call `callback` with each completed operation, from whatever thread completes it. Returns the way to stop."""
    return _listeners.add(callback)


def counters() -> dict[str, int]:
    """Group name -> collectives issued so far on this rank. Sends and receives are not counted."""
    return dict(_world.session.counters) if _world else {}


def pending() -> list[PendingOp]:
    """What this rank has issued and what is not complete, oldest first; `missing` says for whom each one waits."""
    return list(_world.pending()) if _world else []


def fail_pending(message: str) -> None:
    """End every pending operation of this rank: its `wait()` or future raises WireError(message)."""
    if _world:
        _world.session.fail(message)


def cut() -> None:
    """Close the connections of this process's groups, so that threads blocked in gloo come out.

    The peers notice nothing.
    """
    if _world:
        _world.cut()


def release_closed_groups() -> None:
    """All ranks have met in a new world: give up what was kept of the old world's closed groups (gloo.ClosedGroups)."""
    _ended.release()


def current_session() -> Session:
    """What all groups of this process's world share."""
    return _world.session


def broken() -> WireError | None:
    """What ended this world (a mismatch, or `cut`), also if a learner's code caught it; only a new world can go on."""
    return _world.session.broken if _world else None


def cause_of(error: BaseException) -> WireError | None:
    """The WireError that `error` is, or that it carries: a future (and so DDP's backward) passes on only its text."""
    if isinstance(error, WireError):
        return error
    _, found, text = str(error).partition("WireError: ")
    return (broken() or WireError(text.partition("\n\nAt:")[0])) if found else None


def reset() -> None:
    """Forget groups, counters and boards, before a new world is made in a new board_dir."""
    global _world
    if _world is not None:
        _world.close()
        _world = World(_world.session.config, _waiters)


def _create(options, backend_options=None) -> Wire:
    """What torch calls for a new group; its group_id, ranks, store and timeout come in `options`."""
    if _world is None:
        raise RuntimeError("the wire is not installed: call wire.install(WireConfig(...)) before init_process_group")
    if _world.session.config.cpu == "apart":
        cpu_wire = _made(Wire, _for_the_cpu(options), None)
        made = _made(TwoWires, options, backend_options)
        made.cpu_wire = cpu_wire
    else:
        made = _made(Wire, options, backend_options)
    if _world.session.rules is not None:
        _world.session.rules.group_made(call_site(), made.group.name, made.group.ranks)
    return made


def _for_the_cpu(options):
    apart = type(options)()
    for name in ("group_rank", "group_size", "timeout", "global_ranks_in_group"):
        setattr(apart, name, getattr(options, name))
    apart.store, apart.group_id = dist.PrefixStore("cpu", options.store), f"{options.group_id} cpu"
    return apart


def _made(kind_of_wire: type[Wire], options, backend_options) -> Wire:
    before = open_sockets()
    backend, kind = _backend(options, backend_options)
    opened = {number: inode for number, inode in open_sockets().items() if before.get(number) != inode}
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    group = WireGroup(_world.session, _listeners, options.group_id, ranks, options.group_rank)
    if _world.session.config.check:
        group.use_board(_board_path(options, ranks))
    made = kind_of_wire(options.store, group, backend, kind)
    group.connections = Connections(made, opened, _ended)
    _world.join(group)
    return made


def _backend(options, backend_options) -> tuple[dist.Backend, dist.ProcessGroup.BackendType]:
    """The backend that does the work, named and timed as torch would."""
    store, rank, size = options.store, options.group_rank, options.group_size
    if _world.session.config.inner == "nccl":
        settings = backend_options or dist.ProcessGroupNCCL.Options()
        settings._timeout = options.timeout
        backend, kind = dist.ProcessGroupNCCL(store, rank, size, settings), dist.ProcessGroup.BackendType.NCCL
    else:
        backend, kind = dist.ProcessGroupGloo(store, rank, size, options.timeout), dist.ProcessGroup.BackendType.GLOO
    backend.options.global_ranks_in_group = options.global_ranks_in_group
    backend.options.group_name = options.group_id
    backend._set_sequence_number_for_group()
    return backend, kind


def _devices(kind: dist.ProcessGroup.BackendType) -> tuple[str, ...]:
    return (GPU,) if kind == dist.ProcessGroup.BackendType.NCCL else known_kinds()


def _board_path(options, ranks: tuple[int, ...]) -> str:
    """The first rank makes the file of the group and tells the others its path through the store."""
    if options.group_rank == 0:
        options.store.set("board", Board.create(_world.session.config.board_dir, options.group_id, ranks))
    return options.store.get("board").decode()


def _monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """`dist.monitored_barrier` asks for gloo by name; behind the wire there is gloo."""
    group = group or dist.group.WORLD
    if isinstance(group, Wire):
        return group.monitored_barrier(timeout, wait_all_ranks)
    return _torch_monitored_barrier(group, timeout, wait_all_ranks)


def _batch_isend_irecv(p2p_op_list):
    """torch posts a batch one by one where a group is no plain ProcessGroup; by NCCL's rules it is one operation."""
    group = (p2p_op_list[0].group if p2p_op_list else None) or dist.group.WORLD
    rules = group.group.session.rules if isinstance(group, Wire) else None
    if rules is None:
        return _torch_batch(p2p_op_list)
    rules.start_batch(group.group)
    try:
        return _torch_batch(p2p_op_list)
    finally:
        rules.end_batch(group.group)


def _process_group_name(ranks, use_hashed_name):
    """Asked on every rank of the world when a group is made, also on those that are not in it."""
    if ranks and not use_hashed_name and _world is not None and _world.session.rules is not None:
        _world.session.rules.new_group_called(call_site(), ranks)
    return _torch_group_name(ranks, use_hashed_name)


_torch_monitored_barrier = distributed_c10d.monitored_barrier
_torch_batch, _torch_group_name = distributed_c10d.batch_isend_irecv, distributed_c10d._process_group_name
