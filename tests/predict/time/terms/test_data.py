"""What each ZeRO stage sends how often, hybrid sharding, and the optimizer's bytes."""

import pytest

from helpers.predict.time.stacks import FSDP
from helpers.predict.time.terms.data import flows, optimizer_seconds
from helpers.specs import CLUSTERS, Plan

CLUSTER = CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]


def sent(**plan):
    return {flow.name: flow for flow in flows(8e9, 32, Plan(dp=32, num_microbatches=4, **plan), CLUSTER, FSDP)}


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
    rate = 0.85 * CLUSTER.gpu.memory_bandwidth
    assert optimizer_seconds(1e9, Plan(dp=32), CLUSTER) == pytest.approx(40e9 / rate)
    assert optimizer_seconds(1e9, Plan(dp=32, zero=1), CLUSTER) == pytest.approx((4 + 36 / 32) * 1e9 / rate)
