"""The pictures of DDP: buckets as wide as their bytes, messages as long as theirs, tokens as tall as their weight."""

from __future__ import annotations

import pytest

from helpers.draw import Line, Rect, buckets_scene, payloads_scene, token_weights_scene
from tests.draw.scenes import rects_with_tooltip

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
    buckets = [text for text in texts if text.endswith(("full", "left"))]
    assert buckets == ["400 B, full", "600 B, full", "200 B, not full"]


def test_a_name_that_does_not_fit_is_in_the_tooltip_and_the_summary():
    scene = buckets_scene([[("a very long name of a small one", 1), ("b", 999)]], cap=10)
    assert "a very long name" not in " ".join(label.text for label in scene.labels())
    assert "a very long name" in rectangles(scene, "gradients")[0].tooltip
    assert "a very long name" in scene.summary


def test_messages_are_as_long_as_their_bytes_and_none_is_zero_bytes():
    scene = payloads_scene({"two": [100, 300], "none": []}, title="t")
    first, second = (bar.width + 3 for bar in rects_with_tooltip(scene)[:2])
    assert second == pytest.approx(3 * first)
    assert [label.text for label in scene.labels()][-1] == "0 B" and "none: 0 B." in scene.summary


def test_each_rank_has_the_same_area_in_the_mean_of_means_and_each_token_in_the_other():
    lengths = (4, 8, 16, 32)
    drawn = rects_with_tooltip(token_weights_scene(lengths, title="t"))
    own, alike = drawn[: sum(lengths)], drawn[sum(lengths) :]
    assert [bar.height for bar in own] == pytest.approx([own[0].height * 4 / n for n in lengths for _ in range(n)])
    assert {bar.height for bar in alike} == {alike[0].height}
    assert alike[0].height / own[0].height == pytest.approx(16 / 60)


def test_a_line_stands_where_a_cap_was_reached_and_none_in_what_was_left():
    packed = [[("a", 300)], [("b", 200), ("c", 400)], [("d", 200)]]
    scene = buckets_scene(packed, cap=400, first_cap=100)
    first, second = (item for item in scene.items if isinstance(item, Line))
    a, b = (bar for bar in rects_with_tooltip(scene) if bar.tooltip[0] in "ab")
    assert (first.x1 - a.x) / (a.width + 3) == pytest.approx(1 / 3)
    assert (second.x1 - b.x) / (b.width + 3) == pytest.approx(2)
    assert not [item for item in buckets_scene(packed, cap=400).items if isinstance(item, Line)]
