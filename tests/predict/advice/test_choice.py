"""Which plans the planner cannot tell apart, by an error that was measured, and that it takes the simplest of them."""

from contextlib import nullcontext
from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks import plan_pairs
from helpers.predict.advice import advise
from helpers.predict.advice.choice import LAYOUT_TIE, RIGHT_WITHIN, VARIANT_TIE, can_tell_apart, complexity, ranked
from helpers.predict.advice.plans import PlanEstimate, PlanRequest, strategy_of
from helpers.predict.advice.search import micro_batches, sharded_plans
from helpers.predict.advice.summary import legend
from helpers.predict.time.stacks import STACKS
from helpers.predict.time.step import Bar, StepTime
from helpers.records import MemoryBreakdown
from helpers.specs import CLUSTERS, PRESETS, ROUTED, Plan
from helpers.specs.trainable import check_trainable

REQUEST = PlanRequest(model=PRESETS["gpt2"], cluster=CLUSTERS["8 H100"], global_batch=64)
MEMORY = MemoryBreakdown(parameters=1, gradients=1, optimizer=1, activations=1, instant="as backward starts")
DDP, ZERO_3, TP = Plan(dp=8, num_microbatches=1), Plan(dp=8, zero=3), Plan(tp=8, sequence_parallel=True)
PP = Plan(pp=8, num_microbatches=8, precision="mixed_fp32_grads")


def timed(plan, seconds, **more):
    step = StepTime(bars=(Bar(name="products", seconds=seconds, binds="tensor cores"),))
    return PlanEstimate(name=strategy_of(plan), plan=plan, memory=MEMORY, step=step, **more)


def order(*estimates):
    return [(one.plan, one.is_tied) for one in ranked(REQUEST, estimates)]


def test_what_cannot_be_told_apart_is_what_measured_pairs_do_not_tell_apart():
    """The constants, against the tables of measured steps in helpers/predict/time/data."""
    pairs = plan_pairs.all_pairs()
    for tie, is_same in ((LAYOUT_TIE, False), (VARIANT_TIE, True)):
        alike = [pair for pair in pairs if pair.has_same_layout == is_same]
        assert plan_pairs.right_share(alike, 0, tie) < 0.7 < 0.8 < plan_pairs.right_share(alike, tie, 1.5 * tie)
    others = [pair for pair in pairs if not pair.has_same_layout]
    assert plan_pairs.right_share(others, 0, LAYOUT_TIE) == pytest.approx(RIGHT_WITHIN, abs=0.05)


def test_the_simplest_of_tied_plans_loses_no_more_measured_time_than_the_one_estimated_fastest():
    tasks = plan_pairs.measured_tables()["vTrain, one node"]
    assert len(plan_pairs.lost(tasks, 0)) > 90
    assert fmean(plan_pairs.lost(tasks, LAYOUT_TIE)) <= fmean(plan_pairs.lost(tasks, 0)) < 0.05


def test_within_the_tie_the_simpler_plan_comes_first_and_beyond_it_the_faster_one():
    near, far = 1 + 0.9 * LAYOUT_TIE, 1 + 1.1 * LAYOUT_TIE
    assert order(timed(TP, 1), timed(DDP, near)) == [(DDP, True), (TP, True)]
    assert order(timed(TP, 1), timed(DDP, far)) == [(TP, True), (DDP, False)]
    assert order(timed(PP, 1), timed(DDP, 3), timed(TP, 2)) == [(PP, True), (TP, False), (DDP, False)]
    assert can_tell_apart(timed(TP, 1), timed(DDP, far)) and not can_tell_apart(timed(TP, 1), timed(DDP, near))


def test_of_one_layout_only_a_nearer_plan_wins_by_being_simpler():
    chunked = replace(PP, num_chunks=2, schedule="interleaved")
    assert order(timed(chunked, 1), timed(PP, 1 + 0.9 * VARIANT_TIE)) == [(PP, True)]
    assert order(timed(chunked, 1), timed(PP, 1 + 1.1 * VARIANT_TIE)) == [(chunked, True)]


def test_sums_in_16_bits_and_warnings_count_against_a_plan_that_is_no_faster():
    assert order(timed(replace(PP, precision="mixed"), 1), timed(PP, 1 + 0.9 * LAYOUT_TIE)) == [(PP, True)]
    warned = timed(DDP, 1, warnings={"full": "It is nearly full."})
    assert order(warned, timed(ZERO_3, 1)) == [(ZERO_3, True), (DDP, True)]


def test_simple_is_what_asks_least_of_a_training_script():
    rising = (DDP, Plan(dp=8, zero=1), ZERO_3, TP, PP, Plan(tp=8, pp=2, dp=8), Plan(cp=2, tp=8, pp=2, dp=4))
    points = [complexity(plan, 1024) for plan in rising]
    assert points[0] == 0 and points == sorted(set(points))
    assert complexity(Plan(cp=8), 131_072) < complexity(Plan(cp=8), 8192)


def test_without_plans_there_is_no_order():
    assert ranked(REQUEST, []) == []


def test_each_plan_says_whether_the_trainer_runs_it_by_the_trainers_own_check():
    many = replace(CLUSTERS["128 nodes of 8 H100, 8 x 400 Gb/s"], num_nodes=16)
    model = ROUTED["mixtral-8x7b"]
    found = advise(model, many, global_batch=1024)  # among the best are plans with ep, and plans with cp without ep
    assert {bool(one.trainer_refusal(model)) for one in found.best} == {True, False}
    for one in found.best:
        with pytest.raises(ValueError) if one.trainer_refusal(model) else nullcontext() as refused:
            check_trainable(one.plan, 4 * model.num_params)
        assert not refused or str(refused.value) == one.trainer_refusal(model)
    check_trainable(found.trainable.plan, 4 * model.num_params)
    assert found.trainable.plan_text in " ".join(found.text.split()) and "--row says why" in found.text
    refused_alone = replace(found, best=tuple(one for one in found.best if one.trainer_refusal(model)))
    assert found.trainable.plan_text in dict(legend(refused_alone))["T"]
    offloaded = advise(PRESETS["gpt2-xl"], CLUSTERS["1 T4"]).chosen
    assert offloaded.trainer_refusal(PRESETS["gpt2-xl"]) == "it has no offload"


def test_a_pipeline_with_chunks_has_the_schedule_that_the_trainer_asks_for():
    work = advise(PRESETS["gpt2"], CLUSTERS["8 H100"], global_batch=64).request
    layouts = (layout for sharded in sharded_plans(work) for layout in sharded)
    of_sizes = (of_size for layout in layouts for of_size in micro_batches(work, layout))
    chunked = [row.base for of_size in of_sizes for row in of_size.rows if row.base.num_chunks > 1]
    assert chunked and {plan.schedule for plan in chunked} == {"interleaved"}
    for plan in chunked:
        check_trainable(plan, 0)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_what_a_stack_does_beside_the_plan_is_no_reason_to_refuse_it(stack):
    model = PRESETS["gpt2"]
    assert not advise(model, CLUSTERS["8 H100"], global_batch=8, stack=stack).chosen.trainer_refusal(model)
