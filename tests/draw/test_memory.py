"""Memory as bars, as a curve and as equal stacks: to scale, with a limit that is named."""

import pytest

from helpers.draw import Line, Rect, memory_scene, replicas_scene
from helpers.records import MemoryBreakdown
from tests.draw.scenes import MEMORY, SCENES, box_of, rects_with_tooltip, texts


def frames(scene):
    return [item for item in scene.items if isinstance(item, Rect) and item.stroke and item.tooltip]


def test_bars_add_up_to_the_total():
    bars = [item for item in SCENES["memory"].items if isinstance(item, Rect) and item.tooltip.startswith("rank 0")]
    scale = bars[0].width + 1
    assert sum(bar.width + 1 for bar in bars if bar.width > 1) == pytest.approx(scale * 240 / 40, rel=0.02)
    assert "240 B" in texts(SCENES["memory"])


def test_the_limit_is_a_line_with_its_name_and_bytes():
    scene = memory_scene({"rank 0": MEMORY}, capacity=300, capacity_name="H100")
    line = next(item for item in scene.items if isinstance(item, Line) and item.dashed)
    assert line.colour == "ink" and line.width == 2 and "H100 300 B" in texts(scene)
    assert "capacity 300 B" in texts(SCENES["memory"])
    bar = next(item for item in scene.items if isinstance(item, Rect) and "parameters" in item.tooltip)
    assert (line.x1 - bar.x) / (bar.width + 1) == pytest.approx(300 / 40)


def test_what_exceeds_the_limit_is_framed_and_said():
    scene = SCENES["memory, too much"]
    (frame,) = frames(scene)
    line = next(item for item in scene.items if isinstance(item, Line) and item.dashed)
    assert frame.tooltip == "plain: 140 B too much" and frame.x == line.x1
    assert {"140 B too much", "over the limit"} <= set(texts(scene))
    assert "plain: 240 B (parameters 40 B, gradients 40 B" in scene.summary and "; 140 B too much." in scene.summary
    assert "sharded: 94 B (parameters 90 B, gradients 4 B); it fits." in scene.summary


def test_what_fits_exactly_is_not_framed():
    scene = memory_scene({"rank 0": MEMORY}, capacity=240)
    assert not frames(scene) and "over the limit" not in texts(scene)
    assert len(frames(memory_scene({"rank 0": MEMORY}, capacity=239))) == 1


def test_no_label_is_crossed_by_the_limit():
    for share in range(20, 60):
        scene = memory_scene({"rank 0": MemoryBreakdown(parameters=60, gradients=30)}, capacity=2 * share)
        line = next(item for item in scene.items if isinstance(item, Line) and item.dashed)
        for label in scene.labels():
            left, top, right, bottom = box_of(label)
            assert bottom < line.y1 or top > line.y2 or right < line.x1 or left > line.x1, (share, label.text)


def test_a_bar_a_twentieth_of_another_still_shows_its_kinds():
    small = MemoryBreakdown(parameters=2, gradients=2, optimizer=4, activations=4)
    scene = memory_scene({"large": MEMORY, "small": small})
    assert sum(isinstance(item, Rect) and item.tooltip.startswith("small") for item in scene.items) == 4
    assert "12 B" in texts(scene)


def test_a_curve_marks_its_highest_point_and_rises_and_falls_with_what_is_held():
    scene = SCENES["memory over time"]
    assert any("700 B" in text for text in texts(scene))
    tall = {item.fill: item.height for item in scene.items if isinstance(item, Rect) and item.height > 30}
    assert tall["parameters"] / tall["activations"] == pytest.approx(400 / 300)


def test_every_copy_is_a_stack_of_its_kinds():
    held = MemoryBreakdown(parameters=10, gradients=10, optimizer=40)
    scene = replicas_scene(held, 8, capacity=30, title="eight")
    stacks = rects_with_tooltip(scene)
    assert len(stacks) == 8 * 3
