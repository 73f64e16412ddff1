"""A mesh on its nodes: every rank once, and the groups of one rank are marked."""

import re

from helpers.draw import Rect
from tests.draw.scenes import SCENES, rects_with_tooltip


def marked(scene, fill):
    """The ranks whose boxes have that fill."""
    filled = [item for item in scene.items if isinstance(item, Rect) and item.fill == fill]
    found = [re.match(r"rank (\d+):", item.tooltip) for item in filled]
    return [int(match[1]) for match in found if match]


def test_the_groups_of_the_chosen_rank_are_marked():
    scene = SCENES["mesh"]
    assert marked(scene, "parameters") == [5]
    assert marked(scene, "buffers") == [13] and marked(scene, "gradients") == [1]
    assert marked(scene, "activations") == [4, 6, 7] and len(marked(scene, "surface")) == 16 - 6


def test_words_say_the_groups_and_whether_they_cross_nodes():
    scene = SCENES["mesh"]
    texts = [label.text for label in scene.labels()]
    assert {"node 0", "node 1", "rank 13", "1, 1, 1", "Each rank with its place (pp, dp, tp)"} <= set(texts)
    assert "tp group of rank 5: 4, 5, 6, 7, inside node 0" in texts
    assert "pp group of rank 5: 5, 13, across 2 nodes" in texts
    assert scene.summary.startswith("16 ranks on 2 nodes of 8; axes pp 2, dp 2, tp 4. Rank 5 shares pp with 5, 13")
    assert "16, 17, 18, 19, …, 31, across 2 nodes" in SCENES["mesh across nodes"].summary


def test_each_rank_lies_in_the_frame_of_its_node():
    scene = SCENES["mesh of 64"]
    frames = [item for item in scene.items if isinstance(item, Rect) and item.fill == "panel"]
    boxes = rects_with_tooltip(scene)
    assert len(frames) == 8 and len(boxes) == 64
    for rank, box in enumerate(boxes):
        frame = frames[rank // 8]
        assert frame.x < box.x and box.x + box.width < frame.x + frame.width
        assert frame.y < box.y and box.y + box.height < frame.y + frame.height


def test_without_a_rank_nothing_is_marked_and_the_last_node_may_be_half_full():
    scene = SCENES["mesh of 3 on 2"]
    assert marked(scene, "surface") == [0, 1, 2] and "group" not in " ".join(label.text for label in scene.labels())
    assert scene.summary == "3 ranks on 2 nodes of 2; axes dp 3."
