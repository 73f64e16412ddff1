"""The pictures of chapter 06: curves to scale with their dots, and two ranks that wait in a send."""

from types import SimpleNamespace

import pytest

from helpers.draw import Line, Rect, calls_scene, lines_scene, pipeline_scene
from helpers.draw.chapters.pipeline import blocking_sends_scene, stage_splits_scene, tied_weights_scene
from helpers.draw.scene import stacked_scene
from helpers.predict.time.pipeline import simulate
from helpers.schedules import eager_one_f_one_b, gpipe, naive, one_f_one_b, repeated, zb_h1, zb_h2

AXES = {"title": "A title", "x_name": "x", "y_name": "y"}
TIMES = {"forward": 0.01, "backward_input": 0.01, "backward_weight": 0.01, "send": 0.01}


def test_a_dot_stands_at_the_end_of_its_line():
    scene = lines_scene({"a": [(0, 0), (10, 5)]}, {"a": [(10, 5)]}, **AXES)
    (curve,) = (item for item in scene.items if isinstance(item, Line) and item.width > 2)
    (dot,) = (item for item in scene.items if isinstance(item, Rect))
    assert (dot.x + dot.width / 2, dot.y + dot.height / 2) == pytest.approx((curve.x2, curve.y2))
    assert (scene.summary, curve.y2 < curve.y1) == ("a goes from 0 to 5. Dots on a.", True)


def test_what_cannot_be_drawn_gets_a_sentence():
    with pytest.raises(ValueError, match="at least two points"):
        lines_scene({"a": [(0, 0)]}, **AXES)
    with pytest.raises(ValueError, match="dots of b, but curves of a"):
        lines_scene({"a": [(0, 0), (1, 1)]}, {"b": [(0, 0)]}, **AXES)
    with pytest.raises(ValueError, match="not 1"):
        calls_scene([["send"]], met=[], title="one")


def test_both_ranks_wait_in_the_second_call():
    waiting = [label.text for label in blocking_sends_scene().labels() if label.text.endswith("waits")]
    assert waiting == ["send activation 1 · waits", "send gradient 0 · waits"]
    assert [item.dashed for item in blocking_sends_scene().items if isinstance(item, Line) and item.arrow] == [
        False,
        True,
        True,
    ]


def test_the_slowest_stage_of_each_cut_is_marked():
    scene = stage_splits_scene([1, 1, 1, 3], {"even": [2, 2], "best": [3, 1]}, title="cuts")
    assert scene.summary == "even: 2, 4. best: 3, 3."
    assert [label.text for label in scene.labels() if label.bold and "=" in label.text] == ["= 4", "= 3", "= 3"]
    with pytest.raises(ValueError, match="shares out 3 layers of 4"):
        stage_splits_scene([1, 1, 1, 3], {"short": [2, 1]}, title="cuts")


def test_pictures_stand_below_each_other():
    one = calls_scene([["send"], ["recv"]], met=[(0, 0)], title="one")
    both = stacked_scene(one, one, title="both")
    assert (both.title, both.height > 2 * one.height, len(both.items)) == ("both", True, 2 * len(one.items))
    assert "one: Rank 0" in both.summary
    assert both.labels()[-1].y - one.labels()[-1].y == pytest.approx(both.height - one.height)
    with pytest.raises(ValueError, match="at least one"):
        stacked_scene(title="none")


def test_the_first_of_several_steps_is_outlined_and_no_bar_has_a_number():
    step = simulate(repeated(gpipe(2, 2), 2), forward=1.0, backward_input=1.0, backward_weight=1.0)
    scene = pipeline_scene(step, title="two", per_step=2)
    edges = [item for item in scene.items if isinstance(item, Rect) and item.stroke == "ink"]
    assert len(edges) == 2 and edges[0].x < edges[1].x + 2 < edges[1].x + edges[1].width
    assert not [label for label in scene.labels() if label.on]


def test_each_step_has_its_name_its_time_and_its_idle_share_above_it():
    free = {**TIMES, "send": 0.0}
    steps = [simulate(order(4, 8), **free) for order in (gpipe, one_f_one_b)]
    texts = [label.text for label in pipeline_scene(*steps).labels() if label.bold]
    assert texts[1:] == [f"{name} · predicted · 330 ms, 27% idle" for name in ("GPipe", "1F1B")]


def test_what_the_chapter_says_of_its_steps_is_so():
    free, slow = {**TIMES, "send": 0.0}, TIMES
    steps = [simulate(order(4, 8), **free) for order in (gpipe, one_f_one_b, zb_h1, zb_h2)]
    assert [round(step.duration * 1e3) for step in steps] == [330, 330, 270, 270]
    assert [round(step.bubble_fraction, 3) for step in steps] == [0.273, 0.273, 0.111, 0.0]
    assert steps[0].bubble_over_ideal == pytest.approx(3 / 8)
    slowed = [simulate(order(4, 8), **slow).duration for order in (gpipe, one_f_one_b, eager_one_f_one_b)]
    assert [round(seconds * 1e3) for seconds in slowed] == [390, 490, 390]
    two = [simulate(repeated(order(4, 8), 2), **free) for order in (zb_h1, zb_h2)]
    assert [round(step.duration * 1e3) for step in two] == [540, 510]
    assert round(simulate(naive(4, 1), forward=0.08, backward_input=0.08, backward_weight=0.08).duration * 1e3) == 960


def test_a_tied_matrix_has_its_losses_above_and_its_copies_below():
    runs = {"forgotten": SimpleNamespace(losses=[4.0, 3.0], apart=[0.0, 0.1, 0.2])}
    assert tied_weights_scene(runs).summary == (
        "Loss: forgotten goes from 4 to 3. Largest difference between the two copies: forgotten goes from 0 to 0.2."
    )
