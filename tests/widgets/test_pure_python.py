"""Explorers for a web page: plain data in and out, in a Python that has neither ipywidgets nor anything like it."""

import json
import os
import subprocess
import sys

import pytest

from helpers import widgets
from tests.widgets.explorers import make, turned

NAMES = [name for name in widgets.__all__ if name.endswith("Explorer") and name != "TimelineExplorer"]
CONTROL = {"name", "kind", "label", "tooltip", "options", "value", "min", "max", "disabled", "hidden", "group"}
KINDS = {"slider", "list", "buttons", "number", "button", "steps"}
# Refuses every import from outside the standard library, this package and PyYAML without its part in C. Then every
# module of the calculators, pictures and talks is imported, every explorer is made, each of its controls is set to both
# ends, and a part of the picture is clicked. It prints how many explorers and controls there were.
BARE = """
import importlib.abc, json, pkgutil, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in (*sys.stdlib_module_names, "helpers", "yaml") or name == "yaml._yaml":
            raise ImportError(f"{name} is not there in a browser")
sys.meta_path.insert(0, Refuse())
import helpers.draw, helpers.interview, helpers.learner.guesses, helpers.predict
for package in (helpers.draw, helpers.interview, helpers.learner.guesses, helpers.predict):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
from helpers import widgets
from helpers.records import Span, Timeline

def ends(control):
    if control["kind"] in ("slider", "list", "buttons"):
        return 0, len(control["options"]) - 1, control["value"]
    return {"number": (12, 24), "steps": (control["max"], control["min"]), "button": (None,)}[control["kind"]]

span = Span(rank=0, lane="compute", name="forward", kind="forward", start=0.0, end=1.0)
widgets.TimelineExplorer(Timeline(spans=(span,), source="recorded")).text
explorers = [name for name in widgets.__all__ if name.endswith("Explorer") and name != "TimelineExplorer"]
count = 0
for name in explorers:
    explorer = getattr(widgets, name)()
    for control in explorer.as_json()["controls"]:
        count += 1
        for value in ends(control):
            explorer.set(control["name"], value)
            shown = explorer.as_json()
            assert json.loads(json.dumps(shown)) == shown and shown["svg"].startswith("<svg") and shown["sentence"]
    for part in shown["clickable"][-1:]:
        explorer.press(part)
print(len(explorers), count)
"""


def control(shown, name):
    (found,) = (each for each in shown.as_json()["controls"] if each["name"] == name)
    return found


def test_every_explorer_works_where_only_pure_python_is():
    done = subprocess.run(
        [sys.executable, "-c", BARE], capture_output=True, text=True, timeout=150, env=os.environ | {"PYTHONPATH": "."}
    )
    assert (done.returncode, done.stderr) == (0, "")
    explorers, controls = map(int, done.stdout.split())
    assert explorers == len(NAMES) and controls > 80


@pytest.mark.parametrize("name", NAMES)
def test_a_page_gets_every_control_with_a_name_of_its_own_and_what_the_notebook_shows(name):
    shown = make(name)
    sent = shown.as_json()
    assert set(sent) == {"controls", "sentence", "is_problem", "svg", "rows", "clickable"}
    assert all(set(each) == CONTROL and each["kind"] in KINDS for each in sent["controls"])
    names = [each["name"] for each in sent["controls"]]
    assert len(set(names)) == len(names) and all(hasattr(shown, each) for each in names)
    assert {id(each) for each in shown.dials} <= {id(getattr(shown, each)) for each in names}
    assert (sent["sentence"], sent["is_problem"]) == (shown.sentence, False)
    assert f"{sent['svg']}" in shown.widget.html.value
    assert sent["rows"] == [[*shown.rows[0]], *([*row.values()] for row in shown.rows)]


def test_a_dial_is_set_by_the_place_of_its_option():
    shown = make("StrategyExplorer")
    dial = control(shown, "nodes")
    assert (dial["kind"], dial["options"][:3], dial["value"]) == ("slider", ["1", "2", "4"], 2)
    shown.set("nodes", 3)
    assert shown.nodes.value == 8 and control(shown, "nodes")["value"] == 3 and "8 nodes" in shown.as_json()["svg"]


def test_an_invalid_setting_is_a_problem_above_the_last_picture():
    shown = make("MemoryExplorer")
    before = shown.as_json()["svg"]
    shown.set("tp", 2)
    sent = shown.as_json()
    assert sent["is_problem"] and sent["sentence"] == "Plan: tp=3 does not divide num_heads=32; choose one that does"
    assert (sent["svg"], sent["rows"], control(shown, "make_it_fit")["disabled"]) == (before, [], True)


def test_headings_hidden_boxes_and_a_button():
    shown = make("MemoryExplorer")
    assert [control(shown, name)["group"] for name in ("model", "dp", "make_it_fit")] == ["", "Spread it", "Feed it"]
    assert control(shown, "layers")["hidden"] and control(shown, "make_it_fit")["value"] is None
    shown.set("make_it_fit", None)
    assert shown.advice.fits
    shown.set("model", len(control(shown, "model")["options"]) - 1)
    assert not control(shown, "layers")["hidden"]
    shown.set("layers", 12)
    assert shown.spec.num_layers == 12 and control(shown, "layers")["value"] == 12


def test_steps_and_buttons():
    shown = make("CollectiveExplorer")
    steps = control(shown, "step")
    assert (steps["kind"], steps["value"], steps["min"], steps["max"]) == ("steps", 1, 1, 6)
    shown.set("step", 6)
    assert shown.as_json()["sentence"].startswith("Step 6 of 6")
    shown.set("ranks", 0)
    assert (control(shown, "step")["value"], control(shown, "step")["max"]) == (2, 2)
    assert control(shown, "view")["options"] == ["one step", "all steps"]
    shown.set("view", 1)
    assert shown.view.value == "all"


def test_a_part_of_the_picture_is_pressed():
    shown = make("MeshExplorer")
    assert shown.as_json()["clickable"] == [str(rank) for rank in range(8)]
    shown.press("5")
    assert shown.rank.value == 5 and 'data-pick="5" role="button" aria-pressed="true"' in shown.as_json()["svg"]
    turned(shown, zero=3)
    assert shown.as_json()["is_problem"] and shown.as_json()["clickable"] == []


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("FaultExplorer", ("nodez", 0), "FaultExplorer has no control 'nodez'; it has nodes, rate, save"),
        ("FaultExplorer", ("nodes", 99), "has options 0 to 9, and not 99"),
        ("FaultExplorer", ("nodes", True), "has options 0 to 9, and not True"),
        ("FaultExplorer", ("nodes", "8"), "has options 0 to 9, and not '8'"),
        ("ZeroExplorer", ("step", 21), "there are steps 1 to 20, and not 21"),
        ("MemoryExplorer", ("layers", 1.5), "layers: 1.5 is no whole number"),
    ],
)
def test_what_a_page_must_not_send_gets_a_sentence(name, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(name).set(*change)


def test_a_value_that_a_dial_does_not_offer_gets_a_sentence():
    with pytest.raises(ValueError, match="the dial 'nodes' has no 3; expected one of 1, 8, 64"):
        make("FaultExplorer").nodes.value = 3
    with pytest.raises(ValueError, match="no part '3' that can be clicked; it has none"):
        make("FaultExplorer").press("3")


def test_the_notebook_and_the_page_share_the_controls():
    shown = make("ZeroExplorer")
    view = shown.widget
    view.widget_of(shown.stage).index = 1  # as the learner turns it
    assert shown.stage.value == 1 and shown.num_steps == view.widget_of(shown.step).step.max
    shown.set("stage", 3)
    assert view.widget_of(shown.stage).index == 3 and json.dumps(shown.as_json())
    view.widget_of(shown.step).step.value = 4
    assert shown.step.value == 4 and shown.sentence in shown.text
