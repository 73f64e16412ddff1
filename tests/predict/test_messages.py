"""The messages of each algorithm, replayed: every rank ends up with what the collective promises."""

import pytest

from helpers.predict.messages import schedule

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


def test_chunks_cover_sizes_that_do_not_divide():
    plan = schedule("all_reduce", 4)
    assert plan.chunk_sizes(10) == [3, 3, 2, 2]
    assert plan.chunk_sizes(2) == [1, 1, 0, 0]
    assert sum(plan.sent_elements(rank, 10) for rank in range(4)) == 2 * 3 * 10


@pytest.mark.parametrize("wrong", [("all_to_all", 4, None), ("all_reduce", 0, None), ("all_gather", 4, "tree")])
def test_bad_input_gets_a_sentence(wrong):
    with pytest.raises(ValueError, match="known are|at least 1"):
        schedule(*wrong)
