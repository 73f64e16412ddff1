"""Copies over the rounds of a run: each that took part has its place, and an arrow leads to the one that is healed."""

import pytest

from helpers.draw import Line, Rect, healing_scene
from tests.draw.scenes import rounds_of_healing


def test_a_round_in_vain_is_hatched_and_a_copy_that_is_away_has_no_place():
    scene = healing_scene(rounds_of_healing(), title="Copy 2 dies and returns")
    cells = [item for item in scene.items if isinstance(item, Rect) and item.tooltip]
    assert len(cells) == 3 + 3 + 2 + 3 and sum(cell.texture == "hatch" for cell in cells) == 3
    arrows = [item for item in scene.items if isinstance(item, Line) and item.arrow]
    assert len(arrows) == 1 and arrows[0].y2 > arrows[0].y1, "from copy 0 down to copy 2"
    texts = [label.text for label in scene.labels()]
    assert texts[-10:] == ["1", "6", "2", "–", "2", "4", "3", "6", "step", "samples"]
    assert "Copy 2 did 2 of 3 steps, and was healed by copy 0 before step 3." in scene.summary
    assert "Copy 1 did 3 of 3 steps." in scene.summary


def test_no_round_is_no_picture():
    with pytest.raises(ValueError, match="healing_scene got no round"):
        healing_scene([], title="nothing")
