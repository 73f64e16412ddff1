"""The picture of a pipeline: bars where the spans are, memory beside them, a play head where it was asked for."""

import pytest

from helpers.draw import Label, Line, Rect, pipeline_scene
from helpers.predict.time.pipeline import simulate
from helpers.records import Timeline
from helpers.schedules import interleaved, one_f_one_b

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


def test_nothing_to_draw_gets_a_sentence():
    with pytest.raises(ValueError, match="give one, such as that of simulate"):
        pipeline_scene()
    with pytest.raises(ValueError, match="give one, such as that of simulate"):
        pipeline_scene(Timeline(spans=(), source="predicted"))
