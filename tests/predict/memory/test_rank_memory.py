"""All kinds of bytes of a rank together, and which ranks are alike."""

from dataclasses import replace

import pytest

from helpers.predict.memory import (
    activations,
    activations_per_layer,
    edge_activations,
    logits,
    memory,
    model_states,
    params_per_rank,
    rank_kinds,
    temporaries,
)
from helpers.predict.memory.activations import context_buffers
from helpers.predict.memory.rank_memory import RankMemory, representative_stages
from helpers.specs import PRESETS, ROUTED, Plan

LLAMA = PRESETS["llama3-8b"]
GPT2 = PRESETS["gpt2"]
TABLE, LAYER = 128_256 * 4096, LLAMA.params_per_layer


def test_a_rank_is_the_sum_of_its_parts():
    plan = Plan(pp=2, tp=2, dp=4, zero=1, num_microbatches=8)
    for stage in (0, 1):
        held, states = memory(LLAMA, plan, stage), model_states(params_per_rank(LLAMA, plan, stage), plan)
        for kind in ("parameters", "gradients", "optimizer"):
            assert getattr(held, kind) == getattr(states, kind)
        head = logits(LLAMA, plan) if stage == 1 else 0
        assert held.activations == activations(LLAMA, plan, stage) + edge_activations(LLAMA, plan, stage) + head
        assert held.buffers == 8 * 8192 * 64  # a cosine and a sine for each of 64 pairs


def test_learned_positions_need_no_buffer():
    assert memory(GPT2, Plan()).buffers == 0


def test_the_gradient_of_the_logits_is_there_for_a_moment_on_the_last_stage():
    plan = Plan(pp=2, num_microbatches=2)
    assert temporaries(LLAMA, plan, 0) == 0
    assert temporaries(LLAMA, plan, 1) == logits(LLAMA, plan) == 4 * 8192 * 128_256


def test_zero_2_and_3_need_whole_units_for_a_moment():
    """The largest units of a Llama with one stage are its two tables."""
    base = temporaries(LLAMA, Plan(dp=8, zero=1))
    assert temporaries(LLAMA, Plan(dp=8, zero=2)) - base == 2 * TABLE
    assert temporaries(LLAMA, Plan(dp=8, zero=3)) - base == 2 * TABLE + 2 * (2 * TABLE)
    assert temporaries(LLAMA, Plan(dp=8, pp=4, zero=3), 1) == 2 * LAYER + 2 * (2 * LAYER)
    assert temporaries(LLAMA, Plan(dp=1, zero=3)) == base


@pytest.mark.parametrize(
    ("method", "elements"),
    [
        ("ring", 8 * 1024 * 2048),  # two blocks of keys and values, and their gradients, of 2,048 tokens
        ("all_gather", 4 * 1024 * 8192),  # keys and values of all tokens, and their gradients
        ("all_to_all", 2 * (4096 + 1024) * 2048),  # queries, keys, values and output as shards of heads
    ],
)
def test_context_parallelism_needs_buffers_by_its_method(method, elements):
    """Llama 3 8B on 4 ranks: keys have 1,024 columns, queries 4,096, and tp splits both. 16 ranks need copied heads."""
    plan = Plan(cp=4, cp_method=method)
    assert context_buffers(LLAMA, plan, backward=True) == 2 * elements
    assert context_buffers(LLAMA, replace(plan, tp=2), backward=True) == elements
    assert context_buffers(LLAMA, plan) == (2 if method == "all_to_all" else 1) * elements
    assert context_buffers(LLAMA, Plan()) == 0
    assert temporaries(LLAMA, plan) == logits(LLAMA, plan) + 2 * elements
    if method == "all_to_all":
        assert context_buffers(LLAMA, replace(plan, cp=16)) == 2 * 2 * (4096 + 2048) * 512
    _, found = RankMemory(LLAMA).fullest_stage(plan)
    assert found == memory(LLAMA, plan)


def test_recomputation_brings_one_layer_back():
    plan = Plan(recompute="full")
    back = temporaries(LLAMA, plan) - temporaries(LLAMA, Plan())
    assert back == activations_per_layer(LLAMA, Plan()) - activations_per_layer(LLAMA, plan) > 0


@pytest.mark.parametrize("model", [GPT2, LLAMA, PRESETS["llama3-70b"]])
def test_every_zero_stage_holds_less(model):
    totals = [memory(model, Plan(dp=64, zero=stage)).total for stage in range(4)]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4


@pytest.mark.parametrize("axis", ["tp", "pp", "cp"])
def test_every_axis_makes_the_fullest_rank_smaller(axis):
    plans = [replace(Plan(num_microbatches=16), **{axis: size}) for size in (1, 2, 4, 8)]
    totals = [max(kind.breakdown.total for kind in rank_kinds(LLAMA, plan)) for plan in plans]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4


def test_equal_ranks_are_one_kind():
    assert [kind.name for kind in rank_kinds(LLAMA, Plan())] == ["rank 0"]
    assert [kind.name for kind in rank_kinds(LLAMA, Plan(dp=4, tp=2))] == ["ranks 0-7"]
    names = [kind.name for kind in rank_kinds(LLAMA, Plan(pp=4, tp=8, dp=2))]
    assert names == ["ranks 0-15 (stage 0)", "ranks 16-47 (stages 1-2)", "ranks 48-63 (stage 3)"]


def test_of_many_kinds_the_ends_and_some_between_are_shown():
    kinds = rank_kinds(PRESETS["gpt3-175b"], Plan(pp=32, num_microbatches=64))
    assert len(kinds) == 8
    stages = [kind.stage for kind in kinds]
    assert stages == sorted(set(stages)) and stages[:2] == [0, 1] and stages[-2:] == [30, 31]


def test_a_kind_holds_what_its_stage_holds():
    plan = Plan(pp=4, num_microbatches=8)
    assert all(kind.breakdown == memory(LLAMA, plan, kind.stage) for kind in rank_kinds(LLAMA, plan))


@pytest.mark.parametrize("model", [GPT2, LLAMA, ROUTED["mixtral-8x7b"]])
def test_the_memory_of_many_plans_is_that_of_single_ones(model):
    """What plans share is computed once, so an entry of the wrong plan would show here."""
    together, experts = RankMemory(model), min(2, model.num_experts)
    plans = [
        Plan(**axes, zero=zero, micro_batch=size, num_microbatches=8, recompute=recompute, precision=precision)
        for axes in ({"dp": 4}, {"dp": 2, "tp": 2, "sequence_parallel": True}, {"dp": 4, "pp": 4}, {"dp": 2, "cp": 2})
        for axes in (axes, {**axes, "ep": experts})
        for zero in (0, 1, 2, 3)
        for size in (1, 4)
        for recompute in ("none", "full")
        for precision in ("mixed", "mixed_fp32_grads")
    ]
    for plan in plans:
        stages = [memory(model, plan, stage) for stage in range(plan.pp)]
        stage, held = together.fullest_stage(plan)
        assert held == stages[stage] and held.total == max(one.total for one in stages)
        assert together.fits(plan, held.total) and not together.fits(plan, held.total - 1)
        assert together.least_bytes(plan) < held.total


@pytest.mark.parametrize(("axes", "measured"), [({"dp": 8, "ep": 8}, 45.63), ({"dp": 4, "ep": 4, "pp": 2}, 44.7)])
def test_latent_attention_and_experts_hold_about_what_was_measured(axes, measured):
    """GiB of the fullest rank of four layers of DeepSeek-V2, from SimuMax's table for 8 B200 (expert_rows.csv)."""
    model = replace(ROUTED["deepseek-v2"], num_layers=4, seq=4096)
    plan = Plan(**axes, zero=1, num_microbatches=4, precision="mixed_fp32_grads")
    fullest = max(memory(model, plan, stage).total for stage in range(plan.pp))
    assert fullest / 2**30 == pytest.approx(measured, rel=0.04)


def test_the_fullest_stage_is_found_behind_dense_layers():
    """Of one layer per stage, three stages have no experts, so the fourth stands for all others."""
    model, plan = ROUTED["deepseek-v3"], Plan(pp=61, dp=8, ep=8, num_microbatches=8)
    assert representative_stages(model, plan) == [0, 1, 3, 60]
    totals = [memory(model, plan, stage).total for stage in range(61)]
    assert totals.index(max(totals)) in (3, 60)
