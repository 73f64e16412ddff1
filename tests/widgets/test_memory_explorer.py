"""The memory explorer: its dials, examples and measurements, and the comparison of bytes in words."""

from dataclasses import replace

import pytest

from helpers.draw import Rect
from helpers.predict.memory import memory
from helpers.records import MemoryBreakdown
from helpers.specs import GPUS, PRESETS, ModelSpec, Plan
from helpers.widgets import MemoryExplorer
from helpers.widgets.memory_explorer import (
    EXAMPLES,
    FREE,
    MODEL_NAMES,
    comparison_rows,
    comparison_text,
    difference_text,
    rank_of,
)

ROOMY = Plan(dp=8, tp=2, pp=2, micro_batch=4, num_microbatches=8)


def explorer_with(plan=ROOMY, model="llama3-8b", gpu="H100"):
    explorer = MemoryExplorer()
    explorer.show(model, gpu, plan)
    return explorer


def test_the_bars_are_the_prediction():
    explorer = explorer_with()
    assert explorer.plan == ROOMY and explorer.spec == PRESETS["llama3-8b"]
    names = ["ranks 0-15 (stage 0)", "ranks 16-31 (stage 1)"]
    assert [name for name in explorer.bars if name.startswith("ranks")] == names
    assert [explorer.bars[name] for name in names] == [memory(explorer.spec, ROOMY, stage) for stage in (0, 1)]


def test_labels_carry_the_true_parameter_counts():
    labels = dict((key, label) for label, key in MemoryExplorer().model.options)
    assert set(labels) == {*PRESETS, FREE} == {*MODEL_NAMES, FREE}
    assert labels["llama3-405b"] == "Llama-3 405B · 405,853,388,800 parameters"


def test_a_model_comes_with_its_own_sequence():
    explorer = MemoryExplorer()
    explorer.model.value = "gpt2-xl"
    assert explorer.spec == PRESETS["gpt2-xl"]


def test_the_boxes_of_a_free_model_are_there_only_then():
    explorer = MemoryExplorer()
    assert {box.is_shown for box in explorer.boxes} == {False}
    explorer.model.value = FREE
    assert {box.is_shown for box in explorer.boxes} == {True}
    explorer.boxes[0].value = 12
    assert explorer.spec.num_layers == 12
    explorer.boxes[0].value = 0
    assert 'role="alert"' in explorer.widget.html.value and "num_layers is 0" in explorer.text
    assert explorer.make_it_fit.disabled
    explorer.show("gpt2", "V100", Plan())
    assert 'role="alert"' not in explorer.widget.html.value


def test_the_words_say_what_dominates_and_the_smallest_change():
    explorer = explorer_with(Plan(dp=8))
    assert explorer.sentence.startswith("It does not fit: it needs 174 GB, and 75.2 GB are usable (94 % of 80.0 GB).")
    assert "The largest part is optimizer state: 96.4 GB, 56 %." in explorer.sentence
    assert explorer.sentence.endswith("ZeRO-3 instead of 0: 174 GB → 64.3 GB, costs half as much traffic again.")
    assert list(explorer.bars) == ["ranks 0-7", "after the change"]


def test_the_button_makes_it_fit():
    explorer = explorer_with(Plan(dp=8))
    assert not explorer.make_it_fit.disabled
    explorer.make_it_fit.click()
    assert explorer.zero.value == 3 and explorer.advice.fits and explorer.make_it_fit.disabled


def test_a_number_that_a_dial_does_not_offer_becomes_an_option():
    explorer = explorer_with(Plan(dp=24))
    assert explorer.plan.dp == 24
    sizes = [value for _, value in explorer.dp.options]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_sets_every_dial(name):
    explorer = MemoryExplorer()
    explorer.example.value = name
    model, gpu, plan = EXAMPLES[name]
    assert (explorer.model.value, explorer.gpu.value, explorer.plan) == (model, gpu, plan)
    assert 'role="alert"' not in explorer.widget.html.value and explorer.example.value == name
    explorer.optimizer.value = "sgd"
    assert explorer.example.value == ""


def test_the_largest_run_of_the_llama_paper_fits():
    explorer = MemoryExplorer()
    explorer.example.value = "Llama-3 405B on 16,384 H100"
    assert explorer.plan.world_size == 16_384 and explorer.advice.fits


SMALL = ModelSpec(num_layers=2, hidden=64, num_heads=4, vocab=68, seq=40)
ON_TWO = Plan(dp=2, precision="fp32", micro_batch=4)


def measured_on_two(**changes):
    predicted = memory(SMALL, ON_TWO)
    return {f"rank {rank}": replace(predicted, instant="after the step", **changes) for rank in (0, 1)}


def test_measured_bars_stand_below_the_predicted_ones():
    held = MemoryBreakdown(parameters=10**9, gradients=10**9, optimizer=6 * 10**9)
    explorer = MemoryExplorer("gpt2", "V100", {"rank 0": held})
    assert list(explorer.bars) == ["rank 0", "measured: rank 0"] and explorer.bars["measured: rank 0"] is held
    assert explorer.rows[-2]["total"] == "8.00 GB"


def test_the_dials_start_at_the_model_and_plan_that_were_measured():
    explorer = MemoryExplorer(SMALL, "V100", measured_on_two(), plan=ON_TWO)
    assert (explorer.spec, explorer.plan) == (SMALL, ON_TWO)
    assert explorer.seq.value == 40 and explorer.model.value == FREE
    with pytest.raises(ValueError, match="number boxes.*gated=True"):
        MemoryExplorer(replace(SMALL, gated=True))
    with pytest.raises(ValueError, match="num_chunks"):
        MemoryExplorer(SMALL, plan=Plan(pp=2, num_chunks=2))


def test_the_words_and_the_table_say_how_far_apart_they_are():
    explorer = MemoryExplorer(SMALL, "V100", measured_on_two(), plan=ON_TWO)
    words = "Measured, rank 0 (after the step) and rank 1 (after the step): equal to the byte."
    assert explorer.sentence.endswith(words)
    assert [row["ranks"] for row in explorer.rows[-2:]] == [f"measured / predicted: rank {rank}" for rank in (0, 1)]
    assert {value for row in explorer.rows[-2:] for value in list(row.values())[1:]} == {"1.00"}
    half = memory(SMALL, ON_TWO).activations // 2
    explorer.lay_over(ON_TWO, measured_on_two(activations=half))
    assert "activations 0.50 of the prediction" in explorer.sentence and explorer.rows[-1]["activations"] == "0.50"


def test_a_measurement_is_shown_at_its_own_dials_only():
    explorer = MemoryExplorer(SMALL, "V100", measured_on_two(), plan=ON_TWO)
    explorer.recompute.value = "full"
    assert explorer.measured == {} and explorer.sentence.endswith("Nothing was measured with these dials.")
    explorer.lay_over(explorer.plan, {"rank 1, recomputing": MemoryBreakdown(parameters=1)})
    assert list(explorer.measured) == ["rank 1, recomputing"]
    explorer.recompute.value = "none"
    assert list(explorer.measured) == ["rank 0", "rank 1"]


def test_a_rank_is_held_against_its_own_stage():
    plan = Plan(pp=2, micro_batch=4)
    explorer = MemoryExplorer(SMALL, plan=plan, measured={"rank 0": MemoryBreakdown(), "rank 1": MemoryBreakdown()})
    assert explorer.predicted == {"rank 0": memory(SMALL, plan, 0), "rank 1": memory(SMALL, plan, 1)}
    explorer.lay_over(plan, {"rank 2": MemoryBreakdown()})
    assert "measured on rank 2, but this plan has ranks 0 to 1" in explorer.text


def test_without_hints_the_change_is_left_to_the_learner_and_the_button():
    explorer = MemoryExplorer(hints=False)
    assert list(explorer.bars) == ["rank 0"]
    assert explorer.sentence.endswith("The largest part is optimizer state: 96.4 GB, 56 %.")
    explorer.make_it_fit.click()
    assert explorer.advice.fits


def test_a_model_that_is_next_to_nothing_gets_an_axis_of_its_own():
    small, large = MemoryExplorer(SMALL), MemoryExplorer("gpt2-xl")
    assert not any("75.2 GB" in getattr(item, "text", "") for item in small.scene.items)
    assert any("75.2 GB" in getattr(item, "text", "") for item in large.scene.items)


def test_the_table_says_what_the_picture_shows():
    rows = explorer_with(Plan(dp=8, zero=3)).rows
    assert [row["ranks"] for row in rows] == ["ranks 0-7"]
    assert rows[0]["optimizer"] == "12.0 GB" and rows[0]["total"] == "64.3 GB"


def test_the_picture_names_kinds_parameters_and_gpus():
    explorer = explorer_with()
    assert any(isinstance(item, Rect) and "optimizer" in item.tooltip for item in explorer.scene.items)
    assert "8,030,261,248 parameters, on 32 x H100" in explorer.scene.title


def test_an_unknown_preset_gets_a_sentence():
    with pytest.raises(ValueError, match="'llama9'.*Llama-3 8B"):
        MemoryExplorer("llama9")
    with pytest.raises(ValueError, match="'TPU'"):
        MemoryExplorer(gpu="TPU")
    assert set(dict((key, label) for label, key in MemoryExplorer().gpu.options)) == set(GPUS)


PREDICTED = MemoryBreakdown(parameters=400, gradients=400, optimizer=800, activations=1000)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (dict(parameters=400, gradients=400, optimizer=800, activations=1000), "equal to the byte"),
        (
            dict(parameters=400, gradients=400, optimizer=800, activations=500),
            "parameters, gradients and optimizer equal to the byte; activations 0.50 of the prediction "
            "(500 B of 1.00 kB); in all 0.81 of the prediction (2.10 kB of 2.60 kB)",
        ),
        (
            dict(parameters=400, optimizer=800, activations=1001, buffers=5),
            "parameters and optimizer equal to the byte; activations 1 B more than the prediction; buffers 5 B, none "
            "predicted; no gradients there (400 B predicted); in all 0.85 of the prediction (2.21 kB of 2.60 kB)",
        ),
        (
            dict(parameters=401, gradients=399, optimizer=800, activations=1000),
            "optimizer and activations equal to the byte; parameters 1 B more than the prediction; gradients 1 B less "
            "than the prediction; in all equal to the byte",
        ),
    ],
)
def test_each_kind_is_named_once(measured, words):
    assert difference_text(PREDICTED, MemoryBreakdown(**measured)) == words
    assert difference_text(MemoryBreakdown(), MemoryBreakdown()) == "nothing predicted, nothing measured"


def test_bars_that_part_alike_share_a_sentence():
    measured = {f"rank {rank}": MemoryBreakdown(parameters=4 + (rank == 2)) for rank in range(3)}
    predicted = dict.fromkeys(measured, MemoryBreakdown(parameters=4))
    assert comparison_text(predicted, measured) == (
        "Measured, rank 0 and rank 1: equal to the byte. Measured, rank 2: parameters 1.25 of the prediction "
        "(5 B of 4 B); in all 1.25 of the prediction (5 B of 4 B)."
    )


def test_the_table_has_a_dash_where_nothing_was_predicted():
    measured = {"a": MemoryBreakdown(parameters=200, buffers=7)}
    (row,) = comparison_rows({"a": PREDICTED}, measured, ["parameters", "buffers"])
    assert list(row.values()) == ["measured / predicted: a", "0.50", "–", "0.08"]


def test_a_name_says_its_rank():
    assert [rank_of(name) for name in ("rank 3, at the peak", "after the step", "ranks 0-3")] == [3, None, None]
