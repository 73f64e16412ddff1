"""Speed-up, efficiency, scaling laws, where a curve stops paying, ranks that wait, and how far the batch may grow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from helpers.predict.scaling import (
    amdahl,
    critical_batch,
    efficiency,
    fit_amdahl,
    gpu_hours,
    gustafson,
    noise_scale,
    scaled_lr,
    serial_share,
    speedup,
    time_to_train,
    where_it_stops,
)
from helpers.predict.scaling.laws import late_share, points_of, workers_needed
from helpers.specs import PRESETS

COUNTS = (1, 2, 4, 8, 16, 32)


def test_the_smallest_count_passes_for_perfect():
    assert speedup((4, 2, 8), (180.0, 100.0, 320.0)) == pytest.approx((3.6, 2.0, 6.4))
    assert efficiency((4, 2, 8), (3.6, 2.0, 6.4)) == pytest.approx((0.9, 1.0, 0.8))


def test_amdahl_and_gustafson_are_one_law_seen_from_both_ends():
    assert amdahl(4, 0.2) == pytest.approx(2.5)
    assert gustafson(4, 0.2) == pytest.approx(3.4)
    serial = 0.1  # of the time on one; on 8 it is this share of the time
    on_eight = serial / (serial + (1 - serial) / 8)
    assert gustafson(8, on_eight) == pytest.approx(amdahl(8, serial))


def test_karp_and_flatt_turn_amdahl_around_and_see_an_overhead_grow():
    assert [serial_share(n, amdahl(n, 0.07)) for n in COUNTS[1:]] == pytest.approx([0.07] * 5)
    with_overhead = [serial_share(n, 1 / (1 / n + 0.01 * n)) for n in COUNTS[1:]]
    assert with_overhead == sorted(with_overhead)
    with pytest.raises(ValueError, match="measure on 2 or more"):
        serial_share(1, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_finds_the_serial_share_under_noise(seed):
    noise = random.Random(seed)
    fit = fit_amdahl(COUNTS, [amdahl(n, 0.05) * noise.uniform(0.98, 1.02) for n in COUNTS])
    assert fit.serial == pytest.approx(0.05, abs=0.01)
    assert fit.outlier is None


@pytest.mark.parametrize("wrong", COUNTS)
def test_one_wrong_measurement_is_named_and_bends_nothing(wrong):
    fit = fit_amdahl(COUNTS, [amdahl(n, 0.05) * (0.7 if n == wrong else 1.0) for n in COUNTS])
    assert fit.outlier == wrong
    assert fit.serial == pytest.approx(0.05)
    assert fit.residues[COUNTS.index(wrong)] == pytest.approx(-0.3)
    assert f"The row of {wrong} GPU" in repr(fit)


def test_of_four_rows_none_is_called_wrong_and_a_perfect_one_has_no_largest_speed_up():
    assert fit_amdahl((1, 2, 4, 8), (1.0, 2.0, 2.5, 8.0)).outlier is None
    perfect = fit_amdahl((1, 2, 4), (1.0, 2.1, 4.4))
    assert (perfect.serial, perfect.largest) == (0, float("inf"))
    assert "no upper limit on the speed-up" in repr(perfect)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: speedup((1, 2), (1.0,)), "2 counts of GPUs and 1 values"),
        (lambda: speedup((1, 1), (1.0, 2.0)), "name one twice"),
        (lambda: speedup((0,), (1.0,)), "at least 1"),
        (lambda: efficiency((1, 2), (1.0, -2.0)), "the value of 2 GPUs"),
        (lambda: speedup((1,), (float("inf"),)), "infinite"),
        (lambda: amdahl(4, 5), "5 % is 0.05"),
        (lambda: amdahl(0, 0.1), "at least 1"),
        (lambda: fit_amdahl((4,), (1.0,)), "give 2 or more pairs"),
        (lambda: time_to_train(1e9, 1e9, gpus=8, peak_flops=1e12, mfu=40), "40 % is 0.4"),
        (lambda: time_to_train(1e9, 1e9, gpus=0, peak_flops=1e12, mfu=0.4), "at least 1"),
        (lambda: time_to_train(-1, 1e9, gpus=1, peak_flops=1e12, mfu=0.4), "number of parameters"),
        (lambda: workers_needed(0.012, 0, 0.1), "a batch of 0"),
        (lambda: workers_needed(0.012, 32, 0.0), "0.0 s per step"),
        (lambda: late_share(1.5, 4), "late in 1.5 of its steps"),
        (lambda: late_share(0.5, 0), "0 ranks"),
    ],
)
def test_what_cannot_be_is_answered_with_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_it_stops_paying_before_the_first_count_below_the_limit():
    points = points_of((1, 2, 4, 8), (1.0, 1.9, 3.4, 5.0), (1.0, 1.0, 1.0, 1.0))
    assert where_it_stops(points, 0.8).gpus == 4
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


def test_so_many_workers_load_a_batch_while_a_step_computes():
    assert workers_needed(0.012, 32, 0.1) == 4  # 384 ms of loading per step of 100 ms
    assert workers_needed(0.001, 32, 0.1) == workers_needed(0.0, 1, 1.0) == 1


def test_a_step_is_late_when_one_rank_is():
    assert late_share(0.1, 1) == pytest.approx(0.1)
    assert late_share(0.5, 2) == 0.75
    assert late_share(0.0, 64) == 0.0 and late_share(1.0, 64) == 1.0


def test_the_noise_scale_of_known_gradients_is_found_without_bias():
    """Gradients of mean 0.3 in each of 50 directions and variance 4: S / G . G is 200 / 4.5."""
    draw = np.random.default_rng(0)
    samples = draw.normal(0.3, 2.0, size=(400, 64, 50))
    squares = [(samples.reshape(-1, size, 50).mean(axis=1) ** 2).sum(axis=1) for size in (8, 64)]
    found = noise_scale(8, 64, *squares)
    assert found.noise == pytest.approx(200, rel=0.03)
    assert found.batch == pytest.approx(200 / 4.5, rel=0.1)


def test_gradients_without_a_mean_have_no_noise_scale():
    drowned = noise_scale(1, 4, [4.0], [0.9])
    assert drowned.signal < 0 and drowned.batch != drowned.batch
    assert "cannot be told from 0" in repr(drowned)


def test_the_critical_batch_is_found_from_the_steps_of_several_batches():
    batches = (8, 32, 128, 512)
    steps = [100 * (1 + 60 / batch) for batch in batches]
    assert critical_batch(batches, steps) == pytest.approx(60)


def test_the_learning_rate_grows_with_the_batch_or_with_its_root():
    assert scaled_lr(0.1, 1024, 256) == pytest.approx(0.4)
    assert scaled_lr(0.1, 1024, 256, "sqrt") == pytest.approx(0.2)
