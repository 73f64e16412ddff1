"""Operations that do not fit are refused before gloo gets them, with the rank and the line to blame.

Gloo would return wrong values for some of these, hang in others, and abort the process in most.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError
from helpers.ranks.wire import wire

FLOAT, DOUBLE = torch.float32, torch.float64


def all_reduce(rank, odd):
    dist.all_reduce(torch.ones(6 if rank == odd else 4))


def all_reduce_dtype(rank, odd):
    dist.all_reduce(torch.ones(4, dtype=DOUBLE if rank == odd else FLOAT))


def all_reduce_op(rank, odd):
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == odd else dist.ReduceOp.SUM)


def all_reduce_transposed(rank, odd):
    dist.all_reduce(torch.ones(2, 3) if rank == odd else torch.ones(3, 2))


def all_reduce_async(rank, odd):
    works = [dist.all_reduce(torch.ones(4 + (rank == odd and i == 20)), async_op=True) for i in range(50)]
    for work in works:
        work.wait()


def all_reduce_future(rank, odd):
    futures = [dist.all_reduce(torch.ones(4 + (rank == odd)), async_op=True).get_future() for _ in range(2)]
    for future in futures:
        future.wait()


def broadcast_root(rank, odd):
    dist.broadcast(torch.ones(4), src=1 if rank == odd else 0)


def reduce_root(rank, odd):
    dist.reduce(torch.ones(4), dst=1 if rank == odd else 0)


def another_operation(rank, odd):
    x = torch.ones(4)
    dist.broadcast(x, src=0) if rank == odd else dist.all_reduce(x)


def skipped(rank, odd):
    if rank != odd:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def all_gather(rank, odd):
    dist.all_gather([torch.empty(4 + (rank == odd)) for _ in range(4)], torch.ones(4 + (rank == odd)))


def gather(rank, odd):
    dist.gather(torch.ones(4 + (rank == odd)), [torch.empty(4) for _ in range(4)] if rank == 0 else None, dst=0)


def scatter(rank, odd):
    dist.scatter(torch.ones(4 + (rank == odd)), [torch.empty(4) for _ in range(4)] if rank == 0 else None, src=0)


def reduce_scatter_list(rank, odd):
    dist.reduce_scatter(torch.empty(2 + (rank == odd)), [torch.ones(2 + (rank == odd)) for _ in range(4)])


def coalesced(rank, odd):
    tensors = [torch.ones(3), torch.ones(2 + (rank == odd))]
    dist.group.WORLD.allreduce_coalesced(tensors)


def many_tensors(rank, odd):
    """The signature of a long list does not fit on the board: only its checksum does."""
    tensors = [torch.ones(3 + (i == 299 and rank == odd)) for i in range(300)]
    dist.group.WORLD.allreduce_coalesced(tensors)


CASES = [all_reduce, all_reduce_dtype, all_reduce_op, all_reduce_transposed, all_reduce_async, all_reduce_future]
CASES += [broadcast_root, reduce_root, another_operation, skipped, all_gather, gather, scatter, reduce_scatter_list]
CASES += [coalesced, many_tensors]


def raise_it(case, odd):
    case(dist.get_rank(), odd)


@pytest.mark.parametrize("odd", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_odd_one_out_is_named(ranks, case, odd):
    with pytest.raises(RankError) as caught:
        ranks.run(raise_it, case, odd)
    assert (caught.value.kind, caught.value.rank) == ("mismatch", odd), str(caught.value)
    assert "test_mismatch.py line" in str(caught.value)
    assert "variables are kept" in str(caught.value), "gloo let go of the old group"
    assert ranks.run(dist.get_rank) == [0, 1, 2, 3]


# -- two ranks: nobody can say who is wrong, but both lines are shown --------------------------------------------------
def exchange(rank):
    splits = [1, 1] if rank == 0 else [2, 1]
    dist.all_to_all_single(torch.empty(2 if rank == 0 else 3), torch.ones(2), splits, [1, 1])


def exchange_list(rank):
    size = 3 if rank == 0 else 2
    dist.all_to_all([torch.empty(size) for _ in range(2)], [torch.ones(size) for _ in range(2)])


def exchange_rows(rank):
    width = 3 + rank
    dist.all_to_all_single(torch.empty(2, width), torch.ones(2, width))


def send_too_much(rank):
    dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(3), 0)


def send_too_little(rank):
    dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.ones(3), 0)


def send_another_dtype(rank):
    dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(2, dtype=DOUBLE), 0)


def messages_in_the_wrong_order(rank):
    sizes = (2, 5) if rank == 0 else (5, 2)
    kind = dist.isend if rank == 0 else dist.irecv
    works = [kind(torch.ones(size), 1 - rank) for size in sizes]
    for work in works:
        work.wait()


def batched_messages(rank):
    kinds = (dist.isend, dist.irecv)
    ops = [dist.P2POp(kind, torch.ones(4 + rank), 1 - rank) for kind in kinds]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


PAIRS = {
    exchange: ("rank 0 sends 1 row to rank 1", "rank 1 expects 2 rows from it"),
    exchange_list: ("float32 (3,)", "float32 (2,)"),
    exchange_rows: ("float32 (3,)", "float32 (4,)"),
    send_too_much: ("float32 x 4", "float32 x 3"),
    send_too_little: ("float32 x 2", "float32 x 3"),
    send_another_dtype: ("float32 x 4", "float64 x 2"),
    messages_in_the_wrong_order: ("float32 x 2", "float32 x 5"),
    batched_messages: ("float32 x 4", "float32 x 5"),
}


def raise_pair(case):
    case(dist.get_rank())


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.__name__)
def test_two_ranks_that_do_not_fit(ranks, case):
    with pytest.raises(RankError) as caught:
        ranks[:2].run(raise_pair, case)
    assert caught.value.kind == "mismatch", str(caught.value)
    for words in PAIRS[case]:
        assert words in str(caught.value), str(caught.value)
    assert ranks[:2].run(dist.get_rank) == [0, 1]


def own_parts():
    rank, errors = dist.get_rank(), []
    for call in (
        lambda: dist.all_to_all_single(torch.empty(3), torch.ones(2), [2, 1] if rank == 0 else [1, 2], [1, 1]),
        lambda: dist.all_to_all([torch.empty(3), torch.empty(3)], [torch.ones(2), torch.ones(2)]),
    ):
        try:
            call()
        except ValueError as error:
            errors.append(str(error))
    return errors, wire.counters()["0"]


def test_a_rank_that_disagrees_with_itself_is_told_at_once(ranks):
    for rank, (errors, _) in enumerate(ranks[:2].run(own_parts)):
        assert [f"rank {rank} sends itself" in error for error in errors] == [True, True], errors


# -- who hears of it ---------------------------------------------------------------------------------------------------
def in_a_sub_group():
    rank = dist.get_rank()
    group = dist.new_group([1, 2, 3])
    if rank:
        dist.all_reduce(torch.ones(4 + (rank == 2)), group=group)


def test_a_sub_group_names_global_ranks(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(in_a_sub_group)
    assert (caught.value.kind, caught.value.rank) == ("mismatch", 2), str(caught.value)
    assert "the group of ranks 1-3" in str(caught.value)


def nobody_goes_on():
    """Rank 1 and its neighbours differ; rank 3 waits in another group for rank 0, which will never come."""
    rank = dist.get_rank()
    pair = dist.new_group([0, 3])
    told = []
    for _ in range(2):
        try:
            if rank == 3:
                dist.all_reduce(torch.ones(1), group=pair)
            else:
                dist.group.WORLD.allreduce([torch.ones(4 + (rank == 1))]).wait()
        except wire.WireError as error:
            told.append((error.kind, error.culprit))
    return told


def test_once_broken_every_group_and_every_later_operation_says_so(ranks):
    told = run_and_recover(ranks, nobody_goes_on)
    assert all(len(each) == 2 and {kind for kind, _ in each} == {"mismatch"} for each in told), told


def run_and_recover(ranks, function):
    """Results of a function that leaves unequal counts behind, which the pool would withhold."""
    results = []

    def keep():
        value = function()
        raise Kept(repr(value))

    with pytest.raises(RankError) as caught:
        ranks.run(keep)
    for text in caught.value.tracebacks.values():
        results.append(eval(text.rsplit("Kept: ", 1)[1]))
    with contextlib.suppress(RankError):
        ranks.run(dist.barrier)  # a mismatch that was caught on the ranks has broken the world all the same
    return results


class Kept(Exception):
    """Carries a value out of a world that will be made anew."""


def heard_of_it():
    """Whether this rank's all-reduce ended with the wire's error. What gloo had begun may have touched its tensor."""
    x = torch.ones(6 if dist.get_rank() == 1 else 4)
    try:
        dist.all_reduce(x)
    except wire.WireError as error:
        return error.kind
    return "finished"


def test_every_rank_hears_of_it_and_none_finishes(ranks):
    assert run_and_recover(ranks, heard_of_it) == ["mismatch"] * 4
