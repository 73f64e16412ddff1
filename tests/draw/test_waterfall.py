"""A step as a waterfall: its bars add up."""

import pytest

from helpers.draw.scene import Rect
from helpers.draw.waterfall import waterfall_scene


def test_each_bar_begins_where_the_one_above_ends():
    scene = waterfall_scene({"compute": 0.06, "data": 0.02, "waiting": 0.02}, title="a step")
    panel, *_ = (item for item in scene.items if isinstance(item, Rect) and item.fill == "panel")
    bars = [item for item in scene.items if isinstance(item, Rect) and item.tooltip]
    assert bars[0].x == panel.x and bars[-1].x + bars[-1].width == pytest.approx(panel.x + panel.width)
    assert [one.x for one in bars[1:]] == pytest.approx([one.x + one.width for one in bars[:-1]])
    assert "waiting: 20.0 ms · 20%" in scene.summary


def test_a_step_without_seconds_is_refused():
    with pytest.raises(ValueError, match="at least one part"):
        waterfall_scene({"compute": 0.0}, title="")
