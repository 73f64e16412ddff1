"""Buckets as a picture: widths are bytes, and the words say what each message carries."""

from __future__ import annotations

import pytest

from helpers.draw import Rect, buckets_scene

BUCKETS = [[("bias", 100), ("weight", 300)], [("large", 600)], [("rest", 200)]]


def rectangles(scene, fill):
    return [item for item in scene.items if isinstance(item, Rect) and item.fill == fill and item.y > 40]


def test_widths_are_in_proportion_to_bytes_and_nothing_overlaps():
    scene = buckets_scene(BUCKETS, cap=400)
    drawn = rectangles(scene, "gradients")
    widths = [box.width + 3 for box in drawn]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 3, 6, 2])
    assert all(left.x + left.width <= right.x for left, right in zip(drawn, drawn[1:], strict=False))
    assert drawn[-1].x + drawn[-1].width < scene.width


def test_every_bucket_is_one_message_and_the_last_is_what_was_left():
    texts = [label.text for label in buckets_scene(BUCKETS, cap=400).labels()]
    assert [text for text in texts if text.startswith("all_reduce")] == ["all_reduce 0", "all_reduce 1", "all_reduce 2"]
    assert [text for text in texts if text.endswith(("full", "left"))] == [
        "400 B, full",
        "600 B, full",
        "200 B, what was left",
    ]


def test_a_name_that_does_not_fit_is_in_the_tooltip_and_the_summary():
    scene = buckets_scene([[("a very long name of a small one", 1), ("b", 999)]], cap=10)
    assert "a very long name" not in " ".join(label.text for label in scene.labels())
    assert "a very long name" in rectangles(scene, "gradients")[0].tooltip
    assert "a very long name" in scene.summary


@pytest.mark.parametrize("buckets", [[], [[]], [[("a", 0)]]])
def test_an_empty_one_is_a_sentence(buckets):
    with pytest.raises(ValueError, match="empty bucket or gradient"):
        buckets_scene(buckets, cap=10)
