"""The bytes and the parameters of experts."""

from __future__ import annotations

from dataclasses import replace
from math import floor

import pytest

from helpers.predict.traffic.expert_parallel import (
    active_params,
    all_to_all_bytes,
    balance_loss,
    capacity,
    decoding_latency,
    expected_nodes,
    experts_per_rank,
    granularity,
    layer_bytes,
    logical_bandwidth,
    remote_share,
    saved_by_node_limit,
    token_bytes,
    total_params,
)
from helpers.quantities.costs import sent_bytes
from helpers.specs import PRESETS, ROUTED, ModelSpec

V3_NODES = dict(num_experts=256, top_k=8, nodes=8)


def test_mixtral_has_47_billion_parameters_and_13_active():
    """Jiang et al. 2024; the exact number is that of the published checkpoint."""
    mistral = PRESETS["mistral-7b"]
    assert total_params(mistral, num_experts=8) == 46_702_792_704
    assert round(active_params(mistral, num_experts=8, top_k=2) / 1e9, 1) == 12.9


def test_one_expert_is_the_dense_model_and_each_further_one_a_feed_forward_with_its_router():
    small = ModelSpec(num_layers=2, hidden=8, num_heads=2, vocab=16, seq=4)
    assert active_params(small, num_experts=1, top_k=1) == total_params(small, num_experts=1) == small.num_params
    assert total_params(small, num_experts=3) - total_params(small, num_experts=2) == 2 * (2 * 8 * 32 + 32 + 8 + 8)


def test_an_all_to_all_carries_each_token_k_times():
    sent = all_to_all_bytes(tokens=4096, hidden=4096, top_k=2, ep=8)
    assert sent == sent_bytes("all_to_all", 4096 * 2 * 4096 * 2, 8) == 58_720_256
    assert layer_bytes(tokens=4096, hidden=4096, top_k=2, ep=8) == 4 * sent
    assert all_to_all_bytes(tokens=4096, hidden=4096, top_k=2, ep=1) == 0


def test_capacity_is_an_even_share_times_the_factor_rounded_up():
    assert capacity(tokens=32_768, num_experts=8, top_k=2) == 8192
    assert capacity(tokens=32_768, num_experts=8, top_k=2, factor=1.25) == 10_240
    assert capacity(tokens=10, num_experts=4) == 3
    assert capacity(tokens=500, num_experts=10, factor=1.1) == 55  # in floats 50 * 1.1 is a little more


def test_capacity_of_switch_transformers():
    assert capacity(tokens=4096, num_experts=64, factor=1.25) == 80
    assert capacity(tokens=4096, num_experts=8) == 512


def test_a_token_of_deepseek_v3_with_and_without_deduplication():
    dispatch, combine = (token_bytes(hidden=7168, copies=8, dtype_bytes=size) for size in (1, 2))
    assert (dispatch, combine) == (57_344, 114_688)
    assert token_bytes(hidden=7168, copies=1, dtype_bytes=1, scale_block=128) - 7168 == 224
    assert token_bytes(hidden=7168, copies=4, dtype_bytes=1) == 4 * 7168 == dispatch / 2  # one copy for each of 4 nodes
    sent = all_to_all_bytes(tokens=1, hidden=7168, top_k=8, ep=64, dtype_bytes=1)
    assert sent == dispatch * 63 / 64  # without what stays on the rank


def test_nodes_that_a_token_touches_and_what_the_limit_saves():
    assert round(expected_nodes(**V3_NODES), 2) == 5.29
    assert round(100 * saved_by_node_limit(**V3_NODES, limit=4)) == 24
    assert saved_by_node_limit(**V3_NODES, limit=6) == 0  # more than are touched on average
    assert expected_nodes(num_experts=8, top_k=8, nodes=4) == 4 and expected_nodes(**V3_NODES | {"nodes": 1}) == 1


def test_trap_a_token_may_touch_fewer_nodes_than_the_limit():
    """The 24 % take all four nodes as used. With 8 uniform experts on four nodes, 3.63 are, which saves 31 %."""
    used = expected_nodes(num_experts=128, top_k=8, nodes=4)
    assert round(used, 2) == 3.63
    assert round(100 * (1 - used / expected_nodes(**V3_NODES))) == 31


def test_decoding_latency_of_the_isca_paper():
    """Zhao et al. 2025, section 2.3.2: 120.96 us, 241.92 us, 14.76 ms, 67 tokens/s; and by NVLink 6.72 us, 0.82 ms."""
    work = dict(tokens=32, copies=9, hidden=7000, num_layers=61)
    network = decoding_latency(**work, bandwidth=50e9)
    assert (round(1e6 * network.exchange, 2), round(1e6 * network.layer, 2)) == (120.96, 241.92)
    assert (round(1e3 * network.token, 2), floor(network.tokens_per_second)) == (14.76, 67)
    nvlink = decoding_latency(**work, bandwidth=900e9)
    assert (round(1e6 * nvlink.exchange, 2), round(1e3 * nvlink.token, 2)) == (6.72, 0.82)
    assert round(nvlink.tokens_per_second, -2) == 1200


def test_trap_the_paper_calculates_with_7000_columns_while_the_model_has_7168():
    true = decoding_latency(tokens=32, copies=9, hidden=7168, num_layers=61, bandwidth=50e9)
    assert (round(1e6 * true.exchange, 2), round(1e3 * true.token, 2)) == (123.86, 15.11)
    assert floor(true.tokens_per_second) == 66


# EP: (us of dispatch, GB/s, us of combine, GB/s), docs/legacy.md of DeepEP, low-latency kernels, 128 tokens.
LOW_LATENCY = {
    8: (77, 98, 114, 127), 16: (118, 63, 195, 74), 32: (155, 48, 273, 53), 64: (173, 43, 314, 46),
    128: (192, 39, 369, 39), 256: (194, 39, 360, 40),
}  # fmt: skip


@pytest.mark.parametrize("ep", LOW_LATENCY)
def test_bandwidths_of_deepep_follow_from_its_latencies(ep):
    """Both are cut off, not rounded: 118 us are anything below 119, so 63 GB/s is right although 118 us give 64.1."""
    for seconds, printed, size, block in zip(
        LOW_LATENCY[ep][::2], LOW_LATENCY[ep][1::2], (1, 2), (128, None), strict=True
    ):
        row = token_bytes(hidden=7168, copies=1, dtype_bytes=size, scale_block=block)
        high, low = (
            logical_bandwidth(tokens=128, row_bytes=row, copies=8, seconds=1e-6 * one) / 1e9
            for one in (seconds, seconds + 1)
        )
        assert floor(low) <= printed <= floor(high)


def test_eight_ranks_of_deepep_reach_98_gigabytes_per_second():
    row = token_bytes(hidden=7168, copies=1, dtype_bytes=1, scale_block=128)
    assert 128 * 8 * row == 7_569_408
    assert round(logical_bandwidth(tokens=128, row_bytes=row, copies=8, seconds=77e-6) / 1e9, 1) == 98.3
    without_scales = logical_bandwidth(tokens=128, row_bytes=7168, copies=8, seconds=77e-6)
    assert round(without_scales / 1e9) == 95  # trap: 98 counts the scales, too


def test_logical_bandwidth_counts_rows_that_stay_on_the_node():
    """DeepEP V2: 90 and 81 GB/s on 2 nodes, more than the 50 of a card, because half of the rows stay."""
    assert (remote_share(2), remote_share(4)) == (1 / 2, 3 / 4)
    assert [remote_share(2) * rate for rate in (90, 81)] == [45.0, 40.5]
    assert remote_share(4) * 61 == 45.75


def test_experts_of_a_rank_with_redundant_ones():
    """Prefilling on 32 GPUs has 9 routed experts each, decoding on 144 GPUs 2; the shared one comes on top."""
    assert experts_per_rank(num_experts=256, redundant=32, ep=32) == 9
    assert experts_per_rank(num_experts=256, redundant=32, ep=144) == 2
    assert experts_per_rank(num_experts=256, ep=64) == 4


def test_the_balance_loss_is_its_coefficient_at_balance_and_more_elsewhere():
    even, skewed = [1 / 8] * 8, [3 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 0, 0]
    assert balance_loss(even, even) == 0.01
    assert balance_loss(skewed, skewed) == pytest.approx(0.01 * 8 * 14 / 64)
    assert balance_loss(skewed, skewed, coefficient=0.0) == 0  # Megatron-LM's default coefficient: no loss at all
    assert balance_loss([2 / 8] * 8, even) == 0.02  # trap: choices per token, k = 2, count twice


def test_granularity():
    """2 h / ffn: 0.571, 4.0 and 5.3 are printed for Mixtral, OLMoE and Qwen3."""
    names = ("mixtral-8x7b", "olmoe-1b-7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3")
    values = [round(granularity(ROUTED[name]), 3) for name in names]
    assert values == [0.571, 4.0, 5.333, 5.333, 7.0]


def test_trap_the_granularity_of_gpt_oss_is_printed_upside_down():
    """Its hidden width and its experts' are both 2,880, so 2 h / ffn is 2.0; the printed 0.5 is ffn / 2 h."""
    oss = replace(ROUTED["olmoe-1b-7b"], hidden=2880, num_heads=64, num_kv_heads=8, head_size=64, ffn_hidden=2880)
    assert granularity(oss) == 2.0 and 1 / granularity(oss) == 0.5


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: token_bytes(hidden=0, copies=1, dtype_bytes=1), "token_bytes: hidden is 0"),
        (lambda: expected_nodes(num_experts=10, top_k=2, nodes=4), "nodes=4 does not divide num_experts=10"),
        (lambda: remote_share(0), "nodes is 0"),
        (lambda: logical_bandwidth(tokens=1, row_bytes=1, copies=1, seconds=0), "seconds is 0"),
        (lambda: decoding_latency(tokens=1, copies=1, hidden=1, num_layers=1, bandwidth=0), "bandwidth is 0"),
        (lambda: experts_per_rank(num_experts=256, ep=32, redundant=1), "ep=32 does not divide num_experts"),
        (lambda: balance_loss([1.0], [0.5, 0.5]), "1 fractions and 2 probabilities"),
        (lambda: all_to_all_bytes(tokens=1, hidden=1, top_k=0, ep=1), "top_k is 0"),
        (lambda: active_params(PRESETS["gpt2"], num_experts=2, top_k=3), "top_k=3 of num_experts=2"),
        (lambda: capacity(tokens=1, num_experts=1, factor=0), "factor is 0"),
        (lambda: capacity(tokens=1, num_experts=0), "capacity: num_experts is 0"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
