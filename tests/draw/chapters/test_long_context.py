"""The pictures of chapter 13: a square for each pair that a causal mask keeps, and the hops of a ring."""

import pytest

from helpers.draw import Rect
from helpers.draw.chapters.long_context import causal_work_scene, ring_scene


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


def test_a_block_moves_to_the_next_rank_and_its_gradient_follows_one_hop_behind():
    scene = ring_scene(3, title="3 ranks")
    assert scene.summary.startswith("After hop 0: K0, V0: half, K1, V1: half, K2, V2: half.")
    assert scene.summary.endswith("After hop 2: K1, V1: hidden, K2, V2: hidden, K0, V0: full.")
    gradients = [label.text for label in scene.labels() if label.text.startswith("dK")]
    assert gradients[:3] == [f"dK{owner}, dV{owner}: sum of 1" for owner in (1, 2, 0)]  # ranks 0 to 2 at hop 2
    assert gradients[3:] == [f"dK{owner}, dV{owner}: sum of 2" for owner in range(3)]  # every owner gets its own
