"""The formulas agree with the papers, with each other, and with the messages counted one by one."""

import math

import pytest

from helpers.predict.traffic.algorithms import schedule
from helpers.quantities import costs
from helpers.specs import Link

LINK = Link(latency=1e-3, bandwidth=1e9)
SIZES = range(1, 18)
WITH_MESSAGES = [key for key in costs.FORMULAS if key[1] not in ("server", "pairwise", "dissemination")]


def test_a_ring_all_reduce_of_40_mb_on_four_ranks_sends_60_mb():
    assert costs.sent_bytes("all_reduce", 40e6, 4) == 60e6
    assert costs.seconds("all_reduce", 40e6, 4, LINK) == pytest.approx(6e-3 + 60e-3)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    for n in SIZES:
        halves = [costs.seconds(half, 1e6, n, LINK) for half in ("reduce_scatter", "all_gather")]
        assert costs.seconds("all_reduce", 1e6, n, LINK) == pytest.approx(sum(halves))


def test_no_all_reduce_moves_less_than_the_ring():
    for n in SIZES:
        ring = costs.total_bytes("all_reduce", 1e6, n, "ring")
        assert all(costs.total_bytes("all_reduce", 1e6, n, a) >= ring - 1e-6 for a in costs.algorithms("all_reduce"))


@pytest.mark.parametrize(("collective", "algorithm"), WITH_MESSAGES)
def test_the_critical_path_is_the_sum_of_the_longest_message_of_each_step(collective, algorithm):
    for n in SIZES:
        plan = schedule(collective, n, algorithm)
        longest = [max(m.last - m.first for m in plan.step(s)) for s in range(plan.num_steps)]
        expected = plan.num_steps * LINK.latency + sum(longest) / plan.num_chunks * 1e6 / LINK.bandwidth
        assert costs.seconds(collective, 1e6, n, LINK, algorithm) == pytest.approx(expected)


def test_one_rank_sends_nothing_and_waits_for_nothing():
    for collective, algorithm in costs.FORMULAS:
        assert costs.seconds(collective, 1e6, 1, LINK, algorithm) == 0
        assert costs.sent_bytes(collective, 1e6, 1, algorithm) == 0


def test_few_rounds_win_small_messages_and_the_ring_large_ones():
    link, n = Link(latency=10e-6, bandwidth=10e9), 6
    assert costs.fastest("all_reduce", 1, n, link) == "halving_doubling"
    assert costs.fastest("all_reduce", 1e9, n, link) == "ring"
    size = costs.crossover_bytes("all_reduce", n, link, "tree", "ring")
    assert costs.seconds("all_reduce", size, n, link, "tree") == pytest.approx(
        costs.seconds("all_reduce", size, n, link, "ring")
    )


def test_an_algorithm_that_never_overtakes_has_no_crossover():
    assert costs.crossover_bytes("all_reduce", 8, LINK, "ring", "tree") == math.inf


def test_bus_factors_are_those_of_nccl_tests():
    assert costs.bus_factor("all_reduce", 8) == 1.75
    assert costs.bus_factor("all_gather", 8) == costs.bus_factor("reduce_scatter", 8) == 0.875
    assert costs.bus_factor("all_to_all", 4) == 0.75
    assert costs.bus_factor("broadcast", 8) == costs.bus_factor("reduce", 8) == 1


def test_without_latency_the_bus_bandwidth_of_a_ring_is_the_links():
    link = Link(latency=0, bandwidth=25e9)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for n in (2, 5, 64):
            took = costs.seconds(collective, 1e9, n, link)
            assert costs.bus_bandwidth(collective, 1e9, n, took) == pytest.approx(25e9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: costs.sent_bytes("all_reduce", -1, 4), "num_bytes is -1"),
        (lambda: costs.seconds("all_reduce", 1, 0, LINK), "world_size is 0"),
        (lambda: costs.rounds("all_reduce", 2.0), "world_size is 2.0"),
        (lambda: costs.rounds("allreduce", 2), "no formula for the collective 'allreduce'; known are all_reduce"),
        (lambda: costs.rounds("all_reduce", 2, "star"), "'star'; known are ring, halving_doubling, tree, server"),
        (lambda: costs.bus_factor("barrier", 2), "no bus factor for 'barrier'"),
        (lambda: costs.bus_bandwidth("all_reduce", 1, 2, 0), "seconds is 0"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
