"""Reinforcement learning: bytes of all models, of the cache, and the time of new weights."""

import pytest

from helpers.predict.memory.rollouts import decode_seconds, kv_cache_bytes, rl_states, weight_sync_seconds
from helpers.specs import LINKS, PRESETS, Link


def test_ppo_holds_36_bytes_a_parameter_and_grpo_20():
    assert rl_states(1000) == 36_000
    assert rl_states(1000, critic=False) == 20_000
    assert rl_states(1000, critic=False, reward_model=False) == 18_000
    assert rl_states(1000, critic=False, reward_model=False, reference=False) == 16_000


def test_a_token_of_llama_3_70b_takes_320_kib():
    """80 layers, keys and values, 8 heads of 128 numbers, 2 bytes."""
    assert kv_cache_bytes(PRESETS["llama3-70b"], tokens=1) == 80 * 2 * 8 * 128 * 2 == 320 * 1024
    assert kv_cache_bytes(PRESETS["llama3-70b"], tokens=10, dtype_bytes=1) == 5 * 320 * 1024


def test_new_weights_travel_once_over_all_links():
    link = Link(latency=1.0, bandwidth=100.0)
    assert weight_sync_seconds(1000, link) == 21.0
    assert weight_sync_seconds(1000, link, num_links=4, dtype_bytes=1) == 3.5
    assert weight_sync_seconds(70_000_000_000, LINKS["400 Gb/s"]) == pytest.approx(2.8, rel=1e-3)
    with pytest.raises(ValueError, match="num_links is 0"):
        weight_sync_seconds(1000, link, num_links=0)


def test_a_token_takes_as_long_as_its_weights_are_read():
    assert decode_seconds(70_000_000_000, 3.5e12) == pytest.approx(0.04)
    assert decode_seconds(70_000_000_000, 3.5e12, num_gpus=8, dtype_bytes=1) == pytest.approx(0.0025)
