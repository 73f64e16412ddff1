"""LoRA, QLoRA and reinforcement learning, against the papers' numbers."""

from __future__ import annotations

import pytest

from helpers.predict.memory import model_states
from helpers.predict.memory.fine_tuning import (
    adapter_params,
    decode_seconds,
    kv_cache_bytes,
    layer_matrices,
    lora,
    qlora,
    rl_states,
    weight_sync_seconds,
)
from helpers.specs import LINKS, PRESETS, ROUTED, Link, ModelSpec, Plan

GPT3, LLAMA_7B = PRESETS["gpt3-175b"], PRESETS["llama2-7b"]
LLAMA_65B = ModelSpec(
    num_layers=80, hidden=8192, num_heads=64, ffn_hidden=22_016, vocab=32_000, seq=2048, gated=True,
    tied_embeddings=False, bias=False, norm="rms", positions="rope",
)  # fmt: skip


@pytest.mark.parametrize(("rank", "printed"), [(1, 4.7e6), (8, 37.7e6)])
def test_trained_parameters_of_gpt3_as_the_lora_paper_prints(rank, printed):
    """Hu et al. 2021, table 4: 4.7 M and 37.7 M, on query and value."""
    assert adapter_params(GPT3, rank=rank) == pytest.approx(printed, rel=5e-3)


def test_gpt3_needs_350_gb_instead_of_1200():
    """Section 4.2: 1.2 TB with Adam, 350 GB with LoRA; 16 bits of weights are nearly all that is left."""
    assert lora(GPT3, rank=4).total / 1e9 == pytest.approx(350, rel=0.01)
    assert model_states(GPT3.num_params, Plan()).total / lora(GPT3, rank=4).total > 7


def test_llama_7b_by_hand():
    """Rank 8 on query and value: 32 layers of 2 * 8 * 8192; states 16 bytes each."""
    adapters = 32 * 2 * 8 * (4096 + 4096)
    assert adapter_params(LLAMA_7B, rank=8) == adapters == 4_194_304
    found = lora(LLAMA_7B, rank=8)
    assert found.parameters == 2 * 6_738_415_616 + 2 * adapters
    assert (found.gradients, found.optimizer) == (2 * adapters, 12 * adapters)
    assert round(found.total / 1e9, 1) == 13.5
    assert round(model_states(LLAMA_7B.num_params, Plan()).total / 1e9, 1) == 107.8
    assert lora(LLAMA_7B, rank=8, master=False).total == found.total - 4 * adapters


def test_qlora_7b_by_hand():
    """4.127 bits for the layer_matrices of the layers, 16 for two tables and the norms."""
    in_layers = 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
    rest = 6_738_415_616 - in_layers
    found = qlora(LLAMA_7B, rank=64)
    adapters = 32 * 64 * (4 * 8192 + 3 * (4096 + 11_008))
    assert found.gradients == 2 * adapters == 2 * 159_907_840
    frozen = found.parameters - 2 * adapters
    assert 8 * (frozen - 2 * rest) / in_layers == pytest.approx(4.127, abs=5e-4)
    assert round(found.total / 1e9, 1) == 5.8


def test_double_quantization_saves_what_the_paper_prints():
    """Section 3: 0.5 bits a parameter become 0.127, which saves 0.373."""
    plain, double = (qlora(LLAMA_65B, rank=64, double_quantization=how).parameters for how in (False, True))
    in_layers = 80 * sum(rows * columns for rows, columns in layer_matrices(LLAMA_65B).values())
    assert 8 * (plain - double) / in_layers == pytest.approx(0.373, abs=5e-4)


def test_65b_fits_48_gb_with_qlora_and_takes_over_780_without():
    """Dettmers et al. 2023, abstract and section 1; 780 GB are 12 bytes a parameter."""
    assert LLAMA_65B.num_params == 65_285_660_672
    assert 780 < 12 * LLAMA_65B.num_params / 1e9 < 785
    assert 43 < qlora(LLAMA_65B, rank=64).total / 1e9 < 45
    assert qlora(LLAMA_65B, rank=64, master=True).total / 1e9 < 48
    assert lora(LLAMA_65B, rank=64).total / 1e9 > 130


def test_grouped_queries_make_smaller_adapters():
    llama3 = PRESETS["llama3-8b"]
    assert adapter_params(llama3, rank=2, targets=("key",)) == 32 * 2 * (4096 + 1024)
    assert adapter_params(llama3, rank=2, targets=("gate", "up", "down")) == 32 * 2 * 3 * (4096 + 14_336)
    assert {"query", "key", "value", "projection"} < set(layer_matrices(llama3))


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="a target is 'gate', but it must be one of query, key"):
        adapter_params(GPT3, rank=8, targets=("gate",))
    with pytest.raises(ValueError, match="rank is 0, but it must be a whole number"):
        lora(GPT3, rank=0)


def test_ppo_holds_36_bytes_a_parameter_and_grpo_20():
    assert rl_states(1000) == 36_000
    assert rl_states(1000, critic=False) == 20_000
    assert rl_states(1000, critic=False, reward_model=False) == 18_000
    assert rl_states(1000, critic=False, reward_model=False, reference=False) == 16_000


def test_a_token_of_llama_3_70b_takes_320_kib():
    """80 layers, keys and values, 8 heads of 128 numbers, 2 bytes."""
    assert kv_cache_bytes(PRESETS["llama3-70b"], tokens=1) == 80 * 2 * 8 * 128 * 2 == 320 * 1024
    assert kv_cache_bytes(PRESETS["llama3-70b"], tokens=10, dtype_bytes=1) == 5 * 320 * 1024


def test_latent_attention_holds_a_seventh_of_the_keys_and_values():
    """Zhao et al. 2025, table 1, in kB per token: 70.272 for DeepSeek-V3, 516.096 for Llama 3.1 405B."""
    found = [kv_cache_bytes(model, tokens=1) for model in (ROUTED["deepseek-v3"], PRESETS["llama3-405b"])]
    assert found == [70_272, 516_096]


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
