"""The pictures of chapter 06: curves to scale with their dots, and two ranks that wait in a send."""

import pytest

from helpers.draw import Line, Rect, calls_scene, lines_scene
from helpers.draw.calls import blocking_sends
from helpers.draw.slow_link import slow_link_scene

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
    waiting = [label.text for label in blocking_sends().labels() if label.text.endswith("waits")]
    assert waiting == ["send activation 1 · waits", "send gradient 0 · waits"]
    assert len([item for item in blocking_sends().items if isinstance(item, Line) and item.arrow]) == 1


def test_messages_that_take_time_make_1f1b_wait_longer():
    says = slow_link_scene(4, 8, {"GPipe": 0.4, "1F1B": 0.52}, **TIMES).summary
    assert "GPipe goes from 27.2727 to 38.4615. 1F1B goes from 27.2727 to 51.0204." in says
