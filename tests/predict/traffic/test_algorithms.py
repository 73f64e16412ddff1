"""The messages of each algorithm, replayed: every rank ends up with what the collective promises."""

import pytest

from helpers.predict.traffic.algorithms import COLLECTIVES, algorithms, schedule
from helpers.quantities import costs
from helpers.specs import Link

SIZES = range(1, 18)


def end(collective, n, algorithm=None):
    return list(schedule(collective, n, algorithm).replay())[-1]


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling"])
@pytest.mark.parametrize("n", SIZES)
def test_all_reduce_brings_everything_to_everyone_once(algorithm, n):
    assert all(held == set(range(n)) for rank in end("all_reduce", n, algorithm) for held in rank)


@pytest.mark.parametrize("n", SIZES)
def test_reduce_scatter_finishes_chunk_r_on_rank_r(n):
    held = end("reduce_scatter", n)
    assert all(held[rank][rank] == set(range(n)) for rank in range(n))


@pytest.mark.parametrize("n", SIZES)
def test_all_gather_and_broadcast_copy_without_mixing(n):
    assert all(rank[chunk] == {chunk} for rank in end("all_gather", n) for chunk in range(n))
    assert all(rank[0] == {0} for rank in end("broadcast", n))


@pytest.mark.parametrize("n", SIZES)
def test_reduce_completes_at_its_root(n):
    assert end("reduce", n)[0][0] == set(range(n))


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"])
def test_a_rank_sends_and_receives_at_most_one_message_a_step(collective):
    for n in SIZES:
        plan = schedule(collective, n)
        for number in range(plan.num_steps):
            step = plan.step(number)
            assert len({m.sender for m in step}) == len({m.receiver for m in step}) == len(step) > 0


@pytest.mark.parametrize("wrong", [("all_to_all", 4, None), ("all_reduce", 0, None), ("all_gather", 4, "tree")])
def test_bad_input_gets_a_sentence(wrong):
    with pytest.raises(ValueError, match="known are|at least 1"):
        schedule(*wrong)
    with pytest.raises(ValueError, match="no schedule for 'all_to_all'; known are all_reduce"):
        algorithms("all_to_all")


PLANS = [(name, by, n) for name in COLLECTIVES for by in algorithms(name) for n in SIZES]
SIZE, LINK = 4e7, Link(latency=3e-5, bandwidth=1.25e9)


@pytest.mark.parametrize(("collective", "algorithm", "n"), PLANS)
def test_bytes_and_seconds_end_where_the_formulas_say(collective, algorithm, n):
    plan = schedule(collective, n, algorithm)
    sent = [plan.sent_bytes(rank, SIZE) for rank in range(n)]
    assert max(sent) == pytest.approx(costs.sent_bytes(collective, SIZE, n, algorithm))
    assert sum(sent) == pytest.approx(costs.total_bytes(collective, SIZE, n, algorithm))
    assert sum(plan.received_bytes(rank, SIZE) for rank in range(n)) == pytest.approx(sum(sent))
    assert plan.seconds(SIZE, LINK) == pytest.approx(costs.seconds(collective, SIZE, n, LINK, algorithm))
    assert plan.num_steps == costs.rounds(collective, n, algorithm)


def test_bytes_and_seconds_grow_step_by_step():
    plan, steps = schedule("all_reduce", 4), [0, 1, 2, 3, 4, 5, 6, 6]
    assert [plan.sent_bytes(0, SIZE, k) / 1e7 for k in range(8)] == steps
    assert [plan.seconds(SIZE, LINK, k) / LINK.seconds(1e7) for k in range(8)] == pytest.approx(steps)
    tree = schedule("reduce", 4)
    assert [tree.received_bytes(0, SIZE, k) / SIZE for k in range(3)] == [0, 1, 2]
    assert [tree.sent_bytes(3, SIZE, k) / SIZE for k in range(3)] == [0, 1, 1]


def test_complete_chunks_are_counted_a_rank():
    plan = schedule("all_reduce", 4)
    counts = [plan.complete_chunks(held) for held in plan.replay()]
    assert counts[0] == counts[2] == [0] * 4 and counts[3] == [1] * 4 and counts[6] == [4] * 4
    gather = schedule("all_gather", 3)
    assert [gather.complete_chunks(held) for held in gather.replay()] == [[1] * 3, [2] * 3, [3] * 3]
    reduce = schedule("reduce", 4)
    assert reduce.complete_chunks(list(reduce.replay())[-1]) == [1, 0, 0, 0]
