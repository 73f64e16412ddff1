"""The pictures of chapter 12: what died and when, what was done again, who was healed by whom, and what it costs."""

import pytest

from helpers.draw import Label, Line, Rect, effective_time_scene, healing_scene, week_scene
from helpers.draw.chapters.fault_tolerance import (
    KINDS,
    duration_text,
    generations_scene,
    heartbeats_scene,
    loss_differences_scene,
    loss_over_time_scene,
)
from helpers.predict.failures import daly_interval, simulate_week
from tests.draw.scenes import rects_with_tooltip, rounds_of_healing

HISTORY = [(0, 1, 4.0, 0.1), (0, 2, 3.5, 0.2), (0, 3, 3.2, 0.3), (1, 3, 3.2, 1.3), (1, 4, 3.0, 1.4)]


BEATS = {0: [(1, 7, True), (2, 8, False), (3, 8, False), (4, 8, True)], 1: [(1, 7, False)]}


ROWS = [("generation 0", 1, 22, "rank 2 dies"), ("generation 1", 21, 39, "rank 0 dies"), ("generation 2", 31, 40, "")]


def test_between_two_generations_nobody_trains():
    scene = loss_over_time_scene(HISTORY, death="rank 2 dies", title="by the clock")
    (gap,) = (item for item in scene.items if isinstance(item, Rect) and item.tooltip == "no rank trains")
    ends = [item.x1 for item in scene.items if getattr(item, "width", 0) == 3 and hasattr(item, "x1")]
    assert ends[0] < ends[1] < gap.x < gap.x + gap.width <= ends[2]
    assert {"generation 0", "generation 1", "rank 2 dies"} <= {label.text for label in scene.labels()}


def test_a_beat_without_a_new_step_shows_whether_its_rank_waits():
    scene = heartbeats_scene(BEATS, {0: "hung", 1: "dead"}, now=5, title="beats")
    beats = rects_with_tooltip(scene)
    assert [beat.texture for beat in beats] == ["", "", "lines", "hatch", ""] and "rank 1: dead" in scene.summary


def test_steps_that_an_earlier_generation_had_done_are_striped():
    scene = generations_scene(ROWS, steps=40, every=10, title="generations")
    bars = [(item.width + 1, item.texture) for item in scene.items if isinstance(item, Rect) and item.height == 26]
    unit = bars[0][0] / 22
    hours = [(round(long / unit), bool(texture)) for long, texture in bars]
    assert hours == [(22, False), (2, True), (17, False), (9, True), (1, False)]


def test_the_step_in_which_two_runs_part_is_told():
    losses = {"RNG": ([3, 2, 1], [3, 2, 1.5]), "none": ([3, 2], [3, 2])}
    scene = loss_differences_scene(losses, stopped=2, title="partings")
    assert scene.summary == "RNG: off from step 3 on. none: equal in all steps."
    assert sum(isinstance(item, Label) and item.text == "RNG" for item in scene.items) == 1


def test_a_round_in_vain_is_hatched_and_a_copy_that_is_away_has_no_place():
    scene = healing_scene(rounds_of_healing(), title="Replica 2 dies and returns")
    cells = rects_with_tooltip(scene)
    assert len(cells) == 3 + 3 + 2 + 3 and sum(cell.texture == "hatch" for cell in cells) == 3
    arrows = [item for item in scene.items if isinstance(item, Line) and item.arrow]
    assert len(arrows) == 1 and arrows[0].y2 > arrows[0].y1, "from replica 0 down to replica 2"
    texts = [label.text for label in scene.labels()]
    assert texts[-10:] == ["1", "6", "2", "–", "2", "4", "3", "6", "step", "samples"]
    assert "Replica 2 did 2 of 3 steps, and was healed by replica 0 before step 3." in scene.summary
    assert "Replica 1 did 3 of 3 steps." in scene.summary


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
    bars = [bar for bar in rects_with_tooltip(scene) if bar.width > 3 and bar.fill != KINDS["saves"]]
    looks = {(bar.fill, bar.texture) for bar in bars}
    assert len({texture for _, texture in looks}) == len(looks) == 3  # saves are the strip below


def test_the_curve_is_marked_at_its_best_and_at_the_interval_given():
    scene = effective_time_scene(mtbf=6490, save=60, repair=600, interval=3600)
    texts = [label.text for label in scene.labels()]
    assert f"best: {duration_text(daly_interval(60, 6490))}, 79.3%" in texts and "yours: 1 h, 66.8%" in texts
    line = [item for item in scene.items if isinstance(item, Line) and item.colour == "parameters"]
    best, yours = [item for item in scene.items if isinstance(item, Rect) and item.stroke == "ink"]
    assert min(each.y1 for each in line) == pytest.approx(best.y + 7, abs=0.5) and yours.y > best.y
    assert len(effective_time_scene(mtbf=6490, save=60).labels()) == len(texts) - 1
