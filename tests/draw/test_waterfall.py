"""A step as a waterfall: its bars add up."""

from dataclasses import replace

import pytest

from helpers.draw.scene import Line, Rect
from helpers.draw.waterfall import BINDS, step_scene, words
from helpers.predict.time.convolutions import RESNET_152, resnet_step
from helpers.predict.time.stacks import DEEPSEEK, FSDP
from helpers.predict.time.step import Bar, StepTime, step_time
from helpers.specs import CLUSTERS, PRESETS, Plan
from tests.draw.scenes import SCENES, rects_with_tooltip


def test_each_bar_begins_where_the_one_above_ends():
    scene = SCENES["a waterfall"]
    panel, *_ = (item for item in scene.items if isinstance(item, Rect) and item.fill == "panel")
    bars = rects_with_tooltip(scene)
    assert bars[0].x == panel.x and bars[-1].x + bars[-1].width == pytest.approx(panel.x + panel.width)
    assert [one.x for one in bars[1:]] == pytest.approx([one.x + one.width for one in bars[:-1]])
    assert "waiting: 20.0 ms · 20%" in scene.summary


def step(factor=1.0, **seconds):
    """A step of these terms; an underscore stands for a space."""
    bars = [Bar(name=name.replace("_", " "), seconds=s, binds="network") for name, s in seconds.items()]
    return StepTime(bars=tuple(bars), factor=factor)


def bars(scene):
    return {item.tooltip.partition(":")[0]: item for item in scene.items if isinstance(item, Rect) and item.tooltip}


def test_the_terms_of_a_predicted_step_add_up_to_it_and_its_interval_is_a_whisker():
    one = step(1.25, products=0.75, bubble=0.15, optimizer=0.097, embedding=0.002, gradients=0.001)
    scene = step_scene(one, title="")
    assert list(bars(scene)) == ["products", "bubble", "optimizer", "2 short terms", "the step"]
    *terms, whole = bars(scene).values()
    assert [one.x for one in terms] == pytest.approx([whole.x, *(one.x + one.width for one in terms[:-1])])
    assert sum(one.width for one in terms) == pytest.approx(whole.width, abs=0.01)
    assert "products: 750 ms · 75.0% · network." in scene.summary
    whisker, *_ = (item for item in scene.items if isinstance(item, Line))
    assert [(x - whole.x) / whole.width for x in (whisker.x1, whisker.x2)] == pytest.approx([0.8, 1.25])
    assert "the step: 1.00 s, 80 %: 800 ms to 1.25 s." in scene.summary


def test_every_term_and_what_binds_it_has_its_words_and_its_paint():
    cluster = CLUSTERS["4 nodes of 8 H100, 8 x 400 Gb/s"]
    plans = {
        Plan(tp=16, pp=2, num_microbatches=4, recompute="full", sequence_parallel=True): FSDP,
        Plan(dp=32, zero=3, shard_ranks=8): FSDP,
        Plan(tp=8, dp=4, zero=1): FSDP,
        Plan(dp=4, cp=8, zero=3, cp_method="all_to_all"): FSDP,
        Plan(tp=8, cp=4, zero=3, cp_method="all_to_all"): FSDP,
    }
    steps = [step_time(PRESETS["llama3-70b"], plan, cluster, stack) for plan, stack in plans.items()]
    routed = replace(PRESETS["gpt2"], num_experts=8, top_k=2)
    steps += [step_time(routed, Plan(dp=32, ep=ep, zero=3), cluster, FSDP) for ep in (4, 8)]
    steps += [step_time(routed, Plan(tp=4, dp=8, ep=4), cluster, FSDP)]
    both_ways = Plan(pp=4, dp=8, ep=8, num_microbatches=8)
    steps.append(step_time(replace(routed, num_layers=8), both_ways, cluster, DEEPSEEK))
    steps.append(resnet_step(RESNET_152, 64, cluster))
    named = {bar.name for one in steps for bar in one.bars}
    assert len(named) == 29 and named <= set(words.section("term"))
    assert {bar.binds for one in steps for bar in one.bars} == set(BINDS)
    assert set(BINDS) == set(words.section("binds"))
