"""The picture of a pipeline: bars where the spans are, memory beside them, a play head where it was asked for."""

import pytest

from helpers.draw import Label, Line, Rect, pipeline_scene
from helpers.predict.time.pipeline import simulate
from helpers.schedules import (
    Action,
    Schedule,
    eager_one_f_one_b,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    repeated,
    zb_h1,
    zb_h2,
)

TIMES = dict(forward=1.0, backward_input=1.0, backward_weight=1.0)


def played(schedule, **options):
    return simulate(schedule, **TIMES, **options)


def of(kind, scene):
    return [item for item in scene.items if isinstance(item, kind)]


def bars(scene, fill):
    return [rect for rect in of(Rect, scene) if rect.fill == fill and rect.tooltip]


def memory_of(scene):
    """The column on the right: its heading, and a number a rank."""
    heading = next(label for label in of(Label, scene) if label.text.startswith("holds"))
    return [label.text for label in of(Label, scene) if label.x >= heading.x and label.y >= heading.y]


def test_there_is_a_bar_for_each_action_on_one_scale():
    timeline = played(one_f_one_b(3, 5))
    scene = pipeline_scene(timeline)
    forward, backward = bars(scene, "forward"), bars(scene, "backward")
    assert len(forward) == len(backward) == 15
    assert backward[0].width + 1 == pytest.approx(2 * (forward[0].width + 1))
    assert forward[0].tooltip == "rank 0 · 0F0 · forward · 1.00 s"


def test_memory_is_the_most_or_what_is_held_at_an_instant():
    timeline = played(one_f_one_b(4, 8), activation_bytes=1)
    numbers = memory_of(pipeline_scene(timeline))
    assert numbers == ["holds at most", "4", "3", "2", "1"]
    scene = pipeline_scene(timeline, instant=1.5)
    assert memory_of(scene) == ["holds now", "2", "1", "0", "0"]
    assert [line for line in of(Line, scene) if line.colour == "ink"]


def test_later_chunks_are_marked_at_their_foot():
    scene = pipeline_scene(played(interleaved(4, 4, 2)), num_ranks=2)
    marks = [rect for rect in of(Rect, scene) if rect.fill == "ink"]
    assert len(marks) == 2 * 2 * 4  # two ranks, F and B, four micro-batches of the second chunk


def test_of_a_chunk_a_rank_holds_a_part_of_a_micro_batch():
    schedule = interleaved(4, 4, 2)
    scene = pipeline_scene(played(schedule, activation_bytes=1), num_ranks=2)
    assert memory_of(scene)[1:] == [f"{schedule.in_flight(rank) / 2:g}" for rank in range(2)] == ["2.5", "1.5"]
    assert "held at most: 2.5, 1.5" in scene.summary


def test_two_timelines_share_one_axis():
    short, long = played(one_f_one_b(2, 2)), played(one_f_one_b(2, 8))
    scene = pipeline_scene(short, long)
    widths = {round(rect.width, 6) for rect in bars(scene, "forward")}
    assert len(widths) == 1
    assert "bubble 33.3% of 9.00 s" in scene.summary and "bubble 11.1% of 27.0 s" in scene.summary


CHAPTER_TIMES = {"forward": 0.01, "backward_input": 0.01, "backward_weight": 0.01, "send": 0.01}


def test_the_first_of_several_steps_is_outlined_and_no_bar_has_a_number():
    step = simulate(repeated(gpipe(2, 2), 2), forward=1.0, backward_input=1.0, backward_weight=1.0)
    scene = pipeline_scene(step, title="two", per_step=2)
    edges = [item for item in scene.items if isinstance(item, Rect) and item.stroke == "ink"]
    assert len(edges) == 2 and edges[0].x < edges[1].x + 2 < edges[1].x + edges[1].width
    assert not [label for label in scene.labels() if label.on]


def test_each_step_has_its_name_its_time_and_its_idle_share_above_it():
    free = {**CHAPTER_TIMES, "send": 0.0}
    steps = [simulate(order(4, 8), **free) for order in (gpipe, one_f_one_b)]
    texts = [label.text for label in pipeline_scene(*steps).labels() if label.bold]
    assert texts[1:] == [f"{name} · predicted · 330 ms, 27% idle" for name in ("GPipe", "1F1B")]


def test_what_the_chapter_says_of_its_steps_is_so():
    free, slow = {**CHAPTER_TIMES, "send": 0.0}, CHAPTER_TIMES
    steps = [simulate(order(4, 8), **free) for order in (gpipe, one_f_one_b, zb_h1, zb_h2)]
    assert [round(step.duration * 1e3) for step in steps] == [330, 330, 270, 270]
    assert [round(step.bubble_fraction, 3) for step in steps] == [0.273, 0.273, 0.111, 0.0]
    assert steps[0].bubble_over_ideal == pytest.approx(3 / 8)
    slowed = [simulate(order(4, 8), **slow).duration for order in (gpipe, one_f_one_b, eager_one_f_one_b)]
    assert [round(seconds * 1e3) for seconds in slowed] == [390, 490, 390]
    two = [simulate(repeated(order(4, 8), 2), **free) for order in (zb_h1, zb_h2)]
    assert [round(step.duration * 1e3) for step in two] == [540, 510]
    assert round(simulate(naive(4, 1), forward=0.08, backward_input=0.08, backward_weight=0.08).duration * 1e3) == 960


def test_a_pair_is_two_bars_of_half_the_height_and_both_kinds_are_in_the_legend():
    pair = Action.parse("(1F1;0B0)OVERLAP_F_B")
    row = (Action.parse("0F0"), Action.parse("1F0"), Action.parse("1B0"), Action.parse("0F1"), pair)
    row += (Action.parse("1B1"), Action.parse("0B1"))
    scene = pipeline_scene(played(Schedule("pairs", 2, 2, (row,), 2), activation_bytes=1))
    assert {bar.height for bar in bars(scene, "forward")} == {24.0, 12.0}
    halves = [bar for fill in ("forward", "backward") for bar in bars(scene, fill) if bar.height == 12.0]
    assert halves[0].width == halves[1].width and halves[0].y + 12.0 == halves[1].y
    assert not bars(scene, "other") and "forward" in [label.text for label in of(Label, scene)]
    assert memory_of(scene)[1:] == ["1.5"]  # in the pair: three halves of a micro-batch
