"""Each exported widget, and the example in CONTRIBUTING.md, with every dial at both ends and no front end."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from helpers import widgets
from helpers.widgets.explorer import Explorer
from tests.widgets.explorers import NAMES, make, turned

GUIDE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
NO_NUMBER = re.compile(r"\b(nan|inf)\b", re.IGNORECASE)
# Of a free model, which is not chosen at the start, and of interleaved schedules.
IDLE_AT_THE_START = {"layers", "hidden", "heads", "vocabulary", "chunks"}


def example() -> str:
    """The worked example of the guide."""
    chapter = GUIDE.read_text().split("## Add an explorer")[1]
    return chapter.split("```python\n")[1].split("```")[0]


@pytest.fixture(params=[*NAMES, "CONTRIBUTING.md"])
def widget(request):
    if request.param != "CONTRIBUTING.md":
        return make(request.param)
    space = {"__name__": "example"}
    exec(compile(example(), str(GUIDE), "exec"), space)
    (defined,) = (each for each in space.values() if isinstance(each, type) and each.__module__ == "example")
    return defined()


def ends(dial) -> tuple:
    if not hasattr(dial, "options"):
        return getattr(dial, "min", 0), getattr(dial, "max", 1000)
    values = [option[1] if isinstance(option, tuple) else option for option in dial.options]
    return values[0], values[-1]


def check(widget: object) -> None:
    """The html is whole, and says either what the picture shows or, as an alert, why there is none."""
    text = widget.text  # computed anew each time it is asked
    assert text and not NO_NUMBER.search(text)
    if not isinstance(widget, Explorer):
        return  # the viewer draws in the browser; its own test looks at what it sends
    shown = ElementTree.fromstring(f"<div>{widget.widget.html.value}</div>")
    pictures = [element for element in shown if element.tag.endswith("svg")]
    (said,) = shown.findall("p")
    assert (said.get("role") == "alert") == (not pictures)
    assert said.text == text.splitlines()[0]
    assert all(picture.get("role") in ("img", "group") for picture in pictures)  # group: its parts can be clicked
    table = ElementTree.fromstring(widget.widget.table.value or "<table/>")
    assert len({len(row) for row in table.iter("tr")}) <= 1 and bool(pictures) >= bool(len(table))


def test_every_dial_moves_to_both_ends_from_where_it_starts_and_changes_the_picture(widget):
    for dial in getattr(widget, "dials", ()):
        start, seen = dial.value, {widget.widget.html.value}
        for value in ends(dial):
            dial.value = value
            check(widget)
            seen.add(widget.widget.html.value)
        dial.value = start
        assert len(seen) > 1 or dial.description in IDLE_AT_THE_START, dial.description


def turn_to_corners(widget, num_dials):
    """Draw the widget with its first dials at every combination of their ends."""
    dials = getattr(widget, "dials", ())[:num_dials]
    for corner in range(2 ** len(dials)):
        for place, dial in enumerate(dials):  # in Gray's order each corner is one turned dial away, and so one picture
            dial.value = ends(dial)[(corner ^ corner >> 1) >> place & 1]
        check(widget)


def test_the_first_dials_at_their_ends_together(widget):
    turn_to_corners(widget, 4)  # 16 corners at most


@pytest.mark.slow
def test_six_dials_at_their_ends_together(widget):
    turn_to_corners(widget, 6)  # 64 corners at most


def test_every_step_draws(widget):
    for step in range(1, getattr(widget, "num_steps", 0) + 1):
        widget.step.value = step
        check(widget)


def test_a_saved_notebook_keeps_a_picture_and_a_stable_text_whatever_is_asked_for(widget):
    before, about = widget._repr_mimebundle_()
    for dial in getattr(widget, "dials", ()):
        dial.value = ends(dial)[1]
    if isinstance(widget, widgets.TimelineExplorer):
        widget.playhead = 0.5
    after, _ = widget._repr_mimebundle_(include=["text/plain"], exclude=["image/png"])
    assert before["text/plain"] == after["text/plain"] == repr(widget)
    assert repr(widget).startswith(f"[widget] {type(widget).__name__}:")
    assert "application/vnd.jupyter.widget-view+json" in before
    assert before["image/png"].startswith("iVBOR") and after["image/png"].startswith("iVBOR")
    assert len(about["image/png"]["alt"]) > 20 and 800 <= about["image/png"]["width"] <= 1000


def test_every_dial_says_what_it_is(widget):
    dials = getattr(widget, "dials", ())
    assert all(dial.description and dial.tooltip for dial in dials)
    assert len({dial.description for dial in dials}) == len(dials)


def test_the_example_is_a_page_and_every_widget_has_its_line():
    assert len(example().splitlines()) <= 41
    for name in widgets.__all__:
        assert re.search(rf"^{name} +\w", widgets.__doc__, re.MULTILINE), f"no line about {name} in the docstring"


ODD_CHUNKS = "interleaved: 6 micro-batches are not a whole number of rounds of 4"
REFUSED = [  # an explorer, what its dials are set to, and the sentence
    ("MemoryExplorer", {"tp": 3}, "tp=3 does not divide num_heads=32"),
    ("MemoryExplorer", {"pp": 64}, "pp=64 stages, but the model has only 32 layers"),
    ("MeshExplorer", {"dp": 64}, "256 ranks, but the picture holds at most 64. With the other two as they are, dp is"),
    ("MeshExplorer", {"dp": 8, "tp": 8}, "holds at most 64. With the other two as they are, tp is at most 4"),
    ("MeshExplorer", {"dp": 4, "sequences": 2}, "2 sequences are too few for 4 replicas"),
    ("MeshExplorer", {"zero": 3}, "ZeRO-3 with pp 2 would send its messages for each of 32"),
    ("MeshExplorer", {"model": "gpt2-medium", "pp": 16, "dp": 1}, "cannot be divided into 16 equal stages. pp 8 works"),
    ("PipelineExplorer", {"schedule": "interleaved", "microbatches": 6}, ODD_CHUNKS),
    ("ScalingExplorer", {"gpus": 16}, "TP 8 x PP 4 x CP 1 needs 32 GPUs, and there are 16: lower one of them"),
    ("ScalingExplorer", {"batch": 8}, "A batch of 8 sequences leaves some of 16 replicas without one"),
    ("ScalingExplorer", {"pp": 1, "zero": 0}, "usable: raise TP, PP, ZeRO or recompute, or take the planner's plan."),
    ("ScalingExplorer", {"model": "gpt2-xl"}, "tp=8 does not divide num_heads=25"),
    ("StrategyExplorer", {"model": "gpt2", "nodes": 1024, "batch": 1}, "that is a multiple of 8,192"),
]


@pytest.mark.parametrize(("name", "settings", "sentence"), REFUSED)
def test_what_cannot_be_is_a_sentence_in_the_place_of_the_picture(name, settings, sentence):
    shown = turned(make(name), **settings)
    assert sentence in shown.text and 'role="alert"' in shown.widget.html.value


@pytest.mark.parametrize(
    ("name", "start", "sentence"),
    [
        ("CollectiveExplorer", {"collective": "gossip"}, "known are|expected one of"),
        ("CollectiveExplorer", {"algorithm": "gossip"}, "known are|expected one of"),
        ("CollectiveExplorer", {"ranks": 9}, "known are|expected one of"),
        ("TensorSplitExplorer", {"cut": "diagonal"}, "the dial 'split' would start at 'diagonal'"),
        ("TensorSplitExplorer", {"ranks": 3}, "the dial 'ranks' would start at 3; expected one of 2, 4"),
        ("ZeroExplorer", {"stage": 4}, "the dial 'stage' would start at 4"),
    ],
)
def test_a_bad_start_gets_a_sentence(name, start, sentence):
    with pytest.raises(ValueError, match=sentence):
        getattr(widgets, name)(**start)
