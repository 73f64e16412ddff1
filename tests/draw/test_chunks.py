"""The states of a collective."""

from helpers.draw import Rect
from tests.draw.scenes import SCENES, tooltips


def test_a_collective_shows_every_rank_step_and_chunk():
    scene = SCENES["gather"]
    texts = [label.text for label in scene.labels()]
    assert {"rank 0", "rank 3", "start", "step 3"} <= set(texts)
    assert "Complete cells of 16, from the start on: 4, 8, 12, 16." in scene.summary
    framed = [item for item in scene.items if isinstance(item, Rect) and item.stroke]
    assert len(framed) == 3 * 4 + 1  # one arrival a rank and step, and the legend's


def test_a_reduction_is_complete_when_every_rank_contributed():
    texts = [label.text for label in SCENES["reduce"].labels()]
    assert texts.count("Σ") == 5
    assert "rank 2, chunk 0: from rank 0 + 1 + 2" in tooltips(SCENES["reduce"])
