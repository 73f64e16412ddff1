"""The picture of chapter 13: a square for each pair that a causal mask keeps, and the work of each rank."""

import pytest

from helpers.draw import Rect
from helpers.draw.chapters.long_context import causal_work_scene


@pytest.mark.parametrize(
    ("shards", "work", "waiting"),
    [([[0, 1], [2, 3]], (3, 7), 1), ([[0, 3], [1, 2]], (5, 5), 0)],
    ids=["contiguous", "zigzag"],
)
def test_every_pair_has_the_colour_of_the_rank_that_has_the_query(shards, work, waiting):
    scene = causal_work_scene(shards, work, title="4 tokens on 2 ranks")
    squares = [item for item in scene.items if isinstance(item, Rect) and item.width == item.height]
    assert [sum(one.fill == f"rank{rank}" for one in squares) for rank in (0, 1)] == list(work)
    bars = [item for item in scene.items if isinstance(item, Rect) and item.height == 26]
    assert sum(bar.fill == "waiting" for bar in bars) == waiting
    assert [label.text for label in scene.labels() if label.text.startswith("waits")] == (
        ["waits for the busiest rank"] * waiting
    )


def test_the_summary_says_what_each_rank_computes():
    scene = causal_work_scene([[0], [1]], [1, 3], title="2 tokens")
    assert scene.summary == "Rank 0 computes 0.50 times the mean. Rank 1 computes 1.50 times the mean."
