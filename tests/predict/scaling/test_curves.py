"""Predicted curves: strong and weak, where they stop paying, and the days of a training."""

import pytest

from helpers.predict.scaling import curve, gpu_hours, time_to_train, where_it_stops
from helpers.predict.scaling.curves import points_of, resized
from helpers.predict.time.convolutions import RESNET_152
from helpers.predict.time.model import step_time
from helpers.predict.time.stacks import MEGATRON_CORE
from helpers.specs import CLUSTERS, PRESETS, Plan

NODES = CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]
SMALL = PRESETS["gpt2"]
TO_4096 = tuple(2**power for power in range(13))


def test_a_fixed_batch_scales_worse_than_one_that_grows():
    strong = curve(SMALL, NODES, gpus=TO_4096, batch=4096)
    weak = curve(SMALL, NODES, gpus=TO_4096, batch=16, kind="weak", plan=Plan(micro_batch=16))
    assert strong[0].speedup == weak[0].speedup == 1
    assert strong[-1].efficiency < 0.5 < weak[-1].efficiency
    assert weak[-1].samples_per_second == pytest.approx(16 * 4096 / weak[-1].seconds)
    assert strong[-1].efficiency < strong[0].efficiency / 2


def test_a_point_is_the_step_of_its_plan_on_its_cluster():
    point = curve(SMALL, NODES, gpus=(8, 16), batch=64, plan=Plan(tp=2, micro_batch=8))[1]
    plan = Plan(tp=2, dp=8, micro_batch=8, num_microbatches=1)
    assert point.step == step_time(SMALL, plan, resized(NODES, 16), MEGATRON_CORE)
    assert point.speedup == pytest.approx(16 * point.efficiency)


def test_replicas_with_fewer_samples_than_a_micro_batch_take_smaller_ones():
    """Of 3 samples one micro-batch of 3; of 6 two of 3, since 4 would leave a rest."""
    for batch, often in ((12, 1), (24, 2)):
        found = curve(SMALL, NODES, gpus=(4,), batch=batch, plan=Plan(micro_batch=4))[0]
        plan = Plan(dp=4, micro_batch=3, num_microbatches=often)
        assert found.step == step_time(SMALL, plan, resized(NODES, 4), MEGATRON_CORE)


def test_a_batch_that_grows_is_that_of_the_smallest_count_whatever_that_is():
    points = curve(SMALL, NODES, gpus=(8, 2, 4), batch=6, kind="weak")
    assert [one.samples_per_second * one.seconds for one in points] == pytest.approx([24, 6, 12])


def test_a_resnet_has_a_curve_too_and_a_function_may_give_the_cluster():
    points = curve(RESNET_152, lambda gpus: resized(NODES, gpus), gpus=(1, 8, 16), batch=64, kind="weak")
    uncovered = curve(RESNET_152, NODES, gpus=(1, 8, 16), batch=64, kind="weak", data_hidden=0.0)
    assert 0.9 < points[-1].efficiency <= 1
    assert uncovered[-1].efficiency < points[-1].efficiency


def test_it_stops_paying_before_the_first_count_below_the_limit():
    points = curve(SMALL, NODES, gpus=TO_4096, batch=4096)
    stop = where_it_stops(points, 0.8)
    after = points[points.index(stop) + 1]
    assert stop.efficiency >= 0.8 > after.efficiency
    dip = points_of((1, 2, 4), (1.0, 1.0, 4.0), (1.0, 1.0, 1.0))
    assert where_it_stops(dip, 0.8).gpus == 1
    with pytest.raises(ValueError, match="at most 1"):
        where_it_stops(points, 1.5)


def test_days_and_gpu_hours_by_hand():
    found = time_to_train(1e9, 20e9, gpus=10, peak_flops=1e14, mfu=0.5)  # 1.2e20 operations at 5e14 a second
    assert found.seconds == pytest.approx(240_000)
    assert found.gpu_hours == pytest.approx(gpu_hours(10, 240_000)) == pytest.approx(666.67, rel=1e-4)
    assert repr(found) == "2.8 days on 10 GPUs, 667 GPU-hours"
    assert time_to_train(1e9, 20e9, gpus=10, peak_flops=1e14, mfu=0.5, lost=0.2).seconds == pytest.approx(300_000)


def test_a_model_counts_its_attention_and_llama_3_took_about_as_long_as_published():
    """The Llama 3 Herd of Models: 405B, 15.6 T tokens, 16,384 H100 at 38 to 43 %: 30.84 M GPU-hours (model card)."""
    model = PRESETS["llama3-405b"]
    found = time_to_train(model, 15.6e12, gpus=16_384, peak_flops=989e12, mfu=0.4)
    rule = time_to_train(model.num_params, 15.6e12, gpus=16_384, peak_flops=989e12, mfu=0.4)
    assert found.gpu_hours == pytest.approx(30.84e6, rel=0.15)
    assert rule.seconds < found.seconds < 1.15 * rule.seconds


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: curve(SMALL, NODES, gpus=(1, 12), batch=24), "GPUs of a node=8 does not divide GPUs=12"),
        (lambda: curve(SMALL, NODES, gpus=(1, 8), batch=12), "replicas=8 does not divide samples=12"),
        (
            lambda: curve(SMALL, NODES, gpus=(1, 8), batch=8, plan=Plan(tp=2)),
            r"tp \* pp \* cp=2 does not divide GPUs=1",
        ),
        (lambda: curve(RESNET_152, NODES, gpus=(1, 8), batch=12), "GPUs=8 does not divide samples=12"),
        (lambda: curve(SMALL, NODES, gpus=(0, 1), batch=8), "at least 1"),
        (lambda: curve(SMALL, NODES, gpus=(1,), batch=0), "at least 1"),
        (lambda: curve(SMALL, NODES, gpus=(1,), batch=8, kind="both"), "one of strong, weak"),
        (lambda: time_to_train(1e9, 1e9, gpus=8, peak_flops=1e12, mfu=40), "40 % is 0.4"),
        (lambda: time_to_train(1e9, 1e9, gpus=0, peak_flops=1e12, mfu=0.4), "at least 1"),
        (lambda: time_to_train(-1, 1e9, gpus=1, peak_flops=1e12, mfu=0.4), "number of parameters"),
    ],
)
def test_what_does_not_divide_or_cannot_be_is_answered_with_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()
