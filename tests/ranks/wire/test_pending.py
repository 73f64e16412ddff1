"""`pending` says for whom an operation waits: the pool's exact deadlock detection lives on it.

A bare gloo group is the side channel that brings the ranks to the same place without touching what is looked at.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from helpers.ranks.wire import wire
from helpers.ranks.wire.gloo import ranks_needed_by
from tests.ranks.wire.test_methods import skip_without_alltoall


@contextmanager
def side_channel():
    """Yields a function that waits for every rank."""
    bare = dist.new_group(backend="gloo")
    yield lambda: dist.barrier(group=bare)
    dist.barrier(group=bare)
    dist.destroy_process_group(bare)


def messages():
    """A group of its own: after a burst in the world's group, nobody can say any more whose message is missing."""
    return dist.new_group()


def issue(name, rank, n, root):
    x, parts = torch.ones(4), [torch.ones(4) for _ in range(n)]
    own = parts if rank == root else None
    return {
        "all_reduce": lambda: dist.all_reduce(x, async_op=True),
        "broadcast": lambda: dist.broadcast(x, root, async_op=True),
        "reduce": lambda: dist.reduce(x, root, async_op=True),
        "all_gather": lambda: dist.all_gather(parts, x, async_op=True),
        "gather": lambda: dist.gather(x, own, root, async_op=True),
        "scatter": lambda: dist.scatter(x, own, root, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts, async_op=True),
        "all_to_all": lambda: dist.all_to_all(parts, [x] * n, async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
    }[name]()


def one_absent(name, absent, root):
    """Everyone but `absent` issues the operation. Who is missing, for whom it completed; then the absent rank comes."""
    rank, n = dist.get_rank(), dist.get_world_size()
    with side_channel() as meet:
        work = issue(name, rank, n, root) if rank != absent else None
        meet()
        missing = [op.missing for op in wire.pending()]
        if work is not None and missing in ([], [()]):
            work.wait()  # nobody is missing, so this must end while `absent` is still away
            missing = []
        done = work is not None and work.is_completed()
        meet()
        work = work or issue(name, rank, n, root)
        work.wait()
    return missing, done, wire.pending()


CASES = [("all_reduce", 0), ("reduce", 0), ("all_gather", 0), ("reduce_scatter", 0), ("all_to_all", 0), ("barrier", 0)]
CASES += [(name, root) for name in ("broadcast", "gather", "scatter") for root in (0, 1)]


@pytest.mark.parametrize(("name", "root"), CASES)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_absent_rank_is_missing_exactly_where_gloo_waits_for_it(ranks, num_ranks, name, root):
    skip_without_alltoall(name)
    for absent in range(num_ranks):
        for rank, (missing, done, left) in enumerate(ranks[:num_ranks].run(one_absent, name, absent, root)):
            assert left == []
            if rank == absent:
                assert missing == []
            else:
                assert missing == ([] if done else [(absent,)]), (rank, absent, missing, done)


def receive_first():
    rank, n = dist.get_rank(), dist.get_world_size()
    group = messages()
    with side_channel() as meet:
        work = dist.irecv(torch.empty(2), (rank + 1) % n, group=group)
        meet()
        before = wire.pending()
        meet()
        other = dist.isend(torch.ones(2), (rank - 1) % n, group=group)
        work.wait(), other.wait()
    return before, wire.pending()


def test_a_receive_waits_for_its_sender(world):
    n = len(world)
    if n == 1:
        return
    for rank, (before, after) in enumerate(world.run(receive_first)):
        assert [(op.op, op.missing, op.peer) for op in before] == [("recv", ((rank + 1) % n,), (rank + 1) % n)]
        assert after == []


def send_first():
    rank = dist.get_rank()
    group = messages()
    with side_channel() as meet:
        works = [dist.isend(torch.ones(2), 1, tag=tag, group=group) for tag in (5, 6)] if rank == 0 else []
        meet()
        first = [(op.op, op.missing) for op in wire.pending()]
        meet()
        if rank == 1:
            dist.recv(torch.empty(2), 0, tag=6, group=group)
        meet()
        second = [op.missing for op in wire.pending()]
        meet()
        if rank == 1:
            dist.recv(torch.empty(2), 0, tag=5, group=group)
        for work in works:
            work.wait()
    return first, second


def test_a_send_waits_for_its_receiver_and_tags_are_told_apart(ranks):
    """gloo's send is a rendezvous. After the receive with tag 6, only the send with tag 5 is missing its other side."""
    sender, receiver = ranks[:2].run(send_first)
    assert sender[0] == [("send", (1,)), ("send", (1,))] and receiver[0] == []
    assert [missing for missing in sender[1] if missing] == [(1,)]


def several_messages():
    """Rank 0 posts three receives, rank 1 sends two of them: the third is missing."""
    rank = dist.get_rank()
    group = messages()
    with side_channel() as meet:
        works = [dist.irecv(torch.empty(2), 1, group=group) for _ in range(3)] if rank == 0 else []
        if rank == 1:
            dist.send(torch.ones(2), 0, group=group)
            dist.send(torch.ones(2), 0, group=group)
        meet()
        missing = [op.missing for op in wire.pending() if op.missing]
        meet()
        if rank == 1:
            dist.send(torch.ones(2), 0, group=group)
        for work in works:
            work.wait()
    return missing


def test_messages_are_matched_one_by_one(ranks):
    assert ranks[:2].run(several_messages) == [[(1,)], []]


def from_anyone():
    rank = dist.get_rank()
    group = messages()
    with side_channel() as meet:
        work = dist.irecv(torch.empty(2), group=group) if rank == 1 else None
        meet()
        nobody = [(op.missing, op.any_of, op.peer) for op in wire.pending()]
        meet()
        if rank == 2:
            dist.send(torch.ones(2), 1, group=group)
        if work is not None:
            work.wait()
    return nobody


def test_a_receive_from_anyone_waits_for_one_of_all_others(ranks):
    assert ranks[:3].run(from_anyone) == [[], [((0, 2), True, None)], []]


def in_a_sub_group():
    rank = dist.get_rank()
    group = dist.new_group([1, 3])
    with side_channel() as meet:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True) if rank == 3 else None
        meet()
        found = [(op.group, op.group_ranks, op.missing, op.sequence) for op in wire.pending()]
        meet()
        if rank == 1:
            dist.all_reduce(torch.ones(1), group=group)
        if work is not None:
            work.wait()
    return found, group.group_name if rank % 2 else None


def test_missing_ranks_are_global_ranks(ranks):
    results = ranks.run(in_a_sub_group)
    assert results[3] == ([(results[3][1], (1, 3), (1,), 0)], results[3][1])
    assert [found for found, _ in results[:3]] == [[], [], []]


def who_waits():
    """A thread is inside wait() for the second of two operations."""
    import threading

    rank = dist.get_rank()
    with side_channel() as meet:
        works, waiter = [], None
        if rank == 0:
            works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
            waiter = threading.Thread(target=works[1].wait)
            waiter.start()
            while works[1].num_waiting == 0:
                pass
        states = [(op.sequence, op.waiting, op.site[2], op.age >= 0) for op in wire.pending()]
        meet()
        if rank == 1:
            for _ in range(2):
                dist.all_reduce(torch.ones(1))
        for work in works:
            work.wait()
        if waiter:
            waiter.join()
    return states


def test_the_operation_that_is_waited_for_is_marked(ranks):
    states = ranks[:2].run(who_waits)[0]
    assert [(waiting, fresh) for _, waiting, _, fresh in states] == [(False, True), (True, True)]
    assert states[1][0] == states[0][0] + 1 and states[0][2] == "who_waits" or "listcomp" in states[0][2]


def counts():
    before = wire.counters()["0"]
    dist.all_reduce(torch.ones(1))
    group = dist.new_group([0, 1])
    dist.barrier(group=group)
    return wire.counters()["0"] - before, wire.counters()[group.group_name]


def test_counters_count_collectives_of_each_group(ranks):
    assert ranks[:2].run(counts) == [(1, 1), (1, 1)]


# Who was still blocked after one of four ranks stayed away, seen on gloo of torch 2.13: rank -> the ranks it needs.
BROADCAST = {0: {1, 2}, 1: {0, 3}, 2: {0}, 3: {0, 1}}


@pytest.mark.parametrize("root", range(4))
def test_a_broadcast_needs_its_branch_of_the_tree(root):
    for place, needs in BROADCAST.items():
        assert set(ranks_needed_by("broadcast", root, (place + root) % 4, 4)) == {(p + root) % 4 for p in needs}


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_a_gather_or_scatter_needs_its_root_and_the_root_everyone(name):
    assert [ranks_needed_by(name, 1, rank, 3) for rank in range(3)] == [[1], [0, 2], [1]]


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_everything_else_needs_everyone(name):
    assert [ranks_needed_by(name, 0, rank, 3) for rank in range(3)] == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize("size", range(1, 18))
def test_in_a_broadcast_every_rank_hangs_on_the_root(size):
    for rank in range(1, size):
        needs = ranks_needed_by("broadcast", 0, rank, size)
        assert 0 in needs and rank not in needs and max(needs) < size
