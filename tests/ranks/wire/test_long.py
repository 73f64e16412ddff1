"""Long runs: rings that come round, ranks that run ahead, many groups and threads; and works handed out as they are."""

from __future__ import annotations

import gc
import random
import threading
import weakref

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError
from helpers.ranks.board.board import CHANNEL_RECORDS, RECORDS
from helpers.ranks.wire import wire


def more_than_a_ring():
    x = torch.ones(1)
    for _ in range(2 * RECORDS + 10):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return x.item(), wire.pending()


def test_the_ring_comes_round(ranks):
    assert ranks[:2].run(more_than_a_ring) == [(1.0, [])] * 2


def mismatch_after_a_ring():
    for _ in range(RECORDS + 5):
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(2 + dist.get_rank()))


def test_a_mismatch_is_found_in_the_second_round_too(ranks):
    with pytest.raises(RankError) as caught:
        ranks[:2].run(mismatch_after_a_ring)
    assert caught.value.kind == "mismatch", str(caught.value)


def far_ahead():
    """Rank 0 posts a ring and a half before rank 1 posts anything: it is held back, and nothing is lost."""
    rank, n = dist.get_rank(), RECORDS * 3 // 2
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["ahead"])
    works = []
    for i in range(n):
        if rank == 0 and i == RECORDS // 2:
            store.set("ahead", "1")
        works.append(dist.all_reduce(torch.ones(1), async_op=True))
    for work in works:
        work.wait()
    return wire.counters()["0"] >= n, wire.pending()


def test_a_rank_far_ahead_is_held_back(ranks):
    assert ranks[:2].run(far_ahead) == [(True, [])] * 2


def burst_of_messages():
    rank, n = dist.get_rank(), CHANNEL_RECORDS * 2
    group = dist.new_group([0, 1])  # its own: after a burst nobody knows any more who waits for whom
    store = dist.distributed_c10d._get_default_store()
    kind = dist.isend if rank == 0 else dist.irecv
    if rank == 1:
        store.wait(["sent"])
    tensors = [torch.full((1,), float(i)) if rank == 0 else torch.empty(1) for i in range(n)]
    works = [kind(tensor, 1 - rank, group=group) for tensor in tensors]
    if rank == 0:
        store.set("sent", "1")
    for work in works:
        work.wait()
    return [tensor.item() for tensor in tensors] == list(range(n)), wire.pending()


def test_more_messages_than_a_ring_arrive_in_order(ranks):
    assert ranks[:2].run(burst_of_messages) == [(True, [])] * 2


def random_program(seed):
    """The same random operations on every rank, on three groups, sync and async, with messages in between."""
    chance, rank, n = random.Random(seed), dist.get_rank(), dist.get_world_size()
    groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group(list(range(1, n)))]
    waiting = []
    for _ in range(150):
        which, kind, size, tag = (chance.randrange(limit) for limit in (3, 6, 50, 3))
        group, size, later, first = groups[which], size + 1, chance.random() < 0.5, chance.random()
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            continue
        members = dist.get_process_group_ranks(group)
        x, root = torch.full((size,), float(rank)), members[size % len(members)]
        if kind == 0:
            work, expected = dist.all_reduce(x, group=group, async_op=True), float(sum(members))
        elif kind == 1:
            work, expected = dist.broadcast(x, root, group=group, async_op=True), float(root)
        elif kind == 2:
            parts = [torch.full((size,), float(rank)) for _ in members]
            work, expected = dist.reduce_scatter(x, parts, group=group, async_op=True), float(sum(members))
        elif kind == 3:
            mine = [torch.full((size,), 7.0) for _ in members] if rank == root else None
            work, expected = dist.scatter(x, mine, root, group=group, async_op=True), 7.0
        else:
            place = members.index(rank)
            there, back = members[(place + 1) % len(members)], members[(place - 1) % len(members)]
            waiting.append((dist.isend(torch.full((size,), float(rank)), there, group=group, tag=tag), None, None))
            work, expected = dist.irecv(x, back, group=group, tag=tag), float(back)
        waiting.append((work, x, expected))
        while waiting and not later:
            settle(waiting.pop(int(first * len(waiting))))
    for each in waiting:
        settle(each)
    return len(wire.pending())


def settle(item):
    work, x, expected = item
    work.wait()
    assert x is None or set(x.tolist()) == {expected}, (x, expected)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_run_through(ranks, seed):
    assert ranks[: 3 + seed % 2].run(random_program, seed) == [0] * (3 + seed % 2)


def from_many_threads():
    """Each thread has its own group; their operations interleave in any order."""
    groups = [dist.new_group() for _ in range(4)]
    failures = []

    def work(group):
        try:
            for _ in range(50):
                x = torch.ones(3)
                dist.all_reduce(x, group=group)
                assert x.tolist() == [2.0] * 3
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures, wire.pending()


def test_threads_with_groups_of_their_own(ranks):
    assert ranks[:2].run(from_many_threads) == [([], [])] * 2


# -- native works: what inner="nccl" does, tried on gloo ---------------------------------------------------------------
def handed_out():
    """As with NCCL: compared and logged, but the real group's own work goes to the caller."""
    group, events = dist.group.WORLD.group, []
    group.is_native = True
    stop = wire.subscribe(events.append)
    try:
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        kind = type(work).__name__
        work.wait()
        dist.monitored_barrier()
    finally:
        group.is_native = False
        stop()
    return kind, x.tolist(), [event.op for event in events], wire.pending()


def test_native_works_are_logged_and_handed_out(ranks):
    assert ranks[:2].run(handed_out) == [("Work", [2.0, 2.0], ["all_reduce", "barrier"], [])] * 2


def native_mismatch():
    dist.group.WORLD.group.is_native = True
    dist.all_reduce(torch.ones(2 + (dist.get_rank() == 2)))
    dist.barrier()


def test_native_works_are_compared_before_they_are_issued(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(native_mismatch)
    assert (caught.value.kind, caught.value.rank) == ("mismatch", 2), str(caught.value)


def outlive_their_operation(async_op):
    """Names of tensors that are still there once nobody has them, before the garbage collector comes."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gc.collect()
    gc.disable()
    try:
        part, whole = torch.ones(2), torch.ones(2 * dist.get_world_size())
        work = scatter(part, whole, async_op=async_op)
        if async_op:
            work.wait()
        watched = {"part": weakref.ref(part), "whole": weakref.ref(whole)}
        del part, whole, work
        return [name for name, tensor in watched.items() if tensor() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize("async_op", [False, True])
def test_tensors_do_not_outlive_their_operation(ranks, async_op):
    assert ranks[:2].run(outlive_their_operation, async_op) == [[], []]
