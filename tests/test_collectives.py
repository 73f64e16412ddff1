"""Collectives from send and receive: the right result on every rank, in every world, with no byte too many."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from helpers import collectives as ours
from helpers.observe.comms import record_comms
from helpers.predict.traffic.algorithms import schedule

ALGORITHMS = ["ring", "tree", "halving_doubling"]
OPS = ["sum", "avg", "max", "min", "prod"]
NUMELS = [0, 1, 2, 3, 10, 1003]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8]


def inputs(world_size, numel, dtype=torch.float64):
    """What each rank starts with: small whole numbers, which every type adds exactly."""
    make = [torch.Generator().manual_seed(seed) for seed in range(world_size)]
    return [torch.randint(0, 4, (numel,), generator=g).to(dtype) for g in make]


def reduced(tensors, op):
    stacked = torch.stack(tensors)
    if op == "avg":
        return stacked.mean(0)
    full = {"sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0), "prod": stacked.prod(0)}
    return full[op].to(stacked.dtype)


def me():
    return dist.get_rank(), dist.get_world_size()


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_of_any_size_and_operation(world, algorithm):
    def check():
        rank, n = me()
        for numel in NUMELS:
            for op in OPS:
                x = inputs(n, numel)[rank]
                ours.all_reduce(x, op, algorithm=algorithm)
                torch.testing.assert_close(x, reduced(inputs(n, numel), op))
        return "same"

    assert set(world.run(check)) == {"same"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_of_any_type(world, algorithm):
    def check():
        rank, n = me()
        for dtype in DTYPES:
            for op in ("sum", "max", "min", "prod"):
                x = inputs(n, 10, dtype)[rank]
                ours.all_reduce(x, op, algorithm=algorithm)
                assert torch.equal(x, reduced(inputs(n, 10, dtype), op)), (dtype, op)

    world.run(check)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_rank_ends_with_the_same_bits(ranks, algorithm):
    def reduce_noise():
        x = torch.randn(1003, generator=torch.Generator().manual_seed(dist.get_rank()))
        ours.all_reduce(x, "avg", algorithm=algorithm)
        return x

    first, *others = ranks.run(reduce_noise)
    assert all(torch.equal(first, other) for other in others)


def test_a_tensor_with_a_shape_keeps_it(world):
    def check():
        x = torch.ones(2, 3, 5)
        ours.all_reduce(x)
        return x

    assert all(torch.equal(x, torch.full((2, 3, 5), float(len(world)))) for x in world.run(check))


def test_broadcast_and_reduce_for_every_root(world):
    def check():
        rank, n = me()
        for numel in NUMELS:
            for root in range(n):
                x = inputs(n, numel)[rank]
                ours.broadcast(x, src=root)
                assert torch.equal(x, inputs(n, numel)[root])
                for op in OPS:
                    x = inputs(n, numel)[rank]
                    ours.reduce(x, dst=root, op=op)
                    if rank == root:
                        torch.testing.assert_close(x, reduced(inputs(n, numel), op))

    world.run(check)


def test_reduce_scatter_leaves_the_input_and_gives_each_rank_its_chunk(world):
    def check():
        rank, n = me()
        for numel in NUMELS:
            for op in OPS:
                x, whole = inputs(n, numel)[rank], reduced(inputs(n, numel), op)
                mine = torch.tensor_split(whole, n)[rank]
                out = torch.full_like(mine, -1)
                ours.reduce_scatter(out, x, op)
                torch.testing.assert_close(out, mine)
                assert torch.equal(x, inputs(n, numel)[rank])

    world.run(check)


def test_all_gather_of_chunks_that_may_differ_by_one(world):
    def check():
        rank, n = me()
        for numel in NUMELS:
            whole = torch.arange(numel)
            out = torch.full_like(whole, -1)
            ours.all_gather(out, torch.tensor_split(whole, n)[rank])
            assert torch.equal(out, whole)

    world.run(check)


def test_all_to_all_transposes_who_holds_what(world):
    def check():
        rank, n = me()
        x = torch.tensor([[10 * rank + to] * 3 for to in range(n)])
        out = torch.empty_like(x)
        ours.all_to_all(out, x)
        assert out.tolist() == [[10 * source + rank] * 3 for source in range(n)]

    world.run(check)


def test_all_to_all_with_a_size_for_each_pair(world):
    def check():
        rank, n = me()
        gives, gets = [rank + to for to in range(n)], [source + rank for source in range(n)]  # 0 for rank 0 to itself
        x = torch.cat([torch.full((count,), 10 * rank + to) for to, count in enumerate(gives)])
        out = torch.empty(sum(gets), dtype=x.dtype)
        ours.all_to_all(out, x, output_splits=gets, input_splits=gives)
        expected = [torch.full((count,), 10 * source + rank) for source, count in enumerate(gets)]
        assert torch.equal(out, torch.cat(expected))

    world.run(check)


def test_they_agree_with_torch(world):
    def check():
        rank, n = me()
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        for op in ("SUM", "MAX", "MIN", "PRODUCT", "AVG"):
            a, b = x.clone(), x.clone()
            ours.all_reduce(a, {"PRODUCT": "prod"}.get(op, op.lower()))
            dist.all_reduce(b, getattr(dist.ReduceOp, op))
            torch.testing.assert_close(a, b)
        a, b = torch.empty(n, 12, 4, dtype=x.dtype), torch.empty(n, 12, 4, dtype=x.dtype)
        ours.all_gather(a, x)
        dist.all_gather(list(b), x)
        assert torch.equal(a, b)

    world.run(check)


def test_leaves_that_need_gradients_are_written_in_place_too(ranks):
    def check():
        weight = torch.nn.Parameter(torch.ones(5))
        ours.all_reduce(weight)
        ours.broadcast(weight)
        return weight.detach()

    assert all(torch.equal(w, torch.full((5,), 2.0)) for w in ranks[:2].run(check))


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [[1, 3], [3, 1, 2], [2]])
def test_a_group_of_some_ranks_counts_from_zero_inside(ranks, members):
    def check():
        group, rank = dist.new_group(members), dist.get_rank()
        order = dist.get_process_group_ranks(group)
        if rank not in members:
            return
        place, data = order.index(rank), inputs(len(order), 10)
        for algorithm in ALGORITHMS:
            x = data[place].clone()
            ours.all_reduce(x, group=group, algorithm=algorithm)
            assert torch.equal(x, reduced(data, "sum"))
        x = data[place].clone()
        ours.broadcast(x, src=order[-1], group=group)
        assert torch.equal(x, data[-1])
        x = data[place].clone()
        ours.reduce(x, dst=order[-1], group=group)
        assert rank != order[-1] or torch.equal(x, reduced(data, "sum"))
        out = torch.empty(10, dtype=torch.float64)
        ours.all_gather(out, torch.tensor_split(data[0], len(order))[place], group=group)
        assert torch.equal(out, data[0])

    ranks.run(check)


def test_two_groups_work_side_by_side(ranks):
    def check():
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        x = torch.tensor([float(dist.get_rank())])
        ours.all_reduce(x, group=groups[dist.get_rank() % 2])
        return x.item()

    assert ranks.run(check) == [2.0, 4.0, 2.0, 4.0]


# -- bytes ------------------------------------------------------------------------------------------------------------


def sent_by(function):
    """Bytes and messages that this rank handed to send while `function` ran, as the wire saw them."""
    with record_comms() as recorder:
        function()
    assert set(recorder.log.ops()) <= {"send", "recv"}, "only send and receive may be used"
    return recorder.log.payload_bytes("send"), recorder.log.count("send")


def sent_elements(plan, rank, numel):
    """What this rank sends of a tensor of any size, which is cut as torch.tensor_split cuts."""
    sizes = [len(chunk) for chunk in torch.tensor_split(torch.zeros(numel), plan.num_chunks)]
    return sum(sum(sizes[one.first : one.last]) for one in plan.messages if one.sender == rank)


@pytest.mark.parametrize("numel", [1200, 1003, 3, 1, 0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_sends_exactly_what_its_schedule_says(world, algorithm, numel):
    plan = schedule("all_reduce", len(world), algorithm)
    sent = world.run(lambda: sent_by(lambda: ours.all_reduce(torch.ones(numel), algorithm=algorithm))[0])
    assert sent == [4 * sent_elements(plan, rank, numel) for rank in range(len(world))]


def test_a_ring_all_reduce_sends_two_n_minus_one_over_n_of_its_bytes(world):
    n, num_bytes = len(world), 4 * 1200
    for sent, messages in world.run(lambda: sent_by(lambda: ours.all_reduce(torch.ones(1200)))):
        assert sent == 2 * (n - 1) * num_bytes // n
        assert messages == 2 * (n - 1)


@pytest.mark.parametrize("numel", [1200, 1003])
def test_the_halves_of_the_ring_send_half(world, numel):
    def scatter_then_gather():
        rank, n = me()
        mine = torch.tensor_split(torch.zeros(numel), n)[rank].clone()
        scatter = sent_by(lambda: ours.reduce_scatter(mine, torch.ones(numel)))
        return scatter[0], sent_by(lambda: ours.all_gather(torch.ones(numel), mine))[0]

    for rank, sent in enumerate(world.run(scatter_then_gather)):
        plans = [schedule(half, len(world)) for half in ("reduce_scatter", "all_gather")]
        assert sent == tuple(4 * sent_elements(plan, rank, numel) for plan in plans)


def test_trees_send_whole_tensors_in_few_rounds(world):
    def both():
        return [sent_by(partial(call, torch.ones(100)))[0] for call in (ours.broadcast, ours.reduce)]

    for rank, sent in enumerate(world.run(both)):
        plans = [schedule(half, len(world)) for half in ("broadcast", "reduce")]
        assert sent == [4 * sent_elements(plan, rank, 100) for plan in plans]


def test_all_to_all_keeps_its_own_chunk(world):
    n = len(world)
    sent = world.run(lambda: sent_by(lambda: ours.all_to_all(torch.empty(n * 5), torch.ones(n * 5))))
    assert sent == [(4 * 5 * (n - 1), n - 1)] * n


# -- bad input --------------------------------------------------------------------------------------------------------


def refused(call):
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ours.all_reduce(torch.ones(3, 4).t()), "is not contiguous"),
        (lambda: ours.broadcast(torch.ones(10)[::2]), "stride (2,) is not contiguous"),
        (lambda: ours.all_reduce([1.0]), "tensor is a list"),
        (lambda: ours.all_reduce(torch.ones(3), "mean"), "op is 'mean', but it must be one of sum, avg, max, min,"),
        (lambda: ours.all_reduce(torch.ones(3, dtype=torch.int64), "avg"), "would drop fractions"),
        (lambda: ours.all_reduce(torch.ones(3), algorithm="star"), "algorithm is 'star'"),
        (lambda: ours.broadcast(torch.ones(3), src=7), "src=7 is a global rank outside the group [0, 1]"),
        (lambda: ours.reduce_scatter(torch.ones(3), torch.ones(4)), "output has 3 elements"),
        (lambda: ours.all_gather(torch.ones(5), torch.ones(5)), "input has 5 elements"),
        (lambda: ours.all_gather(torch.ones(4), torch.ones(2).double()), "both must be the same"),
        (lambda: ours.all_to_all(torch.ones(3), torch.ones(3)), "2 ranks do not divide; pad it, or pass input_splits"),
        (lambda: ours.all_to_all(torch.ones(4), torch.ones(4), [2, 2], [4]), "input_splits is [4]"),
        (lambda: ours.all_to_all(torch.ones(4), torch.ones(4), [2, 3], [2, 2]), "output has 4 elements"),
    ],
)
def test_bad_input_gets_a_sentence_before_anything_is_sent(ranks, call, words):
    for said in ranks[:2].run(refused, call):
        assert words in said


def test_a_root_outside_its_group_is_explained(ranks):
    def check():
        group = dist.new_group([1, 3])
        if dist.get_rank() == 1:
            return refused(lambda: ours.broadcast(torch.ones(2), src=0, group=group))
        if dist.get_rank() == 0:
            return refused(lambda: ours.all_reduce(torch.ones(2), group=group))

    said = ranks.run(check)
    assert "src=0 is a global rank outside the group [1, 3]" in said[1]
    assert "global rank 0 is not in this group" in said[0]


def test_without_ranks_it_says_where_to_call():
    with pytest.raises(ValueError, match="no process group yet"):
        ours.all_reduce(torch.ones(3))
