"""The pictures of chapter 08 say what they are given, in numbers that a test can read."""

import pytest

from helpers.draw import (
    Axis,
    Line,
    Rect,
    curves_scene,
    messages_scene,
    replicas_scene,
    shares_scene,
    zero_messages,
    zero_shares,
)
from helpers.draw.chapters.zero import reshard_scene
from helpers.predict.traffic.zero import data_parallel_share, stage1_share, stage2_share, stage3_share
from helpers.records import MemoryBreakdown
from tests.draw.scenes import WALK

X, Y = Axis(name="x", ticks=(1, 10, 100), log=True), Axis(name="y", ticks=(0, 5, 10))


def test_every_copy_is_a_stack_of_its_kinds():
    held = MemoryBreakdown(parameters=10, gradients=10, optimizer=40)
    scene = replicas_scene(held, 8, capacity=30, title="eight")
    stacks = [item for item in scene.items if isinstance(item, Rect) and item.tooltip]
    assert len(stacks) == 8 * 3
    with pytest.raises(ValueError, match="at least one rank"):
        replicas_scene(held, 0, capacity=30, title="none")


@pytest.mark.parametrize("num_ranks", [2, 4, 64])
def test_the_bars_of_the_stages_are_as_long_as_the_formulas_say(num_ranks):
    found = [sum(one.share for one in shares) for shares in zero_shares(num_ranks).values()]
    formulas = (data_parallel_share, stage1_share, stage2_share, stage3_share)
    assert found == pytest.approx([formula(num_ranks) for formula in formulas])
    with pytest.raises(ValueError, match="without messages"):
        shares_scene({"stage 1": []}, counted={}, title="none")


def test_messages_stand_in_their_order_and_the_parts_must_cover_them():
    scene = messages_scene({"ours": zero_messages(WALK)}, parts={"forward": 2, "backward": 2}, title="a walk")
    assert "gather layer 1, reduce-scatter layer 1" in scene.summary
    with pytest.raises(ValueError, match="the longest row has 4"):
        messages_scene({"ours": zero_messages(WALK)}, parts={"forward": 3}, title="a walk")


def test_a_curve_goes_through_its_points_on_a_logarithmic_axis():
    assert [X.place(tick) for tick in X.ticks] == pytest.approx([0, 0.5, 1])
    scene = curves_scene({"a": [(1, 0), (10, 10), (100, 0)]}, x=X, y=Y, title="up and down", marks=[(10, 10, "top")])
    assert "top" in scene.summary and {"a", "top"} <= {label.text for label in scene.labels()}
    with pytest.raises(ValueError, match="it draws 1 to 4"):
        curves_scene({}, x=X, y=Y, title="nothing")


def test_a_stage_has_one_colour_and_the_case_beside_it_is_dashed():
    curves = {"stage 3, m = 16": [(1, 0), (100, 5)], "stage 3, m = 1": [(1, 0), (100, 10)]}
    scene = curves_scene(curves, x=X, y=Y, title="t", paints={"stage 3": "sign"}, dashed=["stage 3, m = 1"])
    drawn = [(item.colour, item.dashed) for item in scene.items if isinstance(item, Line) and item.width == 3]
    assert drawn == [("sign", False), ("sign", True)]


def test_a_curve_below_another_is_wide_so_that_both_are_seen():
    curves = {"below": [(1, 0), (100, 5)], "above": [(1, 0), (100, 5)]}
    scene = curves_scene(curves, x=X, y=Y, title="t", dots=True, bands=["below"])
    wide, thin = (
        item.width for item in scene.items if isinstance(item, Line) and item.colour in ("parameters", "gradients")
    )
    assert wide > 3 * thin and sum(isinstance(item, Rect) and item.fill == "ink" for item in scene.items) == 2


def test_the_same_line_has_other_cuts_and_other_zeros_on_fewer_ranks():
    scene = reshard_scene({"a": 4, "b": 6}, 4, 3, title="10 numbers")
    frames = [item.width for item in scene.items if isinstance(item, Rect) and item.stroke]
    zeros = [item.width for item in scene.items if isinstance(item, Rect) and item.texture == "hatch"]
    assert len(frames) == 4 + 3 and frames[0] < frames[-1] and len(zeros) == 2
    assert "shards of 3, 3 ranks into shards of 4" in scene.summary
    with pytest.raises(ValueError, match="0 ranks"):
        reshard_scene({"a": 4}, 4, 0, title="none")
