"""Every method of the wire, in every form, gives what bare gloo gives, and is counted and logged once.

Each case is a function of (group, rank, n) that returns tensors; it runs on the world's wire and on a plain gloo group.
"""

from __future__ import annotations

import datetime

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from helpers.ranks.wire import wire
from helpers.ranks.wire.methods import Methods

MINUTE = datetime.timedelta(seconds=60)


def mine(rank, size=4):
    """Different on every rank and in every place."""
    return torch.arange(float(size)) + 10 * rank


def options(kind, **fields):
    made = getattr(c10d, kind)()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


OLDER_NAMES = {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base"}
OLDER_NAMES |= {"all_to_all_single": "alltoall_base", "all_gather_single_coalesced": "allgather_into_tensor_coalesced"}
OLDER_NAMES |= {"reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced"}


def method_of(group, name):
    """The method, or on an older torch, gloo's older name of it."""
    return getattr(group, name, None) or getattr(group, OLDER_NAMES[name])


def all_reduce_form(*form):
    def case(group, rank, n):
        x = mine(rank)
        group.allreduce(*[[x] if part == "list" else x if part == "tensor" else part for part in form]).wait()
        return [x]

    return case


def rooted(method, root, *form):
    def case(group, rank, n):
        x = mine(rank)
        getattr(group, method)(*[[x] if part == "list" else x if part == "tensor" else part for part in form]).wait()
        return [x] if method == "broadcast" or rank == root else []

    return case


def coalesced_all_reduce(group, rank, n):
    tensors = [mine(rank), mine(rank, 3)]
    group.allreduce_coalesced(tensors, options("AllreduceCoalescedOptions", reduceOp=dist.ReduceOp.MAX)).wait()
    return tensors


def gathered(form):
    def case(group, rank, n):
        outputs = [torch.empty(4) for _ in range(n)]
        if form == "lists":
            group.allgather([outputs], [mine(rank)]).wait()
        elif form == "short":
            group.allgather(outputs, mine(rank), MINUTE).wait()
        else:
            group.allgather([outputs], [mine(rank)], options("AllgatherOptions", timeout=MINUTE)).wait()
        return outputs

    return case


def gathered_single(method):
    def case(group, rank, n):
        output = torch.empty(4 * n)
        method_of(group, method)(output, mine(rank)).wait()
        return [output]

    return case


def gathered_coalesced(group, rank, n):
    outputs = [[torch.empty(4) for _ in range(1)] for _ in range(n)]
    group.allgather_coalesced(outputs, [mine(rank)]).wait()
    return [t for inner in outputs for t in inner]


def gathered_single_coalesced(method):
    def case(group, rank, n):
        outputs = [torch.empty(4 * n), torch.empty(2 * n)]
        method_of(group, method)(outputs, [mine(rank), mine(rank, 2)]).wait()
        return outputs

    return case


def scattered_reduction(*form):
    def case(group, rank, n):
        output, parts = torch.empty(2), list(mine(rank, 2 * n).chunk(n))
        if form[0] == "lists":
            group.reduce_scatter([output], [parts], *form[1:]).wait()
        else:
            group.reduce_scatter(output, parts, *form[1:]).wait()
        return [output]

    return case


def scattered_reduction_single(method):
    def case(group, rank, n):
        output = torch.empty(2)
        method_of(group, method)(output, mine(rank, 2 * n), options("ReduceScatterOptions")).wait()
        return [output]

    return case


def scattered_reduction_coalesced(method):
    def case(group, rank, n):
        outputs = [torch.empty(2), torch.empty(3)]
        inputs = [mine(rank, 2 * n), mine(rank, 3 * n)]
        method_of(group, method)(outputs, inputs, options("ReduceScatterOptions", reduceOp=dist.ReduceOp.MAX)).wait()
        return outputs

    return case


def gathered_at(root, form):
    def case(group, rank, n):
        outputs = [torch.empty(4) for _ in range(n)] if rank == root else []
        if form == "lists":
            filled = [outputs] if rank == root else []
            group.gather(filled, [mine(rank)], options("GatherOptions", rootRank=root)).wait()
        else:
            group.gather(outputs, mine(rank), root).wait()
        return outputs

    return case


def scattered_from(root, form):
    def case(group, rank, n):
        output, parts = torch.empty(4), [mine(r) for r in range(n)] if rank == root else []
        if form == "lists":
            filled = [parts] if rank == root else []
            group.scatter([output], filled, options("ScatterOptions", rootRank=root)).wait()
        else:
            group.scatter(output, parts, root).wait()
        return [output]

    return case


def exchanged_single(method, uneven, *form):
    def case(group, rank, n):
        given = [(rank + 2 * peer) % 3 for peer in range(n)] if uneven else []
        taken = [(peer + 2 * rank) % 3 for peer in range(n)] if uneven else []
        x = mine(rank, 2 * (sum(given) if uneven else 2 * n)).view(-1, 2)
        output = torch.empty(sum(taken) if uneven else 2 * n, 2)
        method_of(group, method)(output, x, taken, given, *form).wait()
        return [output]

    return case


def exchanged(*form):
    def case(group, rank, n):
        outputs = [torch.empty(3) for _ in range(n)]
        group.alltoall(outputs, [mine(rank, 3) + r for r in range(n)], *form).wait()
        return outputs

    return case


def waited(method, *form):
    def case(group, rank, n):
        work = getattr(group, method)(*form)
        if work is not None:
            work.wait()
        return []

    return case


AVG, PRODUCT = dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT
COLLECTIVES = {
    "allreduce [t]": all_reduce_form("list"),
    "allreduce [t], options": all_reduce_form("list", options("AllreduceOptions", reduceOp=dist.ReduceOp.MIN)),
    "allreduce [t], op": all_reduce_form("list", dist.ReduceOp.MAX),
    "allreduce t, op, timeout": all_reduce_form("tensor", PRODUCT, MINUTE),
    "allreduce average": all_reduce_form("tensor", AVG),
    "allreduce_coalesced": coalesced_all_reduce,
    "broadcast [t], options": rooted("broadcast", 0, "list", options("BroadcastOptions", rootRank=0)),
    "broadcast t, root, timeout": rooted("broadcast", 1, "tensor", 1, MINUTE),
    "reduce [t], options": rooted("reduce", 0, "list", options("ReduceOptions", rootRank=0)),
    "reduce t, root, op, timeout": rooted("reduce", 1, "tensor", 1, dist.ReduceOp.MAX, MINUTE),
    "allgather lists": gathered("lists"),
    "allgather short form": gathered("short"),
    "allgather with options": gathered("options"),
    "_allgather_base": gathered_single("_allgather_base"),
    "all_gather_single": gathered_single("all_gather_single"),
    "allgather_coalesced": gathered_coalesced,
    "allgather_into_tensor_coalesced": gathered_single_coalesced("allgather_into_tensor_coalesced"),
    "all_gather_single_coalesced": gathered_single_coalesced("all_gather_single_coalesced"),
    "reduce_scatter lists": scattered_reduction("lists"),
    "reduce_scatter with options": scattered_reduction("lists", options("ReduceScatterOptions", reduceOp=AVG)),
    "reduce_scatter short form": scattered_reduction("short", dist.ReduceOp.MAX, MINUTE),
    "_reduce_scatter_base": scattered_reduction_single("_reduce_scatter_base"),
    "reduce_scatter_single": scattered_reduction_single("reduce_scatter_single"),
    "reduce_scatter_tensor_coalesced": scattered_reduction_coalesced("reduce_scatter_tensor_coalesced"),
    "reduce_scatter_single_coalesced": scattered_reduction_coalesced("reduce_scatter_single_coalesced"),
    "gather lists": gathered_at(0, "lists"),
    "gather short form": gathered_at(1, "short"),
    "scatter lists": scattered_from(0, "lists"),
    "scatter short form": scattered_from(1, "short"),
    "alltoall_base even": exchanged_single("alltoall_base", uneven=False),
    "alltoall_base uneven": exchanged_single("alltoall_base", True, options("AllToAllOptions")),
    "all_to_all_single": exchanged_single("all_to_all_single", True, MINUTE),
    "alltoall": exchanged(),
    "alltoall with options": exchanged(options("AllToAllOptions")),
    "barrier": waited("barrier"),
    "barrier with options": waited("barrier", options("BarrierOptions")),
    "barrier with a timeout": waited("barrier", MINUTE),
    "monitored_barrier": waited("monitored_barrier", MINUTE, True),
}


NO_ALLTOALL = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)  # gloo takes no list there


def skip_without_alltoall(name):
    if NO_ALLTOALL and name in ("alltoall", "alltoall with options", "all_to_all", "differentiable"):
        pytest.skip("gloo of this torch has no all_to_all of lists")


def on_both(name):
    """The case on the wire and on a bare gloo group, with what the wire counted, logged and still holds."""
    from tests.ranks.wire.test_methods import COLLECTIVES  # on the rank, because torch's options cannot be sent to it

    case = COLLECTIVES[name]
    rank, n = dist.get_rank(), dist.get_world_size()
    bare, world = dist.new_group(backend="gloo"), dist.group.WORLD
    events = []
    before = wire.counters()[world.group_name]
    stop = wire.subscribe(events.append)
    try:
        ours = case(world, rank, n)
    finally:
        stop()
    counted = wire.counters()[world.group_name] - before
    theirs = case(bare, rank, n)
    dist.destroy_process_group(bare)
    return ours, theirs, counted, [event.op for event in events], wire.pending()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_is_what_gloo_makes_of_it(ranks, name):
    skip_without_alltoall(name)
    for ours, theirs, counted, ops, pending in ranks.run(on_both, name):
        assert len(ours) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), (ours, theirs)
        assert (counted, len(ops), pending) == (1, 1, []), (counted, ops, pending)


def test_the_table_holds_every_method_that_the_wire_offers():
    """Methods of ProcessGroup that start an operation, and those that only name, time or end a group."""
    started = {name for name in vars(Methods) if not name.startswith("__")} - NOT_OPERATIONS - POINT_TO_POINT
    tested = {name.split()[0] for name in COLLECTIVES}
    assert started == tested


NOT_OPERATIONS = {"pg_name", "group_name", "getBackendName", "set_timeout", "_start_coalescing", "_end_coalescing"}
NOT_OPERATIONS |= {"shutdown", "abort", "_sendable", "_check_own_part", "_averaged", "_uneven"}
POINT_TO_POINT = {"send", "recv", "recv_anysource"}


def send_and_receive(form):
    rank, n = dist.get_rank(), dist.get_world_size()
    group, x, y = dist.group.WORLD, mine(rank), torch.empty(4)
    if form == "send, recv":
        works = [group.send([x], (rank + 1) % n, 3), group.recv([y], (rank - 1) % n, 3)]
    elif form == "one tensor, no tag":
        works = [group.send(x, (rank + 1) % n), group.recv(y, (rank - 1) % n)]
    elif form == "recv_anysource":
        works = [group.send([x], (rank + 1) % n, 4), group.recv_anysource([y], 4)]
    elif form == "batch_isend_irecv":
        there = dist.P2POp(dist.isend, x, (rank + 1) % n)
        works = dist.batch_isend_irecv([there, dist.P2POp(dist.irecv, y, (rank - 1) % n)])
    for work in works:
        work.wait()
    return y, works[-1].source_rank(), wire.pending()


@pytest.mark.parametrize("form", ["send, recv", "one tensor, no tag", "recv_anysource", "batch_isend_irecv"])
def test_messages_arrive_and_say_whence(world, form):
    n = len(world)
    if n == 1:
        return
    for rank, (y, source, pending) in enumerate(world.run(send_and_receive, form)):
        assert (source, pending) == ((rank - 1) % n, [])
        assert torch.equal(y, mine((rank - 1) % n))


def blocking_messages():
    rank, x = dist.get_rank(), torch.zeros(2)
    if rank == 0:
        dist.send(torch.ones(2), 1)
        return dist.recv(x), x.tolist()
    return dist.recv(x, 0), x.tolist(), dist.send(x + 1, 0, tag=0)


def test_blocking_send_and_receive(ranks):
    assert ranks[:2].run(blocking_messages) == [(1, [2.0, 2.0]), (0, [1.0, 1.0], None)]


def objects():
    rank, n = dist.get_rank(), dist.get_world_size()
    everyone, scattered, broadcast = [None] * n, [None], [f"from {rank}"]
    gathered = [None] * n if rank == 0 else None
    dist.all_gather_object(everyone, {"rank": rank})
    dist.scatter_object_list(scattered, [f"for {r}" for r in range(n)] if rank == 0 else None, src=0)
    dist.broadcast_object_list(broadcast, src=n - 1)
    dist.gather_object(rank, gathered, dst=0)
    if n > 1 and rank == 0:
        dist.send_object_list(["an object"], 1)
    received = [None]
    if rank == 1:
        dist.recv_object_list(received, 0)
    return everyone, scattered, broadcast, gathered, received


def test_object_collectives(world):
    n = len(world)
    for rank, (everyone, scattered, broadcast, gathered, received) in enumerate(world.run(objects)):
        assert everyone == [{"rank": r} for r in range(n)]
        assert (scattered, broadcast) == ([f"for {rank}"], [f"from {n - 1}"])
        assert gathered == (list(range(n)) if rank == 0 else None)
        assert received == (["an object"] if rank == 1 else [None])


def coalescing():
    rank = dist.get_rank()
    x, y = mine(rank), mine(rank, 2)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return x, y


def test_the_coalescing_manager(ranks):
    for x, y in ranks.run(coalescing):
        assert torch.equal(x, sum(mine(r) for r in range(4))) and torch.equal(y, sum(mine(r, 2) for r in range(4)))


def sub_groups():
    rank = dist.get_rank()
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
    group = odd if rank % 2 else even
    x = mine(rank)
    dist.all_reduce(x, group=group)
    dist.broadcast(y := mine(rank), src=2 + rank % 2, group=group)
    return x, y, group.group_name, group.pg_name, dist.get_process_group_ranks(group), dist.get_backend(group)


def test_sub_groups(ranks):
    results = ranks.run(sub_groups)
    for rank, (x, y, name, pg_name, members, backend) in enumerate(results):
        assert torch.equal(x, mine(rank % 2) + mine(rank % 2 + 2)) and torch.equal(y, mine(rank % 2 + 2))
        assert (name == pg_name, members, backend) == (True, [rank % 2, rank % 2 + 2], "wire")
    assert results[0][2] == results[2][2] != results[1][2] == results[3][2]


def async_works():
    x, y = mine(dist.get_rank()), mine(dist.get_rank())
    work = dist.all_reduce(x, async_op=True)
    future = dist.all_reduce(y, async_op=True).get_future()
    value, waited = future.wait(), work.wait()
    return x, value[0], waited, work.is_completed(), work.is_success(), work.exception(), work.result()[0] is x


def test_an_async_operation_can_be_waited_for_in_both_ways(ranks):
    expected = sum(mine(r) for r in range(4))
    for x, value, *states in ranks.run(async_works):
        assert torch.equal(x, expected) and torch.equal(value, expected)
        assert states == [True, True, True, None, True]


def later_on():
    """A chain on the future of an operation that other ranks join only later."""
    rank, bare = dist.get_rank(), dist.new_group(backend="gloo")
    x = mine(rank)
    if rank == 0:
        future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    dist.barrier(group=bare)
    if rank > 0:
        future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    result = future.wait()
    dist.destroy_process_group(bare)
    return result


def test_a_chain_on_a_future_runs_when_everyone_has_come(ranks):
    for result in ranks[:3].run(later_on):
        assert torch.equal(result, 2 * sum(mine(r) for r in range(3)))


def public_monitored_barrier():
    bare = dist.new_group(backend="gloo")
    before = wire.counters()["0"]
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=MINUTE, wait_all_ranks=True)
    dist.monitored_barrier(bare)
    return wire.counters()["0"] - before


def test_monitored_barrier_of_torch_takes_the_wire_for_gloo(ranks):
    assert ranks[:2].run(public_monitored_barrier) == [2, 2]


def refused(form):
    rank, x = dist.get_rank(), torch.ones(4, 4)
    before = wire.counters()
    try:
        if form == "self":
            dist.isend(x, rank)
        elif form == "strided":
            dist.isend(x.t()[:, :2], (rank + 1) % 2)
        elif form == "no such rank":
            dist.group.WORLD.recv([x], 7)
        elif form == "gloo's own":
            dist.all_reduce(x.to_sparse_csr())
    except (ValueError, RuntimeError) as error:
        return str(error), wire.pending(), wire.counters() == before
    return None


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("self", "cannot send to or from itself"),
        ("strided", "x.contiguous()"),
        ("no such rank", "there is no rank 7 in a group of 2"),
        ("gloo's own", ""),
    ],
)
def test_what_cannot_be_issued_leaves_nothing_behind(ranks, form, words):
    for answer in ranks[:2].run(refused, form):
        assert answer is not None and words in answer[0], answer
        assert answer[1] == []
    assert ranks[:2].run(dist.get_rank) == [0, 1]
