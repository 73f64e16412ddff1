"""Published models with experts have the published parameters, in all, per token and on each rank of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.predict.memory.states import expert_params, feed_forward_params, params_per_layer, params_per_rank
from helpers.specs import PRESETS, ROUTED, LatentAttention, ModelSpec, Plan

V3 = ROUTED["deepseek-v3"]
# All parameters, and those that compute a token with the embeddings, from the published configurations.
PUBLISHED = {
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "mixtral-8x22b": (140_620_634_112, 39_152_031_744),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "olmoe-1b-7b": (6_919_161_856, 1_282_017_280),
    "deepseek-v3": (671_026_419_200, 37_552_282_624),
}


@pytest.mark.parametrize(("name", "counts"), PUBLISHED.items())
def test_models_with_experts_have_the_published_parameters(name, counts):
    assert (ROUTED[name].num_params, ROUTED[name].active_params) == counts


def test_deepseek_v2_has_the_236_and_21_billion_of_its_title():
    v2 = ROUTED["deepseek-v2"]
    assert (round(v2.num_params / 1e9), round(v2.active_params / 1e9)) == (236, 21)
    assert set(ROUTED) == {*PUBLISHED, "deepseek-v2"}


def test_the_parts_of_deepseek_v3():
    assert V3.params_of_attention == 187_107_328
    assert V3.params_per_expert == 44_040_192
    assert (V3.num_layers - V3.dense_layers) * V3.num_experts * V3.params_per_expert == 653_908_770_816
    with_biases = 671_026_419_200  # printed in repositories; 14,848 biases only choose experts and are not trained
    assert with_biases - replace(V3, router_bias=False).num_params == 58 * 256 == 14_848
    assert replace(V3, router_bias=False).active_params == V3.active_params


def test_the_matrices_of_latent_attention():
    """Queries pass 1,536 columns, keys and values 512, and 64 rotary columns of keys are shared by all heads."""
    shapes = LatentAttention().matrices(7168, 128)
    assert shapes == ((1536, 7168), (576, 7168), (24_576, 1536), (32_768, 512), (7168, 16_384))
    assert (V3.head_dim, V3.value_dim) == (192, 128)
    assert V3.attention_matrices(4)[:2] == shapes[:2] and V3.attention_matrices(4)[4] == (7168, 4096)


def test_dense_layers_are_as_wide_as_the_experts_of_a_token():
    for name in ("deepseek-v2", "deepseek-v3"):
        model = ROUTED[name]
        assert model.dense_ffn == (model.top_k + model.shared_experts) * model.ffn
        assert model.of_dense_layers.num_experts == 1 and model.of_dense_layers.ffn == model.dense_ffn


def test_the_ranks_of_a_plan_hold_all_parameters():
    """61 layers on 16 stages: 15 of 4 and a last one of 1. Rank 0 has the three dense layers."""
    plan = Plan(pp=16, dp=128, ep=64, zero=1, last_stage_layers=1)
    plan.check(V3)
    assert [plan.layers_on_stage(V3, stage) for stage in (0, 14, 15)] == [4, 4, 1]
    assert [plan.dense_layers_on_stage(V3, stage) for stage in (0, 1)] == [3, 0]
    experts = [expert_params(V3, plan, stage) for stage in range(16)]
    assert experts[:2] == [4 * 44_040_192, 16 * 44_040_192] and 64 * sum(experts) == 653_908_770_816
    rest = sum(params_per_rank(V3, plan, stage) for stage in range(16)) - sum(experts)
    assert rest + 653_908_770_816 == V3.num_params


@pytest.mark.parametrize("name", ROUTED)
def test_one_rank_holds_the_model(name):
    model = ROUTED[name]
    assert params_per_rank(model, Plan()) == model.num_params
    assert params_per_layer(model, Plan()) == model.params_per_layer


def test_shared_experts_are_on_every_rank():
    alone, spread = (params_per_layer(V3, Plan(dp=64, ep=ep)) for ep in (1, 64))
    assert alone - spread == 252 * V3.params_per_expert
    assert feed_forward_params(V3, Plan(dp=64, ep=64)) == 4 * V3.params_per_expert


@pytest.mark.parametrize(
    ("model", "change", "sentence"),
    [
        (PRESETS["gpt2"], {"shared_experts": 1}, "shared_experts=1 and dense_layers=0 with num_experts=1"),
        (PRESETS["gpt2"], {"dense_layers": 1}, "dense_layers=1 with num_experts=1"),
        (V3, {"dense_layers": 61}, "dense_layers=61 of num_layers=61"),
        (V3, {"shared_experts": -1}, "shared_experts=-1"),
        (V3, {"query_key_norm": "batch"}, "query_key_norm is 'batch'"),
        (V3, {"head_size": 0}, "head_size is 0"),
    ],
)
def test_a_model_that_cannot_be_gets_a_sentence(model, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(model, **change)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Plan(last_stage_layers=1), "last_stage_layers=1 with pp=1"),
        (lambda: Plan(pp=2, num_chunks=2, last_stage_layers=1), "it needs a pipeline with one chunk per rank"),
        (lambda: Plan(pp=16, last_stage_layers=2).check(V3), "pp - 1=15 does not divide layers before"),
        (lambda: Plan(pp=16).check(V3), "pp \\* num_chunks=16 does not divide num_layers=61"),
        (lambda: LatentAttention(rope=0), "rope is 0"),
        (lambda: Plan(tp=7).check_widths(ModelSpec(num_layers=2, hidden=14, num_heads=7, vocab=8, seq=4, num_experts=2,
         ffn_hidden=7, dense_layers=1, dense_ffn=8)), "tp=7 does not divide dense_ffn=8"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
