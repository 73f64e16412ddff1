"""Model states to the digit that the ZeRO paper prints, and parameters a rank to the last one."""

from dataclasses import replace
from math import ceil

import pytest

from helpers.predict.memory import activations_per_layer, model_states, params_per_rank
from helpers.predict.memory.states import bytes_per_parameter, rank_states
from helpers.specs import PRESETS, ROUTED, ModelSpec, Plan

GPT = ModelSpec(num_layers=6, hidden=384, num_heads=6, vocab=68, seq=64)  # 10,698,240 parameters


@pytest.mark.parametrize(
    ("billions", "ranks", "printed"),
    [
        (7.5, 1, (120, 120, 120)),
        (7.5, 4, (52.5, 41.3, 30)),
        (7.5, 16, (35.6, 21.6, 7.5)),
        (7.5, 64, (31.4, 16.6, 1.9)),  # figure 1
        (7.5, 1024, (30.1, 15.1, 0.12)),
        (128, 64, (536, 284, 32)),
        (1000, 1024, (4011, 2013, 15.6)),
    ],
)
def test_the_zero_paper_table_1(billions, ranks, printed):
    """Stages 1 to 3, GB; the table prints three or four digits, 41.25 as 41.3."""
    for stage, digits in enumerate(printed, start=1):
        found = model_states(round(billions * 1e9), Plan(dp=ranks, zero=stage)).total / 1e9
        assert found == pytest.approx(digits, abs=0.06 if digits > 1 else 0.006, rel=2e-3)


@pytest.mark.parametrize(
    ("precision", "optimizer", "weights", "gradients", "states"),
    [
        ("fp32", "adamw", 4, 4, 8),
        ("mixed", "adamw", 2, 2, 12),
        ("mixed_fp32_grads", "adamw", 2, 4, 12),
        ("mixed_both_grads", "adamw", 2, 6, 12),
        ("fp32", "sgd", 4, 4, 0),
        ("mixed", "sgd", 2, 2, 4),
        ("mixed", "sgd_momentum", 2, 2, 8),
        ("mixed", "adamw_8bit", 2, 2, 4 + 2 + 2 * 4 / 256),
    ],
)
def test_bytes_a_parameter(precision, optimizer, weights, gradients, states):
    held = model_states(256_000, Plan(precision=precision, optimizer=optimizer))
    bytes_each = [held.parameters / 256_000, held.gradients / 256_000, held.optimizer / 256_000]
    assert bytes_each == [weights, gradients, states]


def test_a_share_is_rounded_up_to_whole_parameters():
    assert model_states(10, Plan(dp=4, zero=3)).total == 3 * 16
    assert model_states(10, Plan(dp=4, zero=1)).optimizer == 3 * 12


def test_ranks_of_a_context_group_share_the_states_too():
    assert model_states(1000, Plan(dp=2, cp=4, zero=3)) == model_states(1000, Plan(dp=8, zero=3))


def test_one_rank_holds_the_whole_model():
    for model in PRESETS.values():
        assert params_per_rank(model, Plan()) == model.num_params


def whole_on_every_tp_rank(model):
    """Norms, biases of the row-split layers and learned positions: counted here by hand."""
    norms = (2 * model.num_layers + 1) * model.hidden * (2 if model.norm == "layer" and model.bias else 1)
    biases = model.num_layers * 2 * model.hidden if model.bias else 0
    return norms + biases + (model.seq * model.hidden if model.positions == "learned" else 0)


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (GPT, Plan(tp=2)),
        (GPT, Plan(pp=3)),
        (GPT, Plan(tp=3, pp=2)),
        (replace(GPT, tied_embeddings=False), Plan(tp=2, pp=3)),
        (PRESETS["gpt2"], Plan(tp=4, pp=4)),
        (PRESETS["llama2-7b"], Plan(tp=8, pp=8)),
        (PRESETS["llama3-8b"], Plan(tp=16, pp=2)),
        (PRESETS["llama3-405b"], Plan(tp=8, pp=16)),
    ],
)
def test_all_ranks_together_hold_the_model_and_its_copies(model, plan):
    """Copies: what TP leaves whole, key and value heads beyond their number, a tied table, and padded rows."""
    t, h = plan.tp, model.hidden
    kv_columns = max(t, model.kv_heads) - model.kv_heads
    kv = model.num_layers * 2 * kv_columns * model.head_dim * (h + (1 if model.bias else 0))
    tables = 1 if model.tied_embeddings and plan.pp == 1 else 2
    padding = tables * (t * ceil(model.vocab / t) - model.vocab) * h
    tied = model.vocab * h if model.tied_embeddings and plan.pp > 1 else 0
    copies = (t - 1) * whole_on_every_tp_rank(model) + kv + padding + tied
    held = t * sum(params_per_rank(model, plan, stage) for stage in range(plan.pp))
    assert held == model.num_params + copies


def test_embeddings_stand_on_the_first_stage_and_the_head_on_the_last():
    layers = params_per_rank(GPT, Plan(pp=3), 1)
    assert layers == 2 * GPT.params_per_layer
    assert params_per_rank(GPT, Plan(pp=3), 0) == layers + (68 + 64) * 384
    assert params_per_rank(GPT, Plan(pp=3), 2) == layers + 2 * 384 + 68 * 384


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: params_per_rank(GPT, Plan(tp=5)), "tp=5 does not divide num_heads=6"),
        (lambda: params_per_rank(GPT, Plan(pp=2), 2), "stage 2 does not exist; with pp=2"),
        (lambda: activations_per_layer(GPT, Plan(tp=5)), "tp=5 does not divide num_heads=6"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("precision", ["fp32", "mixed", "mixed_fp32_grads"])
@pytest.mark.parametrize("stage", range(4))
def test_bytes_a_parameter_are_the_model_states_of_many(stage, precision):
    plan = Plan(dp=8, zero=stage, precision=precision)
    assert bytes_per_parameter(plan) * 8000 == model_states(8000, plan).total


def test_experts_are_spread_by_ep_and_sharded_among_their_own_replicas():
    """Mixtral on 16 ranks: an eighth of the experts each, of which one other rank holds a copy."""
    model, plan = ROUTED["mixtral-8x7b"], Plan(dp=16, ep=8, zero=1)
    experts = 32 * 8 * 3 * 4096 * 14_336
    rest = model.num_params - experts
    held = rank_states(model, plan)
    assert held.parameters == 2 * (rest + experts // 8) == 2 * params_per_rank(model, plan)
    assert held.optimizer == pytest.approx(12 * (rest / 16 + experts / 8 / 2), rel=1e-9)
    assert rank_states(model, Plan(dp=16)) == model_states(model.num_params, Plan(dp=16))


def test_hybrid_sharding_holds_what_so_many_ranks_would():
    spread = (model_states(8_000_000_000, Plan(dp=dp, zero=3, shard_ranks=ranks)) for dp, ranks in ((64, 8), (8, None)))
    assert next(spread) == next(spread)
