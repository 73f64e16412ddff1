"""Timelines: every rank, one axis, nothing hidden."""

import pytest

from helpers.draw import Line, Rect, timeline_scene
from helpers.draw.axis import ticks
from helpers.records import Span, Timeline
from tests.draw.scenes import SCENES, ddp_step, span, tooltips


def test_a_timeline_shows_every_rank_of_each_timeline_and_its_exposed_communication():
    texts = [label.text for label in SCENES["timelines"].labels()]
    for rank in range(4):
        assert texts.count(f"rank {rank}") == 2
    assert "predicted" in texts and "recorded on this machine" in texts
    assert texts.count("exposed communication 4.00 s of 17.3 s") == 2
    assert "exposed communication 4.00 s of 17.3 s" in SCENES["timelines"].summary


def test_messages_have_a_lane_for_each_axis_of_which_their_name_speaks():
    spans = [Span(rank=0, lane="compute", name="F0", kind="forward", start=0, end=1)]
    for name in ("tp all_reduce", "dp x pp all_reduce"):
        spans.append(Span(rank=0, lane="communication", name=name, kind="communication", start=1, end=2))
    scene = timeline_scene(Timeline(spans=spans, source="recorded"), axes=("tp", "dp"))
    lanes = {label.text: label.y for label in scene.labels() if label.text in ("tp", "dp")}
    bars = [item for item in scene.items if isinstance(item, Rect) and item.fill == "communication" and item.tooltip]
    assert [abs(bar.y + bar.height / 2 - y) < 1 for bar, y in zip(bars, lanes.values(), strict=True)] == [True, True]
    assert any(label.text.startswith("rank 0: exposed communication 1.00 s") for label in scene.labels())


def test_timelines_with_titles_of_their_own_show_them():
    scene = timeline_scene(ddp_step(title="naive"), ddp_step(title="overlapped"))
    texts = [label.text for label in scene.labels()]
    assert scene.title == "One step, rank by rank"
    assert "naive · predicted" in texts and "overlapped · predicted" in texts
    assert timeline_scene(ddp_step(title="naive")).title == "naive"


def test_timelines_share_one_axis():
    """A recorded step of twice the length is drawn twice as wide."""
    predicted = Timeline(spans=[span(0, "forward", 5, 6)], source="predicted")
    scene = timeline_scene(predicted, Timeline(spans=[span(0, "forward", 0, 2)], source="recorded"))
    short, long = (item for item in scene.items if isinstance(item, Rect) and "forward" in item.tooltip)
    assert (long.x, long.width + 1) == pytest.approx((short.x, 2 * (short.width + 1)))


def test_a_profile_shows_the_lanes_it_has_by_name():
    lanes = ("compute", "communication", "waiting", "data")
    spans = [Span(rank=0, lane=lane, name=f"in {lane}", kind="other", start=0, end=1) for lane in lanes]
    scene = timeline_scene(Timeline(spans=spans, source="recorded"))
    bars = {item.tooltip.split(" · ")[1]: item.y for item in scene.items if isinstance(item, Rect) and item.tooltip}
    assert sorted(bars, key=bars.get) == [f"in {lane}" for lane in lanes]
    named = {label.text for label in scene.labels()}
    assert {"waiting", "data"} <= named and not {"host", "compute"} & named
    assert scene.height > timeline_scene(Timeline(spans=spans[:2], source="recorded")).height


def test_messages_under_way_together_do_not_cover_each_other():
    spans = [span(0, "communication", start, start + 2, num_bytes=8) for start in (0, 1, 2)]
    bars = [item for item in timeline_scene(Timeline(spans=spans, source="recorded")).items if isinstance(item, Rect)]
    first, second, third = (bar for bar in bars if bar.tooltip)
    assert first.y == second.y != third.y or first.y == third.y != second.y
    assert first.height * 2 <= 26


def test_spans_too_short_to_see_are_joined():
    spans = [span(0, "forward", i * 1e-3, (i + 1) * 1e-3) for i in range(5000)]
    scene = timeline_scene(Timeline(spans=spans, source="predicted"))
    assert "5000 spans" in " ".join(tooltips(scene)) and len(scene.items) < 40


def hatched(*spans):
    """Where the hatch starts and ends on the compute lanes, in seconds, of a timeline that lasts 4."""
    timeline = Timeline(spans=[*spans, span(9, "forward", 0, 4)], source="predicted")
    bars = [item for item in timeline_scene(timeline).items if isinstance(item, Rect)]
    whole = next(item for item in bars if item.tooltip.startswith("rank 9"))
    scale = 4 / (whole.width + 1)
    hatched = [bar for bar in bars if bar.texture == "hatch" and bar.y > 40]  # below the legend
    ends = [(bar.x - whole.x, bar.x + bar.width - whole.x) for bar in hatched]
    return [(round(start * scale, 3), round(end * scale, 3)) for start, end in ends]


def test_idle_and_only_idle_is_hatched():
    assert hatched(span(0, "forward", 0, 1), span(0, "backward", 2, 4)) == [(1, 2)]
    assert hatched(span(0, "forward", 1, 2), span(0, "backward", 2, 3)) == [(0, 1), (3, 4)]
    assert hatched(span(0, "communication", 0, 4)) == [(0, 4)]
    assert "idle" in [label.text for label in SCENES["timelines"].labels()]
    assert hatched(span(0, "forward", 0, 3), span(0, "other", 1, 2), span(0, "forward", 3, 4)) == []


def test_messages_that_follow_each_other_stay_in_one_row_despite_rounding():
    spans = [span(0, "communication", start, start + 0.1 + 1e-15, num_bytes=8) for start in (0, 0.1, 0.2, 0.3)]
    bars = [item for item in timeline_scene(Timeline(spans=spans, source="recorded")).items if isinstance(item, Rect)]
    assert len({bar.y for bar in bars if bar.tooltip}) == 1


@pytest.mark.parametrize(("end", "expected"), [(1.0, 0.2), (0.0153, 0.005), (7e-6, 2e-6), (0.0, 0.0)])
def test_ticks_are_round(end, expected):
    marks = ticks(end)
    assert marks[0] == 0 and (marks[1] if len(marks) > 1 else 0.0) == pytest.approx(expected)


def test_the_sentence_on_a_single_rank_names_it():
    one = Timeline(spans=[span(3, "forward", 0, 1)], source="predicted")
    assert "predicted, rank 3:" in timeline_scene(one).summary
    assert "predicted, 2 ranks:" in timeline_scene(ddp_step(num_ranks=2)).summary


def test_a_mark_stands_at_its_seconds_and_the_axis_reaches_it():
    step = ddp_step(num_ranks=1)
    scene = timeline_scene(step, marks=[(2 * step.duration, "elsewhere")])
    (mark,) = (item for item in scene.items if isinstance(item, Line) and item.dashed)
    assert mark.x1 == pytest.approx(scene.width - 20) and "elsewhere" in [label.text for label in scene.labels()]
