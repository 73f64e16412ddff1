"""Rows of bars stand to scale, and the line of a limit crosses no text."""

import pytest

from helpers.draw import Line, Part, parts_scene
from tests.draw.scenes import SCENES, rects_with_tooltip, texts


def test_parts_stand_to_scale_side_by_side():
    rows = {"short": [Part(text="1", kind="forward", size=1)]}
    rows |= {"long": [Part(text="2", kind="backward", size=2)] * 2}
    scene = parts_scene(rows, title="Parts", ends={"short": "1", "long": "4"})
    short, first, second = rects_with_tooltip(scene)
    assert (first.width + 1) / (short.width + 1) == pytest.approx(2)
    assert short.x == first.x and second.x == pytest.approx(first.x + first.width + 1)


def test_a_text_stands_on_the_longer_side_of_the_limit_and_no_row_is_refused():
    rows, ends = {"a": [Part(text="9 GB", kind="forward", size=9)]}, {"a": "9 GB"}
    scene = parts_scene(rows, title="t", ends=ends, limits={"a": 5})
    (line,) = (item for item in scene.items if isinstance(item, Line))
    on_bar = next(label for label in scene.labels() if label.anchor == "middle")
    (bar,) = rects_with_tooltip(scene)
    assert on_bar.x == pytest.approx((bar.x + line.x1) / 2) and "9 GB" in texts(SCENES["a limit"])
