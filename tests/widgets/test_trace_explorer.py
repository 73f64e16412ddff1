"""The explorer of traces works without a front end: which step, who waits for whom, and what the picture shows."""

import pytest

from helpers.commands.traces import explain, read
from helpers.commands.traces.example import LATE_BATCH, RANKS, SLOW_RANK, STEPS, example
from helpers.draw import Label, Line, Rect
from helpers.draw.palette import PAINTS
from helpers.learner.words import use_language
from helpers.widgets import TraceExplorer
from tests.commands.traces.conftest import make
from tests.draw.scenes import box_of, tooltips


def bars(shown, kind, low=70):
    """Left ends and lengths of what has a colour, below the legend."""
    rects = (item for item in shown.scene.items if isinstance(item, Rect) and item.fill == kind and item.y > low)
    return [(item.x, item.width) for item in rects]


def test_without_an_argument_an_example_says_who_is_slow():
    shown = TraceExplorer()
    assert shown.run.ranks == tuple(range(RANKS)) and len(shown.step.options) == STEPS
    assert shown.straggler[0] == SLOW_RANK and f"for rank {SLOW_RANK}, whose compute takes" in shown.sentence
    shown.step.value = LATE_BATCH[1]
    assert shown.straggler[0] == LATE_BATCH[0] and f"for rank {LATE_BATCH[0]}, whose data takes" in shown.sentence
    assert explain(example()).straggler.cause == "compute" and example() == example()
    assert "made up" in shown.scene.title and shown.run.timeline.source == "predicted"


def test_waiting_has_a_colour_and_a_word_of_its_own():
    shown = TraceExplorer()
    assert PAINTS["waiting"].fill not in {PAINTS[kind].fill for kind in ("communication", "other", "forward")}
    assert bars(shown, "waiting") and {label.text for label in shown.scene.labels()} >= {"waiting", f"← {SLOW_RANK}"}
    waits = [text for text in tooltips(shown.scene) if " · waiting · " in text]
    assert waits and all(f"all_reduce ← {SLOW_RANK}" in text for text in waits)
    assert not any(text.startswith(f"rank {SLOW_RANK}") for text in waits)


def test_each_rank_has_a_band_with_all_lanes():
    labels = [item for item in TraceExplorer().scene.items if isinstance(item, Label) and item.x < 76]
    names = [label.text for label in sorted(labels, key=lambda label: label.y) if label.y > 70]
    bands = [names[place : place + 5] for place in range(0, len(names), 5)]
    assert bands == [[f"rank {rank}", "messages", "waiting", "host", "data"] for rank in range(RANKS)]


def test_table_and_sentence_say_what_the_trace_holds(tmp_path):
    shown = TraceExplorer(make(tmp_path, extra=lambda rank, step, part: 0.02 * (rank == 1 and part == "data")), step=9)
    row = shown.rows[0]
    assert [row["ms of rank"], row["data"], row["compute"]] == ["0", "5.0", "61.8"] and len(shown.rows) == 4
    assert shown.straggler == (1, pytest.approx(0.016, rel=0.01)), "of 20 ms, 4 are hidden by the others' compute"
    assert "waits 16.0 ms for rank 1, whose data takes 20.0 ms longer" in shown.sentence
    assert shown.rows[1]["waited for"] == shown.rows[0]["waiting"] == f"{1e3 * shown.straggler[1]:.1f}"
    assert shown.sentence.startswith("In step 9, 9") and "step 9" in shown.scene.title


def test_a_shorter_stretch_is_drawn_longer_and_begins_where_the_dial_says():
    shown = TraceExplorer(step=2)
    start, end = shown.window
    shown.stretch.value, shown.begins.value = 0.2, 0.5
    half, after = shown.window
    assert half == pytest.approx((start + end) / 2) and after - half == pytest.approx((end - start) / 5)
    wide = TraceExplorer(step=2)
    longest = [max(width for _, width in bars(one, "backward")) for one in (wide, shown)]
    assert longest[1] > 3 * longest[0]
    assert all(76 <= x and x + width <= 621 for x, width in bars(shown, "backward"))
    wide.stretch.value = 2
    assert [label.text for label in wide.scene.labels() if label.text.startswith("step ")] == ["step 2", "step 3"]
    assert sum(isinstance(item, Line) and item.dashed for item in wide.scene.items) >= 2 * RANKS


def test_nothing_moves_in_the_picture_but_the_stretch():
    scenes = []
    for step, stretch in ((0, 1), (3, 0.02), (5, 5)):
        shown = TraceExplorer(step=step)
        shown.stretch.value = stretch
        scenes.append(shown.scene)
    texts = ("rank 2", "waiting", "idle")
    fixed = [[(one.x, one.y) for one in scene.labels() if one.text in texts] for scene in scenes]
    assert fixed[0] == fixed[1] == fixed[2] and len({scene.height for scene in scenes}) == 1


def test_of_many_ranks_four_are_drawn_and_the_one_that_is_waited_for_is_among_them(tmp_path):
    folder = make(tmp_path, world=6, steps=6, extra=lambda rank, step, part: 0.03 * (rank == 5 and part == "compute"))
    shown = TraceExplorer(folder)
    assert shown.ranks == (0, 1, 2, 5) and len(shown.rows) == 6
    assert TraceExplorer(read(folder), ranks=(4, 5)).ranks == (4, 5)
    with pytest.raises(ValueError, match=r"no rank 7; give ranks from 0, 1, 2, 3, 4, 5"):
        TraceExplorer(folder, ranks=(0, 7))


def test_what_a_trace_lacks_is_said(tmp_path):
    folder = make(tmp_path, world=2, steps=3)
    next(folder.glob("worker1.*")).unlink()
    shown = TraceExplorer(folder)
    assert "no message met its other side" in shown.sentence and "no rank waits" not in shown.sentence
    assert "The folder has only rank 0 of 2" in shown.sentence
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("ProfilerStep#", "epoch "))
    shown = TraceExplorer(folder)
    assert [name for name, _ in shown.step.options] == ["the whole trace"] and "No ProfilerStep" in shown.sentence
    with pytest.raises(ValueError, match="there is no such file or folder"):
        TraceExplorer(tmp_path / "missing")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_can_be_read_in_a_narrow_window(lang):
    """What stands at the bands; beside the list of files a window of 1100 pixels leaves 645 for an output."""
    with use_language(lang):
        scene = TraceExplorer().scene
    assert min(label.size for label in scene.labels() if label.x < 76 and label.y > 60) * 645 / scene.width >= 12
    assert scene.height * 645 / scene.width <= 500
    assert all(left >= 0 and right <= scene.width for left, _, right, _ in (box_of(label) for label in scene.labels()))
