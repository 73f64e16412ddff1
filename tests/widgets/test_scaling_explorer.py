"""The explorer works without a front end: plan, curve and costs follow the dials and agree with the model of time."""

from dataclasses import replace

import pytest

from helpers.predict.advice.fit import USABLE_SHARE, fullest_stage
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.predict.time.step import step_time
from helpers.specs import CLUSTERS, PRESETS
from helpers.widgets import ScalingExplorer

LLAMA = PRESETS["llama3-70b"]


def test_the_plan_is_that_of_the_dials_and_fits_and_what_it_costs_is_the_models_step_times_all_steps():
    shown = ScalingExplorer()
    found, plan = shown.estimate, shown.estimate.plan
    assert (plan.tp, plan.pp, plan.zero, plan.recompute, plan.world_size) == (8, 4, 1, "none", 512)
    assert plan.dp * plan.micro_batch * plan.num_microbatches == 1024
    assert found.memory == fullest_stage(LLAMA, plan)[1] and found.memory.total <= USABLE_SHARE * 80e9
    cluster = replace(CLUSTERS["128 nodes of 8 H100, 8 x 400 Gb/s"], num_nodes=64)
    assert found.step.bars == step_time(LLAMA, plan, cluster, MEGATRON_CORE).bars
    assert step_time(LLAMA, replace(plan, num_chunks=1), cluster, MEGATRON_CORE).seconds > found.seconds
    (whole,) = (shown.training(point) for point in shown.points if point.gpus == 512)
    assert whole.seconds == pytest.approx(15e12 / (1024 * 8192) * found.seconds)
    assert f"{float(f'{512 * whole.days * 24:.3g}'):,.0f} GPU-hours" in shown.sentence


def test_the_curve_has_every_count_that_fits_and_ends_with_the_batch():
    shown = ScalingExplorer()
    assert [point.gpus for point in shown.points] == [2**n for n in range(5, 15)]
    assert max(point.efficiency for point in shown.points) == 1 and shown.points[-1].efficiency < 0.5
    assert shown.sentence.endswith("Beyond 8,192 GPUs efficiency is below 70%.")
    shown.batch.value = 64
    assert [point.gpus for point in shown.points][-1] == 64 * 32
    shown.batch.value = 16_384
    assert shown.sentence.endswith("Efficiency stays above 70% up to 16,384 GPUs.")


def test_the_button_sets_the_dials_to_a_plan_that_fits_or_says_until_a_dial_moves_that_none_does():
    shown = ScalingExplorer("llama3-8b", gpus=8, batch=64, tp=1, pp=8, zero=0)
    before = shown.widget.html.value
    shown.planner.click()
    plan = shown.estimate.plan
    assert (plan.tp, plan.pp, plan.zero) == (shown.tp.value, shown.pp.value, shown.zero.value) != (1, 8, 0)
    assert "alert" not in shown.widget.html.value != before
    shown = ScalingExplorer("llama3-405b", "T4", gpus=8, batch=64)
    shown.planner.click()
    assert shown.planner.description == "Nothing fits here" and not shown.planner.disabled
    shown.batch.value = 128
    assert shown.planner.description == "Take the planner's plan"
