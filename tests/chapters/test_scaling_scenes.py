"""Chapter 11's pictures of predicted and published steps: what they say, and that the numbers of the texts hold."""

import pytest

from helpers.chapters import scaling_scenes as scenes
from helpers.predict.by_hand.step_time import dollars_per_million_tokens, fitted_utilization, step_terms, training_days
from helpers.predict.scaling import explain_curve
from helpers.predict.time.calibrate import calibrate

H100 = {"peak": 989e12, "utilization": 0.5, "nvlink": 370e9, "network": 50e9}


def numbers(name, recomputed, chunks=1):
    """The model and the plan of a published step as the dicts of `step_terms`, and its seconds."""
    row = scenes.published_row(name)
    sizes = {"layers": row.model.num_layers, "hidden": row.model.hidden, "seq": row.model.seq}
    plan = {"dp": row.plan.dp, "tp": row.plan.tp, "pp": row.plan.pp, "micro_batch": row.plan.micro_batch}
    plan |= {"micro_batches": row.plan.num_microbatches, "chunks": chunks, "recomputed": recomputed}
    return {"parameters": row.model.num_params} | sizes, plan, row.seconds


def test_half_of_the_peak_gives_the_step_of_405b_and_tensor_parallelism_is_its_largest_message():
    model, plan, seconds = numbers(scenes.BIG, 0, chunks=8)
    compute, bubble, tensor, exposed = step_terms(model, plan, H100)
    assert (compute, bubble, tensor) == pytest.approx((10.9, 0.64, 1.28), rel=0.01) and exposed == 0
    assert compute + bubble + tensor == pytest.approx(seconds, rel=0.04)


@pytest.mark.parametrize(("repeated", "reached", "miss"), [(0, 0.41, 0.13), (0.36, 0.46, 0.03)])
def test_the_70b_is_missed_by_what_the_8b_recomputed(repeated, reached, miss):
    model, plan, seconds = numbers(scenes.SMALL, repeated)
    utilization = fitted_utilization(seconds, model, plan, H100)
    assert utilization == pytest.approx(reached, abs=0.005)
    assert sum(step_terms(model, plan, H100 | {"utilization": utilization})) == pytest.approx(seconds)
    model, plan, seconds = numbers(scenes.LARGE, 1)
    found = sum(step_terms(model, plan, H100 | {"utilization": utilization}))
    assert found / seconds - 1 == pytest.approx(miss, abs=0.005)


def test_both_bf16_rows_ran_in_bf16_and_the_published_step_lies_in_the_interval():
    small, large = scenes.published_row(scenes.SMALL), scenes.published_row(scenes.LARGE)
    assert not small.plan.fp8 and not large.plan.fp8 and scenes.published_row(scenes.LARGE_FP8).plan.fp8
    low, high = calibrate([small]).estimate(large.model, large.plan, large.cluster, large.stack).interval
    assert low < large.seconds < high


def test_the_price_of_a_token_times_all_tokens_is_the_price_of_all_hours():
    _, hours = training_days({"parameters": 8e9, "layers": 32, "hidden": 4096, "seq": 8192}, 1e12, 8, 989e12, 0.4, 0, 0)
    seconds = hours / 8 * 3600 / 1e6  # of a step, if a million steps take all tokens
    assert dollars_per_million_tokens(1e6, 8, seconds, 2) * 1e6 == pytest.approx(2 * hours)


def test_a_prediction_is_drawn_above_what_was_published_and_says_by_how_much_it_misses():
    scene = scenes.terms_scene({"8 GPUs": (8.0, 1.0, 1.0, 0.0)}, published={"8 GPUs": 12.5}, title="A step")
    assert "10.0 s predicted" in scene.summary and "published: 12.5 s; the prediction is 20% shorter" in scene.summary
    two = {"8 GPUs": (8.0, 0, 0, 0), "16 GPUs": (4.0, 0, 0, 0)}
    assert "16 GPUs, published: 5.0 s" in scenes.terms_scene(two, published={"16 GPUs": 5.0}, title="Two").summary
    summary = scenes.terms_scene(two, published={"16 GPUs": 5.0}, title="Two", source="from the rate").summary
    assert "16 GPUs, from the rate: 5.0 s" in summary


def test_the_step_of_405b_takes_more_than_twice_as_long_as_the_data_sheet_says():
    assert "from the published rate: 12.5 s" in scenes.opening_scene().summary


def test_twice_the_gpus_are_nearly_twice_as_fast_in_every_published_pair():
    found = scenes.published_doublings()
    assert len(found) == 4 and all(many == 2 * few and 1.8 < speedup < 2 for _, few, many, speedup in found)


def test_the_float8_run_has_an_mfu_over_two_peaks_and_the_bf16_run_over_one():
    bf16, fp8 = scenes.utilization_table().splitlines()[1:]
    assert bf16.split()[:5] == ["bf16", "27.4", "s", "597", "29%"] and "no products in 8 bits" in bf16
    assert fp8.split() == ["Float8", "19.8", "s", "829", "40%", "20%"]


def test_hybrid_sharding_halves_a_step_behind_one_network_card_and_gains_little_behind_eight():
    said = scenes.hybrid_scene(8, 4).summary
    assert "ZeRO-3, 1 network card per node: 13.6 s" in said and "hybrid, 1 network card per node: 5.9 s" in said
    assert said.count("4.7 s") == 2


def test_zero_3_sends_three_models_per_micro_batch_between_nodes_and_hybrid_sharding_two_per_step():
    sent = scenes.models_between_nodes(8, 4)
    assert sent == {"ZeRO-3": pytest.approx(12 * 7 / 8), "hybrid": pytest.approx(2 * 7 / 8)}


def test_only_a_divided_batch_leaves_nothing_to_the_shared_input():
    assert scenes.loss_to_input(explain_curve(images=64)) > 0.3
    assert scenes.loss_to_input(explain_curve(images=1024, kind="strong")) < 0.01


def test_the_nearest_number_of_tokens_is_nearest_by_factor():
    assert scenes.nearest_tokens(60e9) == "160 billion"


def test_what_was_measured_is_named_like_a_choice():
    assert [scenes.name_of_change(factor) for factor in (0.5, 1.1, 8)] == [
        "smaller than before", "about the same", "larger than before",
    ]  # fmt: skip
    assert [scenes.name_of_speedup(speedup)[:5] for speedup in (0.3, 2, 3.8)] == ["fewer", "about", "nearl"]
