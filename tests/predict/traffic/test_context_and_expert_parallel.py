"""The bytes of ring attention, Ulysses and experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.predict.traffic.context_and_expert_parallel import (
    active_params,
    all_to_all_bytes,
    capacity,
    layer_bytes,
    ring_attention_bytes,
    tokens_to_hide,
    total_params,
    ulysses_bytes,
)
from helpers.quantities.costs import sent_bytes
from helpers.specs import GPUS, LINKS, PRESETS, ModelSpec

WIDE = ModelSpec(num_layers=1, hidden=64, num_heads=8, vocab=8, seq=32)
GROUPED = replace(WIDE, num_kv_heads=2)


def test_a_ring_passes_a_block_of_keys_and_values_on():
    """4 ranks, 8 tokens each: a block is 2 * 64 * 8 numbers of 2 bytes, sent 3 times; grouped queries quarter it."""
    assert ring_attention_bytes(WIDE, cp=4) == 3 * 2 * 64 * 8 * 2
    assert ring_attention_bytes(GROUPED, cp=4) == ring_attention_bytes(WIDE, cp=4) / 4
    assert ring_attention_bytes(WIDE, cp=4, batch=3, backward=True) == 6 * ring_attention_bytes(WIDE, cp=4)


def test_ulysses_sends_four_tensors_but_for_the_own_part():
    """Jacobs et al. 2023: 4 N h / P for a link; the own 1/P of it stays."""
    assert ulysses_bytes(WIDE, cp=4) == 4 * 32 * 64 / 4 * 2 * 3 / 4
    assert ulysses_bytes(GROUPED, cp=2) == (2 * 64 + 2 * 16) * 16 * 2 / 2


def test_ulysses_repeats_key_and_value_heads_where_there_are_too_few():
    assert ulysses_bytes(GROUPED, cp=8) == ulysses_bytes(WIDE, cp=8)
    assert ulysses_bytes(GROUPED, cp=4) == (2 * 64 + 2 * 32) * 8 * 2 * 3 / 4


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_with_as_many_key_heads_ulysses_wins_by_half_the_ranks(cp):
    assert ring_attention_bytes(WIDE, cp=cp) / ulysses_bytes(WIDE, cp=cp) == pytest.approx(cp / 2)


def test_one_rank_sends_nothing():
    assert ring_attention_bytes(WIDE, cp=1) == ulysses_bytes(WIDE, cp=1) == 0


def test_the_paper_s_block_size_on_a100():
    """Liu et al. 2023, section 3, FLOPS over bandwidth: 312 TFLOP/s and 300 GB/s need a block of about 1,000 tokens."""
    flops, bandwidth = GPUS["A100"].flops, LINKS["NVLink 3"].bandwidth
    wide = replace(PRESETS["llama3-70b"], num_kv_heads=64)
    assert tokens_to_hide(wide, flops=flops, bandwidth=bandwidth) == 1040
    assert tokens_to_hide(PRESETS["llama3-70b"], flops=flops, bandwidth=bandwidth) == 130


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


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ring_attention_bytes(WIDE, cp=3), "does not divide seq"),
        (lambda: ring_attention_bytes(WIDE, cp=0), "does not divide seq"),
        (lambda: ring_attention_bytes(WIDE, cp=64), "seq=32"),
        (lambda: ulysses_bytes(WIDE, cp=16), "num_heads=8"),
        (lambda: all_to_all_bytes(tokens=1, hidden=1, top_k=0, ep=1), "top_k is 0"),
        (lambda: active_params(PRESETS["gpt2"], num_experts=2, top_k=3), "top_k=3 of num_experts=2"),
        (lambda: capacity(tokens=1, num_experts=1, factor=0), "factor is 0"),
        (lambda: capacity(tokens=1, num_experts=0), "capacity: num_experts is 0"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
