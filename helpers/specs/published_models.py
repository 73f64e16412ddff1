"""Provides the shapes of published models: PRESETS has dense ones, ROUTED those with experts.

`python -m helpers plan --model` and the explorers offer them by these names. A router sends each token to some experts.
"""

from __future__ import annotations

from dataclasses import replace

from helpers.specs.models import LatentAttention, ModelSpec


def _llama3(num_layers: int, hidden: int, num_heads: int, ffn_hidden: int) -> ModelSpec:
    """A Llama 3: grouped queries, gated feed-forward, RMSNorm, rotary positions, no biases."""
    return ModelSpec(
        num_layers=num_layers, hidden=hidden, num_heads=num_heads, num_kv_heads=8, ffn_hidden=ffn_hidden,
        vocab=128_256, seq=8192, gated=True, tied_embeddings=False, bias=False, norm="rms", positions="rope",
    )  # fmt: skip


def _llama2(num_layers: int, hidden: int, num_heads: int, num_kv_heads: int, ffn_hidden: int) -> ModelSpec:
    """A Llama 2, which differs from Llama 3 in vocabulary, context and key and value heads."""
    llama = _llama3(num_layers, hidden, num_heads, ffn_hidden)
    return replace(llama, num_kv_heads=num_kv_heads, vocab=32_000, seq=4096)


def _gpt(num_layers: int, hidden: int, num_heads: int, seq: int = 1024) -> ModelSpec:
    """A GPT-2 or GPT-3, which the defaults of ModelSpec describe."""
    return ModelSpec(num_layers=num_layers, hidden=hidden, num_heads=num_heads, vocab=50_257, seq=seq)


# Sources: Radford et al. 2019 (GPT-2), table 2; Brown et al. 2020 (GPT-3), table 2.1; Touvron et al. 2023 (Llama 2);
# Jiang et al. 2023 (Mistral 7B), table 1; The Llama 3 Herd of Models (2024), table 3. What the papers leave out (exact
# feed-forward widths, vocabularies) is from the published configurations; the tests hold the published exact counts.
# seq is that of pre-training. Mistral 7B is meant as from its version 0.2 on, without a window.
PRESETS = {
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    "gpt3-175b": _gpt(96, 12_288, 96, seq=2048),
    "llama2-7b": _llama2(32, 4096, 32, 32, 11_008),
    "llama2-13b": _llama2(40, 5120, 40, 40, 13_824),
    "llama2-70b": _llama2(80, 8192, 64, 8, 28_672),
    "mistral-7b": replace(_llama2(32, 4096, 32, 8, 14_336), seq=8192),
    "llama3-8b": _llama3(32, 4096, 32, 14_336),
    "llama3-70b": _llama3(80, 8192, 64, 28_672),
    "llama3-405b": _llama3(126, 16_384, 128, 53_248),
}


def _routed(num_layers: int, hidden: int, num_heads: int, ffn_hidden: int, **more: object) -> ModelSpec:
    """A model with experts that otherwise is like a Llama. ffn_hidden: of one expert."""
    llama = _llama3(num_layers, hidden, num_heads, ffn_hidden)
    return replace(llama, **{"num_kv_heads": num_heads, "seq": 4096, **more})


# Models with experts, which not every formula takes. Jiang et al. 2024 (Mixtral of Experts), table 1; Yang et al. 2025
# (Qwen3), table 2; Muennighoff et al. 2024 (OLMoE), table 1; DeepSeek-AI 2024 (DeepSeek-V2, section 3.1.2, and
# DeepSeek-V3, section 4.2, without the module that predicts a second token); and the published configurations.
# Mixtral-8x22B is meant as its version 0.1, before its vocabulary grew to 32,768 entries.
_QWEN3 = {
    "num_kv_heads": 4, "vocab": 151_936, "num_experts": 128, "top_k": 8, "head_size": 128, "query_key_norm": "head",
}  # fmt: skip
ROUTED = {
    "mixtral-8x7b": replace(PRESETS["mistral-7b"], seq=32_768, num_experts=8, top_k=2),
    "mixtral-8x22b": _routed(56, 6144, 48, 16_384, num_kv_heads=8, vocab=32_000, seq=65_536, num_experts=8, top_k=2),
    "qwen3-30b-a3b": _routed(48, 2048, 32, 768, **_QWEN3),
    "qwen3-235b-a22b": _routed(94, 4096, 64, 1536, **_QWEN3),
    "olmoe-1b-7b": _routed(16, 2048, 16, 1024, vocab=50_304, num_experts=64, top_k=8, query_key_norm="all"),
    "deepseek-v2": _routed(
        60, 5120, 128, 1536, vocab=102_400, latent=LatentAttention(), num_experts=160, top_k=6, shared_experts=2,
        dense_layers=1, dense_ffn=12_288, node_limit=3,
    ),
    "deepseek-v3": _routed(
        61, 7168, 128, 2048, vocab=129_280, latent=LatentAttention(), num_experts=256, top_k=8, shared_experts=1,
        dense_layers=3, dense_ffn=18_432, router_bias=True, node_limit=4,
    ),
}  # fmt: skip
