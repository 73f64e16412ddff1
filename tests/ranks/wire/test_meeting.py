"""Ranks that make groups or wait for a key of a store: mistakes are named at once, and right programs raise nothing."""

from __future__ import annotations

import contextlib
import datetime
import io
import re
import threading
import time

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError
from helpers.ranks.wire import wire


def failed(ranks, function, *args) -> RankError:
    """The error of a run, after which the ranks go on with their variables."""
    with pytest.raises(RankError) as caught:
        ranks.run(function, *args)
    assert "variables are kept" in str(caught.value), str(caught.value)
    assert ranks.run(dist.get_rank) == [0, 1, 2, 3]
    return caught.value


# -- calls of new_group that differ ------------------------------------------------------------------------------------
def each_its_own():
    mine = [0, 3] if dist.get_rank() in (0, 3) else [1, 2]
    dist.all_reduce(torch.ones(1), group=dist.new_group(mine))


def one_differs():
    dist.barrier(dist.new_group([0, 2] if dist.get_rank() == 2 else [0, 1]))


def another_order():
    pairs = [[0, 1], [2, 3]]
    return [dist.new_group(pair) for pair in (pairs[::-1] if dist.get_rank() == 3 else pairs)]


def an_order_of_its_own():
    dist.new_group([1, 0, 2] if dist.get_rank() == 3 else [0, 1, 2], sort_ranks=False)


def test_groups_that_each_rank_makes_for_itself_are_named_at_once(ranks):
    text = str(failed(ranks, each_its_own))
    assert re.search(r"call \d+ of new_group differs", text)
    assert "new_group([0, 3])" in text and "new_group([1, 2])" in text and "test_meeting.py line" in text
    assert "also for groups that it is not in" in text


@pytest.mark.parametrize(("function", "rank"), [(one_differs, 2), (another_order, 3), (an_order_of_its_own, 3)])
def test_the_rank_whose_call_differs_is_named(ranks, function, rank):
    if function is an_order_of_its_own and not takes("sort_ranks"):
        pytest.skip("this torch always sorts the ranks")
    error = failed(ranks, function)
    assert (error.kind, error.rank) == ("mismatch", rank), str(error)


def takes(name: str) -> bool:
    return name in dist.new_group.__wrapped__.__code__.co_varnames


def makes_fewer(odd):
    if dist.get_rank() != odd:
        dist.new_group([0, 1])


@pytest.mark.parametrize(("odd", "kind"), [(1, "hang"), (3, "mismatch")])
def test_a_rank_that_makes_a_group_less_is_named_whether_it_is_in_it_or_not(ranks, odd, kind):
    error = failed(ranks, makes_fewer, odd)
    assert error.kind == kind and f"rank {odd}" in str(error), str(error)


def test_ranks_that_take_no_part_in_a_cell_lack_its_groups(ranks):
    with pytest.raises(RankError) as caught, contextlib.redirect_stdout(io.StringIO()):
        ranks.cell("dist.new_group([0, 1])", [0, 1])
    assert "rank 2 never made call 1" in str(caught.value), str(caught.value)


def raises_before(odd):
    if dist.get_rank() == odd:
        raise ValueError("a bad batch")
    dist.new_group()


def test_ranks_that_make_a_group_are_shown_where_another_one_raises(ranks):
    error = failed(ranks, raises_before, 2)
    assert error.kind == "exception" and "ranks 0, 1, 3 wait in new_group" in str(error)


def a_group_beside_a_collective():
    dist.all_reduce(torch.ones(1)) if dist.get_rank() == 0 else dist.new_group()


def test_a_group_and_a_collective_wait_for_each_other(ranks):
    text = str(failed(ranks, a_group_beside_a_collective))
    assert "rank 0 waits in all_reduce" in text and "ranks 1-3 wait in new_group" in text


def counts_that_differ():
    """Names of local groups contain how many groups the process has made."""
    rank = dist.get_rank()
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    if rank in (0, 1):
        dist.new_group([0, 1], use_local_synchronization=True)


def test_local_groups_with_other_names_never_meet(ranks):
    text = str(failed(ranks, counts_that_differ))
    assert "the ranks that have not finished wait for each other" in text and "ranks 0, 1 wait in new_group" in text


# -- right programs ----------------------------------------------------------------------------------------------------
def groups_of_every_kind():
    rank, before = dist.get_rank(), wire.counters()["0"]
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    own, _ = dist.new_subgroups(2)
    other, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    local = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    alone = dist.new_group([2, 3], timeout=datetime.timedelta(seconds=50 + rank))  # each rank has its own timeout
    bare = dist.new_group(backend="gloo")
    for group in (mesh["dp"].get_group(), mesh["tp"].get_group(), own, other, local, bare):
        dist.all_reduce(torch.ones(1), group=group)
    if rank >= 2:
        dist.all_reduce(torch.ones(1), group=alone)
    return wire.counters()["0"] - before, wire.pending()


def test_right_programs_raise_nothing_and_count_as_before(ranks):
    assert ranks.run(groups_of_every_kind) == [(0, [])] * 4


def groups_of_threads():
    """In the order of the calls; without an order, torch itself names the groups differently on each rank."""
    rank, sums, turns = dist.get_rank(), [], [threading.Event() for _ in range(3)]

    def make(turn):
        turns[turn].wait()
        group = dist.new_group([[0, 1, 2, 3], [rank // 2 * 2, rank // 2 * 2 + 1]][turn], use_local_synchronization=turn)
        turns[turn + 1].set()
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        sums.append(x.item())

    threads = [threading.Thread(target=make, args=(turn,)) for turn in range(2)]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        thread.join()
    return sorted(sums)


def test_threads_may_make_groups(ranks):
    assert ranks.run(groups_of_threads) == [[2.0, 4.0]] * 4


def comes_late():
    if dist.get_rank() == 1:
        time.sleep(1.5)
    dist.barrier(dist.new_group())


def test_a_rank_that_comes_late_is_waited_for(ranks):
    ranks.run(comes_late)


# -- stores ------------------------------------------------------------------------------------------------------------
def key_of_nobody(call):
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.get("nobody") if call == "get" else store.wait(["nobody"])


@pytest.mark.parametrize("call", ["get", "wait"])
def test_a_key_that_nobody_sets_is_named(ranks, call):
    text = str(failed(ranks, key_of_nobody, call))
    assert "without calling the store.set that others wait for" in text and f"rank 0 waits in store.{call}" in text


def keys_of_all():
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    if rank == 2:
        time.sleep(1)
    store.set(f"late {rank}", str(rank))
    store.wait([f"late {other}" for other in range(4)])
    return [store.get(f"late {other}") for other in range(4)]


def test_a_key_that_comes_late_is_waited_for(ranks):
    assert ranks.run(keys_of_all) == [[b"0", b"1", b"2", b"3"]] * 4


def key_with_a_limit():
    store, start = dist.distributed_c10d._get_default_store(), time.monotonic()
    dist.barrier()
    with pytest.raises(RuntimeError):
        store.wait(["nobody"], datetime.timedelta(seconds=0.2))
    return time.monotonic() - start


def test_a_limit_of_a_store_is_kept(ranks):
    assert all(0.2 <= seconds < 60 for seconds in ranks.run(key_with_a_limit))
