"""Curves go through their points on both axes, and their names and marks keep apart."""

import pytest

from helpers.draw import Axis, Line, Rect, curves_scene
from helpers.draw.collectives import all_reduce_times_scene
from helpers.specs import Link

AXES = {"title": "A title", "x": "x", "y": "y"}


def test_an_axis_that_is_a_name_begins_at_0_and_a_measured_dot_has_the_colour_of_its_curve():
    scene = curves_scene({"a": [(0, 0), (10, 5)]}, dots={"a": [(10, 5)]}, **AXES)
    (curve,) = (item for item in scene.items if isinstance(item, Line) and item.width > 2)
    dot = next(item for item in scene.items if isinstance(item, Rect) and item.tooltip)
    assert (dot.x + dot.width / 2, dot.y + dot.height / 2) == pytest.approx((curve.x2, curve.y2))
    assert dot.fill == curve.colour and {"0", "2", "4", "10"} <= {label.text for label in scene.labels()}


def test_ring_overtakes_tree_where_the_formula_says():
    scene = all_reduce_times_scene(64, Link(latency=1e-5, bandwidth=25e9))
    assert "ring overtakes tree at 2.8 MB" in scene.summary


def test_the_words_of_a_mark_stand_below_where_it_is_asked():
    axis = Axis(name="x", ticks=(0, 5, 10))
    given = dict(x=axis, y=axis, marks=[(5, 5, "here")], title="up")
    above, below = (curves_scene({"a": [(0, 0), (10, 10)]}, **given, marks_below=low) for low in (False, True))
    ring = next(item for item in below.items if isinstance(item, Rect) and item.stroke_width == 2.5)
    ys = [next(one.y for one in scene.labels() if one.text == "here") for scene in (above, below)]
    assert ys[0] < ring.y < ring.y + ring.height < ys[1]


X, Y = Axis(name="x", ticks=(1, 10, 100), log=True), Axis(name="y", ticks=(0, 5, 10))


def test_a_curve_goes_through_its_points_on_a_logarithmic_axis():
    assert [X.place(tick) for tick in X.ticks] == pytest.approx([0, 0.5, 1])
    scene = curves_scene({"a": [(1, 0), (10, 10), (100, 0)]}, x=X, y=Y, title="up and down", marks=[(10, 10, "top")])
    assert "top" in scene.summary and {"a", "top"} <= {label.text for label in scene.labels()}


def test_a_stage_has_one_colour_and_the_case_beside_it_is_dashed():
    curves = {"stage 3, m = 16": [(1, 0), (100, 5)], "stage 3, m = 1": [(1, 0), (100, 10)]}
    scene = curves_scene(curves, x=X, y=Y, title="t", paints={"stage 3": "sign"}, dashed=["stage 3, m = 1"])
    drawn = [(item.colour, item.dashed) for item in scene.items if isinstance(item, Line) and item.width == 3]
    assert drawn == [("sign", False), ("sign", True)]
