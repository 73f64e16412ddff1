"""A drill in a notebook without a front end, and the grader's own, which knows the checks."""

import xml.etree.ElementTree as ElementTree

import pytest

from helpers import grading
from helpers.grading import check
from helpers.interview.drills import drills
from helpers.learner import progress
from helpers.widgets import DrillView


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.jsonl"


def test_begin_and_check(path):
    view = DrillView("03.average", lambda key, answer: answer, path=path)
    assert view.clock.began == 0 and view.begin_button.layout.display != "none" and "not begun" in view.text
    view.begin_button.click()
    assert view.clock.began > 0 and view.begin_button.layout.display == "none"
    assert 'drill("03.average").check(average_gradients)' in ElementTree.fromstring(view.how.value).find("pre").text
    assert not view.links.outputs  # they lead to the solution
    assert not view.check(False).passed and 'data-right="false"' in view.said.value
    assert "Explained by" in view.links.outputs[0]["data"]["text/html"]
    assert view.check(True).passed and view.clock.ended > 0 and "Passed after 0:00" in view.text
    assert [entry.passed for entry in progress.read(path).entries] == [False, True]


def test_a_drill_without_a_lab_folds_its_own_answer_below_once_it_was_tried(path):
    view = DrillView("wb.merge", lambda key, answer: answer, path=path)
    assert not view.links.outputs
    view.check(False)
    assert "<details><summary>One answer" in view.links.outputs[0]["data"]["text/html"]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("key", [one.key for one in drills()])
def test_each_is_shown_whole(key, language):
    view = DrillView(key, language=language)
    page = ElementTree.fromstring(f"<div>{view.prompt.value}{view.how.value}</div>")
    assert page.find(".//pre").text == view.drill.stub and page.findall(".//li")


def test_a_saved_notebook_keeps_the_prompt_and_nothing_of_the_learner(path):
    view = DrillView("03.average", lambda key, answer: answer, path=path)
    before = view._repr_mimebundle_()
    view.begin().check(True)
    after = view._repr_mimebundle_()
    assert after["text/plain"] == before["text/plain"] == repr(view) and after["text/html"] == before["text/html"]
    assert "average_gradients" in before["text/html"] and view.TEXT.startswith("[widget] DrillView")


def test_the_graders_drill_keeps_its_clock_until_it_is_passed(path, monkeypatch):
    monkeypatch.setattr(check, "grade", lambda key, answer: answer)
    monkeypatch.setattr(check, "_drills", {})
    first = grading.drill("03.average", language="zh", path=path).begin()
    assert grading.drill("03.average") is first
    assert grading.drill("03.average", language="zh", path=path) is first
    assert grading.drill("03.buckets") is not first
    first.check(True)
    assert grading.drill("03.average", path=path) is not first
    with pytest.raises(ValueError, match="there is no drill '03.start'"):
        grading.drill("03.start")


def test_the_graders_mock_interview_judges_with_the_labs_checks(path, monkeypatch):
    asked = []
    monkeypatch.setattr(check, "grade", lambda key, answer: asked.append(key) or True)
    mock = grading.mock_view(path=path, seed=1).begin()
    for _ in range(5):
        mock.skip()
    assert mock.submit(print).passed and asked == [mock.interview.drill.key]
