"""What the SVG text promises: outlines of pale fills, paper, no motion."""

import xml.etree.ElementTree as ElementTree

import pytest

from helpers.draw import Rect, Scene, to_svg
from helpers.draw.palette import LIGHT, PAINTS
from tests.draw.scenes import SCENES

SVG = "{http://www.w3.org/2000/svg}"


def drawn(**look):
    """The one rectangle of a Scene, as its attributes in the SVG."""
    rect = Rect(x=10, y=10, **{"width": 40, "height": 20, **look})
    root = ElementTree.fromstring(to_svg(Scene(width=90, height=90, title="one", summary="one", items=(rect,))))
    return root.findall(f"{SVG}rect")[1].attrib


def test_a_pale_fill_gets_an_outline_inside_its_rectangle():
    pale, deep = drawn(fill="buffers"), drawn(fill="parameters")
    assert (pale["x"], pale["width"], pale["stroke"]) == ("10.5", "39", PAINTS["buffers"].edge)
    assert (deep["x"], deep["width"]) == ("10", "40") and "stroke" not in deep


def test_a_thin_pale_mark_is_drawn_in_its_outline():
    assert drawn(fill="buffers", width=2)["fill"] == PAINTS["buffers"].edge


def test_a_stroke_of_its_own_or_a_share_of_opacity_takes_no_outline():
    assert drawn(fill="buffers", stroke="communication")["stroke"] == PAINTS["communication"].fill
    assert "stroke" not in drawn(fill="buffers", opacity=0.5)


def test_paper_is_white_with_dark_ink_after_every_other_rule():
    style = ElementTree.fromstring(to_svg(SCENES["ring"])).find(f"{SVG}style").text
    paper = style.split("@media print{")[1].split("}}")[0]
    assert f"--rr-ink:{LIGHT.ink};--rr-surface:{LIGHT.surface}" in paper
    assert "jp-" not in paper and style.index("@media print") > style.index("prefers-color-scheme")


@pytest.mark.parametrize("word", ["<animate", "<set", "transition", "animation", "@keyframes"])
def test_nothing_moves(word):
    assert not any(word in to_svg(scene) for scene in SCENES.values())
