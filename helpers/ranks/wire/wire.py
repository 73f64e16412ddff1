"""Wraps every process group of torch.distributed: it logs, compares across ranks, emulates a link and injects faults.

    install(WireConfig(rank=0, world_size=4, board_dir=folder))
    dist.init_process_group("wire", store=store, rank=0, world_size=4)

"wire" is a backend for init_process_group, like "gloo". Every operation of every group passes through `Wire`, a
ProcessGroup around the real one, which is gloo. Code that trains knows nothing of it. `World` holds all groups of this
process, with the thread that watches over them. With `inner="nccl"` the wire keeps the log and compares operations
before it issues them, but it cannot end a blocked NCCL kernel. Begin with group.py, which lists the steps of an
operation.

The words: a "world" is all process groups that a process makes between one install() or reset() and the next; after a
failure the ranks begin a new one. It is "broken" once its ranks did not issue the same operations or its connections
were closed. The "board" is a file in shared memory in which the ranks of a group compare operations (board.py). A
"card" is a simulated GPU (helpers/devices/cards), whose tensors hold their elements in CPU memory. "Rules" say what
another backend, NCCL, would make of the operations that gloo runs (rules.py); without them `session.rules` is None.

    install, reset                       begin a world; init_process_group with the backend "wire" then works
    subscribe, counters, pending         a log of completed operations; what was issued; what is not complete
    num_not_awaited                      how many of its operations the program has not waited for
    broken, cause_of                     why this world cannot go on; the WireError behind an error
    fail_pending, cut                    end what waits: in this process only, or by closing the connections
    release_closed_groups                forget the groups of the old world, once all ranks are in a new one
    current_session                      what all groups of this process's world share, for NCCL's rules
    WireConfig, WireError, PendingOp     the settings, the error, and the record of a pending operation

With cards, `WireConfig.cpu` says what happens to tensors on the CPU:

    "together"   they go through the same group as the cards' tensors
    "apart"      they go through a second group of the same ranks (`TwoWires`)
    "refused"    they raise, as where "nccl" is the only backend

`install` also replaces three functions of torch:

    monitored_barrier     because torch's asks for a group whose backend is named "gloo"
    batch_isend_irecv     because NCCL's rules must see a batch as one operation
    _process_group_name   because every rank calls it in new_group, so that the ranks can compare these calls
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
from helpers.ranks.board.board import NEW_GROUP, Board
from helpers.ranks.board.sites import words
from helpers.ranks.wire.gloo import ClosedGroups, Connections, Waiters, open_sockets
from helpers.ranks.wire.group import WireGroup
from helpers.ranks.wire.meeting import GroupCalls, meet, watch_stores
from helpers.ranks.wire.methods import Methods
from helpers.ranks.wire.rules import rules_named
from helpers.ranks.wire.session import Listeners, Session, WireConfig
from helpers.ranks.wire.work import PendingOp, WireError
from helpers.records import CommEvent

TICK = 0.05  # seconds between two looks of the watching thread at the boards


class World:
    """All groups of one process, and the thread that watches over them.

    session: what the groups share (settings, pending operations, counters). waiters: threads that wait inside gloo.
    """

    def __init__(self, config: WireConfig, waiters: Waiters):
        self.session, self.closed = Session(config, waiters), False
        self.groups: list[WireGroup] = []
        self.calls: GroupCalls | None = None  # the calls of new_group, once there is a default group
        self.rules = self.session.rules = rules_named(config.rules).start_on_rank(config)
        threading.Thread(target=self._watch, daemon=True, name="wire watch").start()

    def join(self, group: WireGroup) -> None:
        """Add a group to this world."""
        others = [one for one in self.groups if not one.is_released]
        # After a restart torch gives its groups the names 0, 1, … again, so the old counters would be taken for the new
        # groups'.
        if not others:
            self.session.counters = {group.name: 0}
        self.groups = [*others, group]

    def _watch(self) -> None:
        """Every TICK, as long as something is pending, look after the operations that no thread waits for.

        `group.look()` reads the group's board, and ends all pending operations if a rank has found a mismatch.
        """
        session = self.session
        while not self.closed:
            session.busy.wait()
            time.sleep(TICK)
            if not session.pending:
                session.busy.clear()
                if session.pending:  # another thread has added one in between
                    session.busy.set()
                continue
            self._hand_over_waits()
            if self.calls is not None:
                self.calls.look()
            for group in self.groups:
                group.look()

    def _hand_over_waits(self) -> None:
        """Let other threads wait for operations that have no future and for which nobody has called wait() yet."""
        for _, work in self.session.works():
            # work.direct is the wait inside gloo of an operation that has no future.
            if work.direct is not None and time.perf_counter() - work.started > TICK:
                work.direct.hand_over()

    def cut(self) -> None:
        """End every connection of this world: nothing more can be sent in it."""
        for group in self.groups:
            group.cut()

    def close(self) -> None:
        """End this world: pending operations fail, and the groups close their boards."""
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
        """The operations that this rank has issued and that are not complete."""
        now = time.perf_counter()
        for group, work in self.session.works():
            if not work.done:
                yield group.describe(work, now)


_world: World | None = None  # the present one, since `install`
# For all worlds of this process: who gets the log, the threads that wait inside gloo, and what is kept of ended groups.
_listeners, _waiters, _closed_groups = Listeners(), Waiters(), ClosedGroups()


class Wire(Methods, dist.ProcessGroup):
    """A process group around the one that does the work (`inner`); its collectives are in methods.py.

    kind: torch's enum value of the backend that does the work.
    """

    def __init__(self, store: dist.Store, group: WireGroup, backend: dist.Backend, kind: dist.ProcessGroup.BackendType):
        # ProcessGroup's constructor with a store cannot be called from a Python subclass, so only rank and size go to
        # super().
        super().__init__(group.rank, group.size)
        self.group, self.inner = group, dist.ProcessGroup(store, group.rank, group.size)
        for each in (self, self.inner):  # self too, so that torch finds its devices, timeout and name there
            devices = _devices(kind)
            if each is self and group.session.config.cpu == "refused":  # CPU tensors raise, as with NCCL alone
                devices = devices[1:]  # without the CPU, so that broadcast_object_list sends its bytes from the card
            for device in devices:
                each._register_backend(torch.device(device), kind, backend)
            each._set_default_backend(kind)
        self.inner._set_group_name(group.name)

    @property
    def matches_messages_by_order(self) -> bool:
        """Whether a receive takes its peer's next message whatever its tag, as on NCCL. Pipeline schedules ask this."""
        return self.group.session.rules is not None

    def shutdown(self) -> None:
        # Kept for a while, because DDP's reducer could deadlock if it destroyed the group (the third bug in gloo.py).
        _closed_groups.shut_down.append(self)
        super().shutdown()


class TwoWires(Wire):
    """With cpu="apart" a group is two: one for the cards and one for CPU tensors, as with torch's "cpu:gloo,cuda:nccl".

    Each call goes to the one where its tensors are: this Wire, or `cpu_wire`. Only operations on cards are compared in
    order with each other.
    """

    cpu_wire: Wire

    def shutdown(self) -> None:
        self.cpu_wire.shutdown()
        super().shutdown()

    def abort(self) -> None:
        self.cpu_wire.abort()
        super().abort()


def _by_device(method: Callable) -> Callable:
    """The method of a TwoWires: with tensors on the CPU alone it calls the method of the CPU's wire."""

    @functools.wraps(method)
    def call(self: TwoWires, *args, **kwargs):
        tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        on_cpu = tensors and not any(map(is_on_python_device, tensors))
        return method(self.cpu_wire if on_cpu else self, *args, **kwargs)

    return call


# Every operation of TwoWires chooses its wire by the device of its tensors.
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
        # extended_api: torch then calls _create with an object of options, which has the group's ranks.
        dist.Backend.register_backend("wire", _create, extended_api=True, devices=list(known_kinds()))
        dist.monitored_barrier = distributed_c10d.monitored_barrier = _monitored_barrier
        dist.batch_isend_irecv = distributed_c10d.batch_isend_irecv = _batch_isend_irecv
        distributed_c10d._process_group_name = _process_group_name
        watch_stores(_watched_session)


def subscribe(callback: Callable[[CommEvent], None]) -> Callable[[], None]:
    """Call `callback` with each completed operation, in the thread that completes it. Returns a function to stop it."""
    return _listeners.add(callback)


def counters() -> dict[str, int]:
    """Group name -> collectives issued so far on this rank. Sends and receives are not counted."""
    return dict(_world.session.counters) if _world else {}


def num_not_awaited() -> int:
    """The operations of this rank that the program has not waited for, whether they are complete or not."""
    return _world.session.num_not_awaited if _world else 0


def pending() -> list[PendingOp]:
    """What this rank has issued and what is not complete, oldest first; `missing` says for whom each one waits."""
    return list(_world.pending()) if _world else []


def fail_pending(message: str) -> None:
    """End every pending operation of this rank: its `wait()` or future raises WireError(message)."""
    if _world:
        _world.session.fail(message)


def cut() -> None:
    """Close the connections of this process's groups, so that threads which wait inside gloo raise an error.

    The other ranks are not told; their operations with this rank never complete.
    """
    if _world:
        _world.cut()


def release_closed_groups() -> None:
    """Free what was kept of the old world's closed groups. Call it once all ranks have joined the new world.

    Until then a slower rank may still write to the old connections (see ClosedGroups in gloo.py).
    """
    _closed_groups.release()


def _watched_session() -> Session | None:
    """The session, if config.check is on and the world is open; else None."""
    return _world.session if _world is not None and not _world.closed and _world.session.config.check else None


def current_session() -> Session:
    """What all groups of this process's world share."""
    return _world.session


def broken() -> WireError | None:
    """The error after which this world cannot go on (a mismatch, or `cut`), even if the learner's code caught it."""
    return _world.session.broken if _world else None


def cause_of(error: BaseException) -> WireError | None:
    """The WireError that `error` is, or that it carries: a future (and so DDP's backward) passes on only its text."""
    if isinstance(error, WireError):
        return error
    _, found, text = str(error).partition("WireError: ")
    if not found:
        return None
    return broken() or WireError(text.partition("\n\nAt:")[0])  # torch appends a traceback that begins with "At:"


def reset() -> None:
    """Begin a new world with the same settings: forget groups, counters and boards."""
    global _world
    if _world is not None:
        _world.close()
        _world = World(_world.session.config, _waiters)


def _create(options, backend_options=None) -> Wire:
    """What torch calls for a new group; its group_id, ranks, store and timeout come in `options`."""
    if _world is None:
        raise RuntimeError("the wire is not installed: call wire.install(WireConfig(...)) before init_process_group")
    is_default = not options.global_ranks_in_group
    # Raised only after the group is made, because the other ranks have already decided to go on and wait for us inside
    # gloo.
    late_error = None
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    if _world.session.config.check and _world.session.config.inner == "gloo":  # NCCL connects ranks at their first use
        late_error = meet(_world.session, "init_process_group" if is_default else NEW_GROUP, options.store, ranks)
    if _world.session.config.cpu == "apart":  # as with torch's backend "cpu:gloo,cuda:nccl"
        cpu_wire = _make_wire(Wire, _for_the_cpu(options), None)  # None: no options of a backend
        made = _make_wire(TwoWires, options, backend_options)
        made.cpu_wire = cpu_wire
    else:
        made = _make_wire(Wire, options, backend_options)
    if is_default and _world.session.config.check:
        _world.calls = GroupCalls(_world.session, _board_path(options, ranks, NEW_GROUP))
    if _world.session.rules is not None:
        _world.session.rules.group_made(call_site(), made.group.name, made.group.ranks)
    if late_error is not None:
        raise late_error
    return made


def _for_the_cpu(options):
    """The options of a second group of the same ranks, with keys of its own in the store."""
    apart = type(options)()
    for name in ("group_rank", "group_size", "timeout", "global_ranks_in_group"):
        setattr(apart, name, getattr(options, name))
    apart.store, apart.group_id = dist.PrefixStore("cpu", options.store), f"{options.group_id} cpu"
    return apart


def _make_wire(kind_of_wire: type[Wire], options, backend_options) -> Wire:
    """A wire around a new group of the real backend, with its board and its connections."""
    before = open_sockets()
    backend, kind = _backend(options, backend_options)
    # The sockets that gloo has opened for this group: a new descriptor, or an old number with another inode.
    opened = {number: inode for number, inode in open_sockets().items() if before.get(number) != inode}
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    group = WireGroup(_world.session, _listeners, options.group_id, ranks, options.group_rank)
    if _world.session.config.check:
        group.use_board(_board_path(options, ranks, options.group_id))
    made = kind_of_wire(options.store, group, backend, kind)
    group.connections = Connections(made, opened, _closed_groups)
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
    """The kinds of device that a backend serves; the CPU, where it is served, comes first."""
    return (GPU,) if kind == dist.ProcessGroup.BackendType.NCCL else known_kinds()


def _board_path(options, ranks: tuple[int, ...], name: str) -> str:
    """The first rank of the group makes the file of a board and tells the others its path through the store."""
    if options.group_rank == 0:
        options.store.set(f"board {name}", Board.create(_world.session.config.board_dir, name, ranks))
    return options.store.get(f"board {name}").decode()


def _monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Replaces `dist.monitored_barrier`, which asks for gloo by name, because behind the wire there is gloo."""
    group = group or dist.group.WORLD
    if isinstance(group, Wire):
        return group.monitored_barrier(timeout, wait_all_ranks)
    return _torch_monitored_barrier(group, timeout, wait_all_ranks)


def _batch_isend_irecv(p2p_op_list):
    """Replaces `dist.batch_isend_irecv`, so that NCCL's rules see a batch as one operation.

    torch itself issues the messages of a batch one by one where the group is no plain ProcessGroup.
    """
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
    """Replaces torch's function of this name, to compare the calls of new_group.

    torch calls this function in new_group on every rank, also on those that are not in the group, so it is the one
    place where all ranks can be compared when they make a group.
    """
    if ranks and not use_hashed_name and _world is not None and isinstance(dist.group.WORLD, Wire):
        site = call_site()
        if _world.session.rules is not None:
            _world.session.rules.new_group_called(site, ranks)
        if _world.calls is not None:
            _world.calls.compare(ranks, site)
    return _torch_group_name(ranks, use_hashed_name)


# torch's own functions, which `install` replaces by the three above.
_torch_monitored_barrier = distributed_c10d.monitored_barrier
_torch_batch, _torch_group_name = distributed_c10d.batch_isend_irecv, distributed_c10d._process_group_name
