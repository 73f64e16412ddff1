"""The schedules: their order for small cases by hand, their memory, and that each of them runs to its end."""

import pytest

from helpers.schedules import (
    ORDERS,
    eager_one_f_one_b,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    repeated,
    validate,
    zb_h1,
    zb_h2,
)


def row(schedule, rank):
    return " ".join(map(str, schedule.actions[rank]))


def test_naive_sends_one_micro_batch_through_all_stages_and_back():
    assert str(naive(2, 2)) == "rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1B0 1F1 1B1"


def test_gpipe_does_all_forwards_first():
    assert row(gpipe(2, 3), 0) == "0F0 0F1 0F2 0B0 0B1 0B2"


def test_one_f_one_b_warms_up_and_then_takes_turns():
    schedule = one_f_one_b(4, 6)
    assert row(schedule, 0) == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5"
    assert row(schedule, 3) == "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5"


def test_interleaved_passes_rounds_of_p_micro_batches_from_chunk_to_chunk():
    schedule = interleaved(4, 4, num_chunks=2)  # 2 ranks
    assert row(schedule, 0) == "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"
    assert row(schedule, 1) == "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"
    assert schedule.stages_of(1) == (1, 3)


def test_zero_bubble_is_the_formula_of_the_paper():
    assert row(zb_h1(3, 4), 1) == "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3"
    assert row(zb_h2(3, 4), 0) == "0F0 0F1 0F2 0F3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3"
    assert row(zb_h2(3, 4), 2) == "2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2W0 2W1 2W2 2W3"


@pytest.mark.parametrize("order", [naive, gpipe, one_f_one_b, zb_h1, zb_h2])
@pytest.mark.parametrize("num_stages", range(1, 9))
def test_it_runs_to_its_end_with_few_and_many_micro_batches(order, num_stages):
    for num_microbatches in range(1, 18):
        validate(order(num_stages, num_microbatches))


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_interleaved_runs_to_its_end(num_ranks, num_chunks):
    for rounds in range(1, 5):
        validate(interleaved(num_ranks * num_chunks, num_ranks * rounds, num_chunks))


def test_with_one_chunk_interleaved_is_one_f_one_b_with_a_longer_warm_up():
    assert interleaved(4, 8, num_chunks=1).in_flight(0) == 7
    assert sorted(interleaved(4, 8, 1).actions[0]) == sorted(one_f_one_b(4, 8).actions[0])


@pytest.mark.parametrize("p, m", [(4, 16), (8, 24), (2, 3), (4, 2)])
def test_micro_batches_in_memory(p, m):
    for rank in range(p):
        assert gpipe(p, m).in_flight(rank) == m
        assert one_f_one_b(p, m).in_flight(rank) == min(m, p - rank)
        assert naive(p, m).in_flight(rank) == 1


def test_zb_h1_holds_what_1f1b_holds_at_its_worst_rank_and_zb_h2_twice_that():
    """Qi et al. 2023, section 2.3: p micro-batches, and 2 p - 1."""
    assert {zb_h1(4, 16).in_flight(rank) for rank in range(4)} == {4}
    assert {zb_h2(4, 16).in_flight(rank) for rank in range(4)} == {7}


def test_interleaved_memory_is_what_the_memory_formula_says():
    from helpers.predict.memory.activations import microbatches_in_flight
    from helpers.specs import Plan

    schedule, plan = interleaved(8, 16, num_chunks=2), Plan(pp=4, num_chunks=2, num_microbatches=16)
    for rank in range(4):
        assert schedule.in_flight(rank) / 2 == microbatches_in_flight(plan, rank)


@pytest.mark.parametrize("name", ORDERS)
def test_a_size_that_is_no_count_gets_a_sentence(name):
    with pytest.raises(ValueError, match="num_stages is 0, but it must be a whole number of at least 1"):
        ORDERS[name](0, 4)
    with pytest.raises(ValueError, match="num_microbatches is 2.5"):
        ORDERS[name](2, 2.5)


def test_interleaving_says_what_does_not_divide():
    with pytest.raises(ValueError, match="5 virtual stages cannot be divided into 2 chunks per rank"):
        interleaved(5, 4, num_chunks=2)
    with pytest.raises(ValueError, match="6 micro-batches are not a whole number of rounds of 4.*take 8"):
        interleaved(8, 6, num_chunks=2)


def test_an_eager_warm_up_has_one_more_forward_for_each_later_rank():
    schedule = eager_one_f_one_b(3, 6)
    assert row(schedule, 0) == "0F0 0F1 0F2 0F3 0F4 0B0 0F5 0B1 0B2 0B3 0B4 0B5"
    assert [schedule.in_flight(rank) for rank in range(3)] == [5, 3, 1]
    assert validate(eager_one_f_one_b(4, 2)) == eager_one_f_one_b(4, 2)


def test_steps_in_a_row_count_their_micro_batches_on():
    twice = repeated(one_f_one_b(2, 2), 2)
    assert row(twice, 1) == "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"
    assert validate(twice).num_microbatches == 4
