"""The table of test_otherwise.py: every call of torch.distributed, and what one rank may do otherwise.

A function of CALLS makes one call on every rank. A `Way` says how: the other ranks make it as it is meant, and the odd
one in another way, for example with a tensor of another shape. NO_CALLS has the public names that need no row.
"""

from __future__ import annotations

import datetime
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

SIZE, ODD = 4, 1
DTYPE, SHAPE, ROOT, OP, MEMBERS = "another dtype", "another shape", "another root", "another reduction", "other members"
TENSORS = (SHAPE, DTYPE)


@dataclass(frozen=True)
class Way:
    """How a rank makes a call."""

    length: int = 4
    dtype: torch.dtype = torch.float32
    root: int = 0
    op: str = "SUM"
    members: tuple[int, ...] = (0, 1, 2)
    group: dist.ProcessGroup | None = None

    def tensor(self, factor: int = 1) -> torch.Tensor:
        return torch.ones(self.length * factor, dtype=self.dtype)

    def tensors(self) -> list[torch.Tensor]:
        return [self.tensor() for _ in range(SIZE)]

    @property
    def reduction(self) -> dist.ReduceOp:
        return getattr(dist.ReduceOp, self.op)

    @property
    def is_root(self) -> bool:
        return dist.get_rank() == self.root


OTHER_WAYS = {
    SHAPE: {"length": 6},
    DTYPE: {"dtype": torch.float64},
    ROOT: {"root": 1},
    OP: {"op": "MAX"},
    MEMBERS: {"members": (0, 1, 3)},
}


@dataclass(frozen=True)
class Call:
    """One row. make: makes the call. ways: of OTHER_WAYS, those that this call can be made in. right: those that torch
    allows. setup: what every rank does before; its result is given to `make`. names: the public ones that it covers,
    by default its own. has_group: whether it takes a group. limit: seconds until a mistake
    is named and the ranks can go on.
    """

    make: Callable
    ways: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    setup: Callable | None = None
    names: tuple[str, ...] | None = None
    has_group: bool = True
    limit: float = 3.0


def messages(way: Way, send: Callable, receive: Callable) -> None:
    """From rank 0 to rank 1, which is the odd one, and on to rank 2."""
    rank = dist.get_rank()
    if rank in (1, 2):
        receive(way.tensor(), rank - 1, group=way.group)
    if rank in (0, 1):
        send(way.tensor(), rank + 1, group=way.group)


def later(call: Callable) -> Callable:
    return lambda *args, **kwargs: call(*args, **kwargs).wait()


def batched(way: Way) -> None:
    rank, group = dist.get_rank(), way.group
    ops = [dist.P2POp(dist.isend, way.tensor(), (rank + 1) % SIZE, group)]
    ops += [dist.P2POp(dist.irecv, way.tensor(), (rank - 1) % SIZE, group)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def object_messages(way: Way) -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send_object_list(["text"], dst=1, group=way.group)
    elif rank == 1:
        dist.recv_object_list([None], src=0, group=way.group)


def scatter_objects(way: Way) -> None:
    given = ["text"] * SIZE if way.is_root else None
    dist.scatter_object_list([None], given, src=way.root, group=way.group)


def waited(call: Callable) -> Callable:
    """A functional collective, whose result has to be waited for."""
    return lambda way: functional.wait_tensor(call(way, way.group or dist.group.WORLD))


def subgroups(way: Way) -> None:
    dist.new_subgroups(2 if way.members[-1] == 2 else 4)


def enumerated(way: Way) -> None:
    dist.new_subgroups_by_enumeration([[*way.members]])


def mesh(way: Way) -> None:
    dist.init_device_mesh("cpu", (2, 2) if way.members[-1] == 2 else (4,))


def local_group(way: Way) -> None:
    if dist.get_rank() in way.members:
        dist.new_group([*way.members], use_local_synchronization=True)


def model(way: Way = Way()) -> nn.Module:
    return nn.Sequential(nn.Linear(4, way.length), nn.BatchNorm1d(way.length))


def wrapped() -> nn.Module:
    return DistributedDataParallel(model())


def step(net: nn.Module, way: Way) -> None:
    net(torch.ones(2, 4)).sum().backward()


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def line() -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", (SIZE,))


def distribute(mesh: dist.DeviceMesh, way: Way):
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(torch.ones(4 * way.length, dtype=way.dtype), mesh, [Shard(0)])


def redistribute(mesh: dist.DeviceMesh, way: Way) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    local = DTensor.from_local(way.tensor(), mesh, [Shard(0)], run_check=False)
    local.redistribute(placements=[Replicate()]).to_local().sum().item()


def save(folder: str, way: Way) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"weights": way.tensor()}, checkpoint_id=folder)


def shared_folder() -> str:
    listed = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(listed)
    return listed[0]


def from_store(wait: Callable) -> Callable:
    """Every rank writes a key, and reads those of all."""

    def exchange(way: Way) -> None:
        store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        label = f"{time.monotonic():.0f}" if way.group else "row"
        store.set(f"{label} {rank}", "here")
        wait(store, [f"{label} {other}" for other in range(SIZE)])
        dist.barrier()
        store.delete_key(f"{label} {rank}")
        dist.barrier()

    return exchange


def d(name: str) -> Callable:
    """A function of torch.distributed, found when it is called."""
    return lambda *args, **kwargs: getattr(dist, name)(*args, **kwargs)


def gathered(way: Way) -> None:
    dist.gather(way.tensor(), way.tensors() if way.is_root else None, dst=way.root, group=way.group)


def scattered(way: Way) -> None:
    dist.scatter(way.tensor(), way.tensors() if way.is_root else None, src=way.root, group=way.group)


def exchange_single(way: Way) -> None:
    dist.all_to_all_single(way.tensor(4), way.tensor(4), group=way.group)


def gather_objects(way: Way) -> None:
    dist.gather_object("text", [None] * SIZE if way.is_root else None, dst=way.root, group=way.group)


ROOTED = (*TENSORS, ROOT)
REDUCED = (*TENSORS, OP)
PUBLIC_CALLS = {
    "all_reduce": Call(lambda way: dist.all_reduce(way.tensor(), way.reduction, way.group), REDUCED),
    "all_reduce, async": Call(
        lambda way: dist.all_reduce(way.tensor(), way.reduction, way.group, async_op=True).wait(), REDUCED, names=()
    ),
    "broadcast": Call(lambda way: dist.broadcast(way.tensor(), way.root, way.group), ROOTED),
    "reduce": Call(lambda way: dist.reduce(way.tensor(), way.root, way.reduction, way.group), (*ROOTED, OP)),
    "all_gather": Call(lambda way: dist.all_gather(way.tensors(), way.tensor(), way.group), TENSORS),
    "all_gather_single": Call(lambda way: dist.all_gather_single(way.tensor(4), way.tensor(), way.group), TENSORS),
    "all_gather_into_tensor": Call(
        lambda way: dist.all_gather_into_tensor(way.tensor(4), way.tensor(), way.group), TENSORS
    ),
    "gather": Call(gathered, ROOTED),
    "scatter": Call(scattered, ROOTED),
    "reduce_scatter": Call(
        lambda way: dist.reduce_scatter(way.tensor(), way.tensors(), way.reduction, way.group), REDUCED
    ),
    "reduce_scatter_single": Call(
        lambda way: dist.reduce_scatter_single(way.tensor(), way.tensor(4), way.reduction, way.group), REDUCED
    ),
    "reduce_scatter_tensor": Call(
        lambda way: dist.reduce_scatter_tensor(way.tensor(), way.tensor(4), way.reduction, way.group), REDUCED
    ),
    "all_to_all": Call(lambda way: dist.all_to_all(way.tensors(), way.tensors(), way.group), TENSORS),
    "all_to_all_single": Call(exchange_single, TENSORS),
    "all_reduce_coalesced": Call(
        lambda way: dist.all_reduce_coalesced([way.tensor()] * 2, way.reduction, way.group), REDUCED
    ),
    "all_gather_coalesced": Call(
        lambda way: dist.all_gather_coalesced([[way.tensor()] for _ in range(SIZE)], [way.tensor()], way.group), TENSORS
    ),
    "barrier": Call(lambda way: dist.barrier(way.group)),
    "monitored_barrier": Call(lambda way: dist.monitored_barrier(way.group)),
    "monitored_barrier of two seconds": Call(
        lambda way: dist.monitored_barrier(way.group, datetime.timedelta(seconds=2)), names=("monitored_barrier",)
    ),
    "all_gather_object": Call(
        lambda way: dist.all_gather_object([None] * SIZE, "x" * way.length, way.group), (SHAPE,), right=(SHAPE,)
    ),
    "broadcast_object_list": Call(
        lambda way: dist.broadcast_object_list(["x" * way.length], way.root, way.group), (SHAPE, ROOT), right=(SHAPE,)
    ),
    "gather_object": Call(gather_objects, (ROOT,)),
    "scatter_object_list": Call(scatter_objects, (ROOT,)),
    "send_object_list": Call(object_messages, names=("send_object_list", "recv_object_list")),
    "send": Call(partial(messages, send=d("send"), receive=d("recv")), TENSORS, names=("send", "recv")),
    "isend": Call(
        partial(messages, send=later(d("isend")), receive=later(d("irecv"))), TENSORS, names=("isend", "irecv")
    ),
    "batch_isend_irecv": Call(batched, TENSORS, names=("batch_isend_irecv", "P2POp")),
    # Groups.
    "new_group": Call(lambda way: dist.new_group([*way.members]), (MEMBERS,), has_group=False),
    "new_group, local": Call(local_group, (MEMBERS,), has_group=False, names=("new_group",)),
    "new_subgroups": Call(subgroups, (MEMBERS,), has_group=False),
    "new_subgroups_by_enumeration": Call(enumerated, (MEMBERS,), has_group=False),
    "init_device_mesh": Call(mesh, (MEMBERS,), has_group=False, names=("init_device_mesh", "DeviceMesh")),
}
CALLS_ELSEWHERE = {  # in other modules, which call functions of torch.distributed or its groups
    # Nothing but the end of its process ends a wait inside a group of gloo itself, which a learner asks for by name.
    "all_reduce of gloo": Call(
        lambda group, way: dist.all_reduce(way.tensor(), group=group),
        setup=lambda: dist.new_group(backend="gloo"),
        has_group=False,
        limit=10.0,
    ),
    "functional.all_reduce": Call(
        waited(lambda way, group: functional.all_reduce(way.tensor(), way.op, group)), REDUCED
    ),
    "functional.broadcast": Call(
        waited(lambda way, group: functional.broadcast(way.tensor(), way.root, group)), ROOTED
    ),
    "functional.all_gather_tensor": Call(
        waited(lambda way, group: functional.all_gather_tensor(way.tensor(), 0, group)), TENSORS
    ),
    "functional.reduce_scatter_tensor": Call(
        waited(lambda way, group: functional.reduce_scatter_tensor(way.tensor(4), way.op, 0, group)), REDUCED
    ),
    "functional.all_to_all_single": Call(
        waited(lambda way, group: functional.all_to_all_single(way.tensor(4), None, None, group)), TENSORS
    ),
    "functional.permute_tensor": Call(
        waited(lambda way, group: functional.permute_tensor(way.tensor(), [1, 2, 3, 0], group)), TENSORS
    ),
    "functional.all_reduce_coalesced": Call(
        lambda way: [
            functional.wait_tensor(one)
            for one in functional.all_reduce_coalesced([way.tensor()] * 2, way.op, way.group or dist.group.WORLD)
        ],
        REDUCED,
    ),
    "nn.functional.broadcast": Call(
        lambda way: differentiable.broadcast(way.tensor(), way.root, way.group or dist.group.WORLD), ROOTED
    ),
    "nn.functional.reduce": Call(
        lambda way: differentiable.reduce(way.tensor(), way.root, way.reduction, way.group or dist.group.WORLD),
        (*ROOTED, OP),
    ),
    "nn.functional.reduce_scatter": Call(
        lambda way: differentiable.reduce_scatter(
            way.tensor(), way.tensors(), way.reduction, way.group or dist.group.WORLD
        ),
        REDUCED,
    ),
    "nn.functional.scatter": Call(
        lambda way: differentiable.scatter(way.tensors(), way.root, way.group or dist.group.WORLD), ROOTED
    ),
    "nn.functional.gather": Call(
        lambda way: differentiable.gather(way.tensor(), way.root, way.group or dist.group.WORLD), ROOTED
    ),
    "nn.functional.all_to_all": Call(
        lambda way: differentiable.all_to_all(way.tensors(), way.tensors(), way.group or dist.group.WORLD), TENSORS
    ),
    "nn.functional.all_to_all_single": Call(
        lambda way: differentiable.all_to_all_single(way.tensor(4), way.tensor(4), group=way.group or dist.group.WORLD),
        TENSORS,
    ),
    "nn.functional.all_reduce": Call(
        lambda way: differentiable.all_reduce(way.tensor(), way.reduction, way.group or dist.group.WORLD), REDUCED
    ),
    "nn.functional.all_gather": Call(
        lambda way: differentiable.all_gather(way.tensor(), way.group or dist.group.WORLD), TENSORS
    ),
    "DistributedDataParallel()": Call(lambda way: DistributedDataParallel(model(way)), (SHAPE,), has_group=False),
    "DistributedDataParallel.forward": Call(step, setup=wrapped, has_group=False),
    "fully_shard": Call(step, setup=sharded, has_group=False),
    "distribute_tensor": Call(distribute, TENSORS, setup=line, has_group=False),
    "redistribute": Call(redistribute, TENSORS, setup=line, has_group=False),
    "checkpoint.save": Call(save, setup=shared_folder, has_group=False),
    "store.wait": Call(from_store(lambda store, keys: store.wait(keys)), has_group=False, names=("Store",)),
    "store.get": Call(from_store(lambda store, keys: [store.get(key) for key in keys]), has_group=False),
}
CALLS = PUBLIC_CALLS | CALLS_ELSEWHERE
NO_CALLS = {
    "of this process alone": (
        "get_backend_config get_backend get_default_backend_for_device get_rank get_world_size get_pg_count "
        "is_gloo_available is_initialized is_mpi_available is_backend_available is_nccl_available "
        "is_torchelastic_launched is_ucc_available is_xccl_available supports_complex get_group_rank get_global_rank "
        "get_process_group_ranks get_node_local_rank get_debug_level record_comm is_available "
        "get_backend_supported_devices"
    ),
    "a type, a value or options": (
        "Backend BackendConfig GroupMember group AllreduceCoalescedOptions AllreduceOptions AllToAllOptions "
        "BarrierOptions BroadcastOptions GatherOptions GroupName PrefixStore ProcessGroup ReduceOp ReduceOptions "
        "ReduceScatterOptions ScatterOptions DebugLevel Work default_pg_timeout reduce_op ProcessGroupGloo "
        "ProcessGroupMPI ProcessGroupNCCL ProcessGroupUCC ProcessGroupXCCL BuiltinCommHookType GradBucket DistError "
        "DistBackendError DistNetworkError DistStoreError QueueEmptyError timedelta FileStore HashStore"
    ),
    "parts of DistributedDataParallel, which has rows": "Logger Reducer",
    "settings of this process": "set_debug_level set_debug_level_from_env register_rendezvous_handler",
    "connects in C++ before there are groups, and has a timeout of its own": "TCPStore rendezvous",
    "waits for a person at a debugger, and then in a barrier": "breakpoint",
    "the ranks have a default group, so that torch raises at once": "init_process_group",
    "waits for nobody: what follows raises, since the group is gone": "destroy_process_group",
    "refused on the CPU, at once": "split_group shrink_group",
}


def raise_it() -> None:
    raise ValueError("a bad batch")


def do_otherwise(what: str, call: Call, way: Way, make: Callable) -> None:
    """What the odd rank does instead of `make(way)`."""
    if what in OTHER_WAYS:
        make(replace(way, **OTHER_WAYS[what]))
    elif what == "twice":
        make(way), make(way)
    elif what == "another operation":
        dist.all_reduce(torch.ones(9))
    elif what == "the other order":
        dist.all_reduce(torch.ones(9)), make(way)
    elif what == "raises before":
        raise_it()
    elif what == "sleeps before":
        time.sleep(1), make(way)
    elif what == "another group":
        make(replace(way, group=None))


# What every row is crossed with, besides its own ways.
ALWAYS = ("skips it", "twice", "another operation", "the other order", "raises before", "sleeps before")
RIGHT = ("sleeps before",)  # no mistake


def play(call: Call, what: str) -> None:
    """Run on every rank: the odd one does otherwise. The call is followed by an operation of all."""
    warnings.simplefilter("ignore")
    way = Way(group=dist.new_group() if what == "another group" else None)
    make = call.make if call.setup is None else partial(call.make, call.setup())
    if dist.get_rank() == ODD:
        do_otherwise(what, call, way, make)
    else:
        make(way)
        if what == "the other order":
            dist.all_reduce(torch.ones(9))


def public_names(name: str) -> tuple[str, ...]:
    """The names of torch.distributed that a row covers."""
    names = CALLS[name].names
    return names if names is not None else (name,) if name in PUBLIC_CALLS else ()


def rows() -> list[tuple[str, str]]:
    """The whole cross: (name of a call, what the odd rank does otherwise)."""
    return [
        (name, what)
        for name, call in CALLS.items()
        for what in (*ALWAYS, *call.ways, *(["another group"] if call.has_group else []))
        if all(hasattr(dist, one) for one in public_names(name))  # a torch may lack a name
    ]
