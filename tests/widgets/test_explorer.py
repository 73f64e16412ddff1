"""Explorers without a front end: settings, pictures, tables, steps, and what a saved notebook keeps."""

import base64
import io
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from helpers.draw import Label, Rect, Scene
from helpers.widgets.controls import choice, dial
from helpers.widgets.explorer import Explorer, SteppedExplorer
from tests.draw.scenes import box_of


class Halves(Explorer):
    """A bar of a length that must be even."""

    TEXT = "[widget] Halves: a bar, with a dial for its length"

    def __init__(self):
        self.length = dial([(f"{n} MB", n) for n in range(1, 9)], 2, "length")
        super().__init__((self.length, dial(["a", "b"], "a", "a much longer name")))

    @property
    def scene(self):
        if self.length.value % 2:
            raise ValueError(f"{self.length.value} MB & more do not divide by 2; take 2 MB")
        bar = Rect(x=0, y=0, width=self.length.value * 10, height=30, fill="gradients")
        return Scene(width=800, height=20 * self.length.value, title="half", summary="a bar", items=(bar,))

    @property
    def sentence(self):
        return f"half is {self.length.value / 2:.0f} MB"

    @property
    def rows(self):
        return [{"what": "half <1>", "size": self.sentence[8:]}, {"what": "whole", "size": f"{self.length.value} MB"}]


@pytest.fixture
def explorer():
    return Halves()


def png_size(explorer):
    bundle, _ = explorer._repr_mimebundle_()
    return Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).size


def test_a_bad_setting_shows_its_sentence_and_the_next_good_one_brings_the_picture_back(explorer):
    explorer.length.value = 3
    said, last = ElementTree.fromstring(f"<div>{explorer.widget.html.value}</div>")
    assert said.get("role") == "alert" and said.text == "3 MB & more do not divide by 2; take 2 MB"
    assert last.get("inert") is not None and len(last) == 1, "the picture of 2 MB, pale"
    assert explorer.text == "3 MB & more do not divide by 2; take 2 MB" and explorer.widget.table.value == ""
    assert explorer.widget.widget_of(explorer.length) in explorer.widget.children[0].children
    explorer.length.value = 4
    html = explorer.widget.html.value
    assert html.startswith("<p") and "<svg" in html and "<table" in explorer.widget.table.value
    assert not any(word in html for word in ("alert", "inert"))


def test_an_explorer_may_start_in_a_bad_setting(explorer):
    class Wrong(Halves):
        @property
        def sentence(self):
            raise ValueError("nothing to say")

    assert Wrong().text == "nothing to say"
    assert [label.text for label in Wrong().saved.labels()] == ["nothing to say"]


def test_the_saved_picture_carries_the_sentence_good_or_bad(explorer):
    assert explorer.saved.labels()[-1] == Label(x=14, y=50, text="half is 1 MB")
    good = png_size(explorer)
    explorer.length.value = 3
    assert explorer.saved.labels()[0].text == "3 MB & more do not divide by 2; take 2 MB"
    assert png_size(explorer)[0] == good[0] == 1200


def test_a_long_sentence_stays_inside_the_saved_picture(explorer):
    class Long(Halves):
        sentence = "words and more words, " * 20

    saved = Long().saved
    assert len(saved.labels()) > 2
    assert all(box_of(label)[2] <= saved.width and box_of(label)[3] <= saved.height for label in saved.labels())


def test_the_table_is_escaped_and_says_which_header_is_whose(explorer):
    table = ElementTree.fromstring(explorer.widget.table.value)
    assert [cell.get("scope") for cell in table.iter("th")] == ["col", "col", "row", "row"]
    assert [cell.text for cell in table.iter("td")] == ["1 MB", "2 MB"]
    assert explorer.text.splitlines() == ["half is 1 MB", "what      size", "half <1>  1 MB", "whole     2 MB"]


def test_without_rows_there_is_no_fold():
    class Bare(Halves):
        rows = ()

    bare = Bare()
    assert bare.widget.table.value == "" and bare.widget._fold.layout.display == "none" and bare.text == "half is 1 MB"


def test_only_what_changed_is_sent(explorer):
    sent = []
    explorer.widget.html.observe(lambda change: sent.append("picture"), names="value")
    explorer.widget.table.observe(lambda change: sent.append("table"), names="value")
    explorer.widget._fold.observe(lambda change: sent.append("fold"), names="value")
    explorer.dials[1].value = "b"
    assert sent == []
    explorer.length.value = 4
    assert sorted(sent) == ["picture", "table"]


def test_the_page_below_never_moves_up(explorer):
    heights = []
    for value in (8, 3, 2):
        explorer.length.value = value
        heights.append(explorer.widget.html.layout.min_height)
    assert set(heights) == {"calc(64px + min(200px, 20.0cqw))"}


def test_all_labels_get_the_width_of_the_longest(explorer):
    widths = {explorer.widget.widget_of(each).style.description_width for each in explorer.dials}
    assert len(widths) == 1 and float(widths.pop().removesuffix("px")) >= 18 * 5


def test_a_dial_starts_at_one_of_its_options():
    with pytest.raises(ValueError, match="'link' would start at 3; expected one of 1 GB/s, 2 GB/s"):
        dial([("1 GB/s", 1), ("2 GB/s", 2)], 3, "link")
    assert dial([1, 2], 2, "ranks").label == "2" and dial([1], 1, "x", tooltip="what x is").tooltip == "what x is"
    assert choice(["ring", "tree"], "tree", "algorithm").index == 1


def test_a_dial_without_a_tooltip_shows_its_name(explorer):
    assert [explorer.widget.widget_of(each).tooltip for each in explorer.dials] == ["length", "a much longer name"]


class Countdown(SteppedExplorer):
    """As many steps as the dial says; a negative number is no number of steps."""

    TEXT = "[widget] Countdown"

    def __init__(self):
        self.length = dial([-1, 0, 2, 5], 5, "length")
        super().__init__((self.length,))

    @property
    def num_steps(self):
        if self.length.value < 0:
            raise ValueError("-1 steps cannot be counted down; take 0 or more")
        return self.length.value

    @property
    def scene(self):
        return Scene(width=100, height=100, title=f"{self.num_steps - self.step.value} left", summary="")

    @property
    def sentence(self):
        return f"{self.num_steps - self.step.value} left"


@pytest.fixture
def countdown():
    return Countdown()


def test_each_step_draws(countdown):
    seen = []
    for step in range(1, countdown.num_steps + 1):
        countdown.step.value = step
        seen.append(countdown.sentence)
        assert f"{countdown.sentence}</p>" in countdown.widget.html.value
    assert seen == ["4 left", "3 left", "2 left", "1 left", "0 left"]


def test_the_buttons_stop_at_both_ends(countdown):
    back, forward = countdown.widget.widget_of(countdown.step).children[:2]
    assert (back.description, forward.description) == ("previous", "next")
    back.click()
    assert countdown.step.value == 1
    for _ in range(7):
        forward.click()
    assert countdown.step.value == 5
    back.click()
    assert countdown.step.value == 4


def test_fewer_steps_keep_the_step_inside(countdown):
    countdown.step.value = 4
    countdown.length.value = 2
    assert countdown.step.value == countdown.step.max == countdown.widget.widget_of(countdown.step).play.max == 2
    countdown.length.value = 5
    assert (countdown.step.value, countdown.step.max) == (2, 5)
    countdown.length.value = 0
    assert (countdown.step.value, countdown.step.max) == (1, 1)


def test_a_bad_setting_leaves_the_steps_alone(countdown):
    countdown.step.value = 4
    countdown.length.value = -1
    assert "cannot be counted down" in countdown.widget.html.value and countdown.step.value == 4
    countdown.length.value = 5
    assert "1 left" in countdown.widget.html.value


def test_nothing_plays_by_itself_and_a_step_can_be_read(countdown):
    play = countdown.widget.widget_of(countdown.step).play
    assert not play.playing and not play.repeat and play.interval >= 800
    assert "Play moves the picture" in play.tooltip
