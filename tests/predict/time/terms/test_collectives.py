"""Collectives beside nccl-tests' tables, and their limits: shared cards, hops, one rank."""

from dataclasses import replace

import pytest

from helpers.predict.time.terms.collectives import A100_SECONDS, MIB, collective_seconds, hop_seconds, send_seconds
from helpers.specs import CLUSTERS

A100, H100 = CLUSTERS["8 A100"], CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]


@pytest.mark.parametrize("size, seconds", A100_SECONDS)
def test_an_all_reduce_on_a_node_of_a100_takes_what_was_measured(size, seconds):
    assert collective_seconds("all_reduce", size, 8, A100)[0] == pytest.approx(seconds, rel=0.02)


def test_an_all_reduce_of_a_gigabyte_reaches_the_measured_bus_bandwidth_with_and_without_the_switch():
    """nccl-tests on 8 H200: 463.58 GB/s with NVLS at 1 GiB, 367.61 without at its best."""
    for nvls, rate in ((True, 463.58e9), (False, 367.61e9)):
        inside, network = collective_seconds("all_reduce", 1024 * MIB, 8, H100, nvls=nvls)
        assert network == 0 and 1.75 * 1024 * MIB / inside == pytest.approx(rate, rel=0.05)


def test_rings_that_leave_a_node_side_by_side_share_its_cards():
    """8 cards of 50 GB/s: 4 rings have 100 GB/s each, 8 rings 50."""
    four, eight = (collective_seconds("all_reduce", 4e9, 4, H100, stride=stride)[1] for stride in (4, 8))
    assert eight == pytest.approx(2 * four, rel=0.02)
    assert four == pytest.approx(1.5 * 4e9 / (0.95 * 100e9), rel=0.02)


def test_an_all_gather_goes_round_the_ring_and_a_sum_may_take_the_tree():
    """tuning.cc: 191 hops of 14 us between nodes and 1,344 of 3.4 us inside them, for pieces over 128 KiB."""
    assert hop_seconds("all_gather", 1e9, 1536, 192) == pytest.approx(191 * 14e-6 + 1344 * 3.4e-6)
    assert hop_seconds("all_reduce", 1e9, 1536, 192) < hop_seconds("all_gather", 1e9, 1536, 192) / 10


def test_a_send_stays_in_the_node_where_the_next_stage_does():
    assert send_seconds(1e8, H100, block=4, stages=2)[1] == 0
    inside, network = send_seconds(1e8, replace(H100, network_cards=1), block=8, stages=4)
    assert inside == 0 and network == pytest.approx(1e8 / (0.95 * 50e9 / 8), rel=0.02)


def test_a_small_message_is_latency_and_fewer_ranks_wait_less():
    tiny = [collective_seconds("all_reduce", 1024, ranks, A100)[0] for ranks in (2, 4, 8)]
    assert 3 * tiny[0] < 2 * tiny[1] < tiny[2] == pytest.approx(44e-6, rel=0.05)
