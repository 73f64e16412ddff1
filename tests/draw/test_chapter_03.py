"""The pictures of chapter 03: messages as long as their bytes, tokens as tall as their weight, caps and ends."""

import pytest

from helpers.draw import Line, Rect, buckets_scene, payloads_scene, timeline_scene, token_weights_scene
from tests.draw.scenes import ddp_step


def bars(scene):
    return [item for item in scene.items if isinstance(item, Rect) and item.tooltip]


def test_messages_are_as_long_as_their_bytes_and_none_is_zero_bytes():
    scene = payloads_scene({"two": [100, 300], "none": []}, title="t")
    assert [bar.width + 3 for bar in bars(scene)][1] == pytest.approx(3 * (bars(scene)[0].width + 3))
    assert [label.text for label in scene.labels()][-1] == "0 B" and "none: 0 B." in scene.summary
    with pytest.raises(ValueError, match="found no message"):
        payloads_scene({"none": []}, title="t")


def test_each_rank_has_the_same_area_in_the_mean_of_means_and_each_token_in_the_other():
    lengths = (4, 8, 16, 32)
    drawn = bars(token_weights_scene(lengths, title="t"))
    own, alike = drawn[: sum(lengths)], drawn[sum(lengths) :]
    assert [bar.height for bar in own] == pytest.approx([own[0].height * 4 / n for n in lengths for _ in range(n)])
    assert {bar.height for bar in alike} == {alike[0].height} and alike[0].height / own[0].height == pytest.approx(
        16 / 60
    )
    with pytest.raises(ValueError, match="give each of them one or more"):
        token_weights_scene((4, 0), title="t")


def test_a_line_stands_where_a_cap_was_reached_and_none_in_what_was_left():
    packed = [[("a", 300)], [("b", 200), ("c", 400)], [("d", 200)]]
    scene = buckets_scene(packed, cap=400, first_cap=100)
    first, second = (item for item in scene.items if isinstance(item, Line))
    a, b = (bar for bar in bars(scene) if bar.tooltip[0] in "ab")
    assert (first.x1 - a.x) / (a.width + 3) == pytest.approx(1 / 3)
    assert (second.x1 - b.x) / (b.width + 3) == pytest.approx(2)
    assert not [item for item in buckets_scene(packed, cap=400).items if isinstance(item, Line)]


def test_a_mark_stands_at_its_seconds_and_the_axis_reaches_it():
    step = ddp_step(num_ranks=1)
    scene = timeline_scene(step, marks=[(2 * step.duration, "elsewhere")])
    (mark,) = (item for item in scene.items if isinstance(item, Line) and item.dashed)
    assert mark.x1 == pytest.approx(scene.width - 20) and "elsewhere" in [label.text for label in scene.labels()]
