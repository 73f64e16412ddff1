"""The bytes and the parameters of experts."""

from __future__ import annotations

import pytest

from helpers.predict.traffic.expert_parallel import (
    active_params,
    all_to_all_bytes,
    capacity,
    layer_bytes,
    total_params,
)
from helpers.quantities.costs import sent_bytes
from helpers.specs import PRESETS, ModelSpec


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
        (lambda: all_to_all_bytes(tokens=1, hidden=1, top_k=0, ep=1), "top_k is 0"),
        (lambda: active_params(PRESETS["gpt2"], num_experts=2, top_k=3), "top_k=3 of num_experts=2"),
        (lambda: capacity(tokens=1, num_experts=1, factor=0), "factor is 0"),
        (lambda: capacity(tokens=1, num_experts=0), "capacity: num_experts is 0"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
