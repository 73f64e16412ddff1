"""The week and the curve: every second of the week is drawn once, and the marks lie where the formula says."""

import pytest

from helpers.draw import Line, Rect, effective_time_scene, week_scene
from helpers.draw.chapters.fault_tolerance import KINDS, duration_text
from helpers.predict.failures import daly_interval, simulate_week
from tests.draw.scenes import rects_with_tooltip

WEEK = simulate_week(nodes=2048, per_node_day=6.5e-3, interval=600, save=60, repair=600)


def test_every_second_is_drawn_once_and_as_large_as_its_share():
    scene = week_scene(WEEK, title="A week")
    areas = dict.fromkeys(KINDS.values(), 0.0)
    for bar in rects_with_tooltip(scene):
        areas[bar.fill] += bar.width * bar.height
    drawn = {kind: areas[paint] / sum(areas.values()) for kind, paint in KINDS.items()}
    assert drawn == pytest.approx(WEEK.shares, abs=1e-6)
    assert sum(isinstance(item, Line) and item.colour == "ink" for item in scene.items) == len(WEEK.failures)


def test_the_week_says_what_it_shows_and_no_kind_is_told_by_colour_alone():
    scene = week_scene(WEEK, title="A week")
    assert scene.summary.startswith(f"{len(WEEK.failures)} failures in 7 days: work ")
    looks = {
        (bar.fill, bar.texture) for bar in rects_with_tooltip(scene) if bar.width > 3 and bar.fill != KINDS["saves"]
    }
    assert len({texture for _, texture in looks}) == len(looks) == 3  # saves are the strip below


def test_the_curve_is_marked_at_its_best_and_at_the_interval_given():
    scene = effective_time_scene(mtbf=6490, save=60, repair=600, interval=3600)
    texts = [label.text for label in scene.labels()]
    assert f"best: {duration_text(daly_interval(60, 6490))}, 79.3%" in texts and "yours: 1 h, 66.8%" in texts
    line = [item for item in scene.items if isinstance(item, Line) and item.colour == "parameters"]
    best, yours = [item for item in scene.items if isinstance(item, Rect) and item.stroke == "ink"]
    assert min(each.y1 for each in line) == pytest.approx(best.y + 7, abs=0.5) and yours.y > best.y
    assert len(effective_time_scene(mtbf=6490, save=60).labels()) == len(texts) - 1
