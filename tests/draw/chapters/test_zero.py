"""The pictures of chapter 08: traffic per stage as the formulas say, messages in their order, and resharding."""

import pytest

from helpers.draw import Rect, messages_scene, zero_messages, zero_shares
from helpers.draw.chapters.zero import reshard_scene
from helpers.predict.traffic.zero import data_parallel_share, stage1_share, stage2_share, stage3_share
from tests.draw.scenes import WALK


@pytest.mark.parametrize("num_ranks", [2, 4, 64])
def test_the_bars_of_the_stages_are_as_long_as_the_formulas_say(num_ranks):
    found = [sum(one.size for one in shares) for shares in zero_shares(num_ranks).values()]
    formulas = (data_parallel_share, stage1_share, stage2_share, stage3_share)
    assert found == pytest.approx([formula(num_ranks) for formula in formulas])


def test_messages_stand_in_their_order_and_the_parts_must_cover_them():
    scene = messages_scene({"ours": zero_messages(WALK)}, parts={"forward": 2, "backward": 2}, title="a walk")
    assert "gather layer 1, reduce-scatter layer 1" in scene.summary


def test_the_same_line_has_other_cuts_and_other_zeros_on_fewer_ranks():
    scene = reshard_scene({"a": 4, "b": 6}, 4, 3, title="10 numbers")
    frames = [item.width for item in scene.items if isinstance(item, Rect) and item.stroke]
    zeros = [item.width for item in scene.items if isinstance(item, Rect) and item.texture == "hatch"]
    assert len(frames) == 4 + 3 and frames[0] < frames[-1] and len(zeros) == 2
    assert "shards of 3 elements, 3 ranks into shards of 4" in scene.summary
