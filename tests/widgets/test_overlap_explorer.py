"""The explorer works without a front end: every dial moves the prediction, and a picture stays behind."""

import xml.etree.ElementTree as ElementTree

import pytest

from helpers.draw import Rect
from helpers.records import Span, Timeline
from helpers.widgets import OverlapExplorer
from helpers.widgets.overlap_explorer import SMALL_GPT


def exposed(explorer):
    return explorer.timeline.exposed_communication(0)


def test_the_model_is_the_one_of_the_chapter():
    assert SMALL_GPT.num_params == 10_698_240


def test_a_bucket_in_the_middle_hides_most():
    """Slivers pay latency, one late block hides nothing."""
    explorer, seen = OverlapExplorer(), {}
    for bucket in ("one gradient", "5 MiB", "everything"):
        explorer.bucket.value = bucket
        seen[bucket] = exposed(explorer)
    assert seen["5 MiB"] < seen["one gradient"] < seen["everything"]
    explorer.bucket.value = "everything"
    messages = [span for span in explorer.timeline.for_rank(0).spans if span.lane == "communication"]
    assert len(messages) == 1 and seen["everything"] == pytest.approx(messages[0].duration)


@pytest.mark.parametrize(
    ("dial", "value", "grows"),
    [("bandwidth", 100, False), ("latency", 3000, True), ("ranks", 64, True), ("compute", 1, False)],
)
def test_every_dial_moves_the_exposed_time(dial, value, grows):
    explorer = OverlapExplorer()
    before, html = exposed(explorer), explorer.html.value
    getattr(explorer, dial).value = value
    assert (exposed(explorer) > before) == grows and exposed(explorer) != before
    assert explorer.html.value != html


def test_the_sentence_says_what_is_exposed():
    explorer = OverlapExplorer()
    explorer.bucket.value = "everything"
    assert explorer.sentence.endswith("1 message for 42.8 MB of gradients.")
    assert explorer.sentence.startswith("exposed communication 53.2 ms of 158 ms, ")
    explorer.ranks.value = 64
    assert explorer.sentence.endswith("All 64 ranks do the same; 4 are shown.")


def test_the_picture_is_whole_and_its_axis_stays_while_the_bucket_moves():
    explorer = OverlapExplorer()
    ends = set()
    for bucket in ("one gradient", "25 MiB"):
        explorer.bucket.value = bucket
        svg = explorer.html.value.partition("</p>")[2]
        assert ElementTree.fromstring(svg).get("role") == "img"
        (forward,) = (
            i for i in explorer.scene.items if isinstance(i, Rect) and i.tooltip.startswith("rank 0 · forward")
        )
        ends.add(round(forward.width, 6))
    assert len(ends) == 1


def test_a_recorded_step_stands_below_the_predicted_one():
    spans = [Span(rank=0, lane="compute", name="forward", kind="forward", start=3.0, end=3.1)]
    explorer = OverlapExplorer(recorded=Timeline(spans=spans, source="recorded"))
    texts = [label.text for label in explorer.scene.labels()]
    assert texts.index("predicted") < texts.index("recorded on this machine")


def test_a_saved_notebook_keeps_a_picture_and_a_stable_text():
    explorer = OverlapExplorer()
    first = explorer._repr_mimebundle_()
    explorer.ranks.value = 16
    assert explorer._repr_mimebundle_()["text/plain"] == first["text/plain"] == repr(explorer)
    assert first["text/plain"].startswith("[widget] OverlapExplorer:")
    assert first["image/png"].startswith("iVBOR") and "application/vnd.jupyter.widget-view+json" in first
