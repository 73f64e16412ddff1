"""Seconds of collectives, and the traffic between replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.predict.time.collectives import (
    A100_SECONDS,
    MIB,
    collective_seconds,
    hop_seconds,
    optimizer_seconds,
    replica_traffic,
    send_seconds,
)
from helpers.predict.time.stacks import FSDP
from helpers.specs import CLUSTERS, Plan

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


def sent(**plan):
    flows = replica_traffic(8e9, 32, Plan(dp=32, num_microbatches=4, **plan), H100, FSDP)
    return {flow.name: flow for flow in flows}


@pytest.mark.parametrize("zero, often", [(0, {1}), (1, {1}), (2, {4, 1}), (3, {4})])
def test_a_stage_sends_once_a_step_or_once_a_micro_batch(zero, often):
    assert {flow.often for flow in sent(zero=zero).values()} == often


def test_a_sum_costs_as_much_as_scatter_and_gather():
    both = sum(flow.network for flow in sent(zero=1).values())
    assert sent(zero=0)["gradients"].network == pytest.approx(both, rel=0.05)


def test_hybrid_sharding_gathers_in_the_node_and_sums_the_rest_between_them():
    found = sent(zero=3, shard_ranks=8)
    assert found["parameters"].network == 0 < found["parameters"].inside
    assert found["gradients between groups"].often == 1 and found["gradients between groups"].network > 0


@pytest.mark.parametrize("zero, ranks", [(1, 8), (3, 12)])
def test_hybrid_sharding_is_refused_where_it_is_not_modelled(zero, ranks):
    with pytest.raises(ValueError, match=f"Plan: shard_ranks={ranks}"):
        sent(zero=zero, shard_ranks=ranks)


def test_the_optimizer_moves_forty_bytes_a_parameter_and_sharded_little_more_than_four():
    rate = 0.85 * H100.gpu.memory_bandwidth
    assert optimizer_seconds(1e9, Plan(dp=32), H100) == pytest.approx(40e9 / rate)
    assert optimizer_seconds(1e9, Plan(dp=32, zero=1), H100) == pytest.approx((4 + 36 / 32) * 1e9 / rate)
