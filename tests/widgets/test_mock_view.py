"""The drill and the mock interview without a front end: every button, every stage, and what is saved."""

import xml.etree.ElementTree as ElementTree
from importlib import import_module
from types import SimpleNamespace

import pytest

from helpers import grading
from helpers.interview.drills import drills
from helpers.learner import progress
from helpers.widgets import DrillView, MockView

check = import_module("helpers.grading.check")  # the module; the package's attribute is the function


@pytest.fixture
def view(tmp_path):
    def make(check=lambda key, answer: answer, **options):
        return MockView(check, **{"path": tmp_path / "progress.jsonl", "seed": 1} | options)

    return make


def is_shown(widget) -> bool:
    return widget.layout.display != "none"


def buttons(mock) -> set[str]:
    """Words of the buttons that can be pressed."""
    named = (mock.begin_button, mock.show_button, mock.skip_button, mock.give_up_button)
    named += (mock.finish_button, mock.save_button, mock.again_button)
    rated = tuple(mock.rating_buttons.values()) if is_shown(mock._rating_box) else ()
    return {each.description for each in (*named, *rated) if is_shown(each)}


def test_from_begin_to_sheet_with_buttons(view, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mock = view()
    assert buttons(mock) == {"Begin"} and is_shown(mock._dials) and not is_shown(mock.clock)
    mock.begin_button.click()
    assert buttons(mock) == {"Show the answer", "Skip", "Finish here"} and not is_shown(mock._dials)
    for number in range(1, 6):
        assert f"Question {number} of 5" in mock.text and is_shown(mock.clock)
        assert mock.clock.watch is mock.interview.watch and mock.clock.began > 0 and mock.clock.ended == 0
        assert mock.solution.value == ""
        mock.show_button.click()
        assert mock.clock.ended > 0 and "30 seconds" in mock.solution.value and mock.links.outputs
        assert buttons(mock) == {"Skip", "Finish here", "again", "hard", "good", "easy"}
        mock.rating_buttons["good"].click()
    assert mock.stage == "drill" and buttons(mock) == {"Give up the drill", "Finish here"}
    assert f".submit({mock.interview.drill.name})" in mock.call.value and mock.clock.limit == 900
    assert not mock.submit(False).passed and 'data-right="false"' in mock.feedback.value
    assert mock.submit(True).passed and mock.stage == "over"
    assert buttons(mock) == {"Save the sheet", "One more interview"} and not is_shown(mock.clock)
    assert "<table" in mock.sheet_page.outputs[0]["data"]["text/html"] and mock.sheet.strong
    mock.save_button.click()
    mock.save_button.click()
    assert "Saved as mock-interview-2.md" in mock.note.value
    assert {path.name for path in tmp_path.glob("*.md")} == {"mock-interview.md", "mock-interview-2.md"}
    mock.again_button.click()
    assert mock.stage == "ready" and buttons(mock) == {"Begin"} and not mock.sheet_page.outputs


@pytest.mark.parametrize(("names", "called"), [(["mine", "_3", "_"], "mine"), (["_", "__", "_3"], "_3"), ([], "mock")])
def test_the_line_to_copy_names_it_as_the_notebook_does(view, monkeypatch, names, called):
    mock = view().begin()
    shell = SimpleNamespace(user_ns=dict.fromkeys(names, mock) | {"other": 1})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    for _ in range(5):
        mock.skip()
    assert f"{called}.submit({mock.interview.drill.name})" in mock.call.value


def test_chinese_has_its_own_words_everywhere(view):
    mock = view(language="zh")
    assert buttons(mock) == {"开始"}
    mock.begin()
    assert "第 1 题，共 5 题" in mock.text and mock.clock.text.endswith("剩余（限时 3:00）")
    mock.reveal()
    assert (
        buttons(mock) == {"跳过", "到此结束", "忘了", "吃力", "想起来了", "很轻松"}
        and "30 秒回答" in mock.solution.value
    )
    mock.rate("good")
    mock.finish()
    assert "模拟面试" in mock.text and buttons(mock) == {"保存评分表", "再来一场"}


def test_everything_can_be_skipped_or_ended(view):
    mock = view().begin()
    for _ in range(5):
        mock.skip_button.click()
    mock.give_up_button.click()
    assert mock.stage == "over" and "no answer" in mock.text
    early = view().begin()
    early.finish_button.click()
    assert early.stage == "over" and early.sheet.items[5].state == "not_reached"


def test_ratings_and_the_drill_are_noted(view, tmp_path):
    mock = view().begin()
    mock.rate("hard")
    for _ in range(4):
        mock.skip()
    mock.submit(True)
    entries = progress.read(tmp_path / "progress.jsonl").entries
    assert [(entry.kind, entry.passed) for entry in entries] == [("quiz", True), ("check", True)]
    assert entries[1].more["in_time"] is True


def test_a_call_at_the_wrong_time_says_what_is_at_hand(view):
    mock = view()
    with pytest.raises(ValueError, match=r"call begin\(\) first"):
        mock.submit(print)
    with pytest.raises(ValueError, match=r"call begin\(\) first"):
        mock.reveal()


def test_topics_that_match_nothing_are_told(view):
    mock = view(topics=["xyz"])
    assert mock.stage == "nothing" and "no topic 'xyz'" in mock.text and mock.begin().stage == "nothing"
    with pytest.raises(ValueError, match="no topic 'xyz'"):
        mock.submit(print)


def test_a_damaged_file_is_told(view, tmp_path):
    (tmp_path / "progress.jsonl").write_text("torn\n")
    assert "could not be read" in view().begin().note.value


def test_level_and_language_are_dials_before_it_begins(view):
    mock = view()
    mock.level.value = "staff"
    assert {card.level for card in mock.interview.cards} == {"staff"}
    mock.language.value = "zh"
    assert mock.text.startswith("五道题")


def test_a_sheet_that_cannot_be_saved_is_told(view, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mock = view().begin()
    mock.finish()
    mock.save(tmp_path / "gone" / "sheet.md")
    assert "could not be saved: No such file" in mock.note.value


@pytest.mark.parametrize("language", ["en", "zh"])
def test_html_is_whole_at_each_stage(view, language):
    mock = view(language=language)
    for act in (mock.begin, mock.reveal, *[mock.skip] * 5, lambda: mock.submit(False), mock.finish):
        for part in (mock.prompt, mock.solution, mock.call, mock.feedback, mock.note):
            ElementTree.fromstring(f"<div>{part.value}</div>")
        act()


def test_a_saved_notebook_keeps_nothing_of_how_it_went(view):
    mock = view()
    before = mock._repr_mimebundle_()
    mock.begin().rate("good")
    mock.finish()
    for after in (mock._repr_mimebundle_(), view(seed=5)._repr_mimebundle_()):
        assert (after["text/plain"], after["text/html"]) == (before["text/plain"], before["text/html"])
    assert before["text/plain"].startswith("[widget] MockView")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.jsonl"


def test_begin_and_check(path):
    view = DrillView("03.average", lambda key, answer: answer, path=path)
    assert view.clock.began == 0 and view.begin_button.layout.display != "none" and "not begun" in view.text
    view.begin_button.click()
    assert view.clock.began > 0 and view.begin_button.layout.display == "none"
    assert 'drill("03.average").check(average_gradients)' in ElementTree.fromstring(view.call.value).find("pre").text
    assert not view.links.outputs  # they lead to the solution
    assert not view.check(False).passed and 'data-right="false"' in view.feedback.value
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
    page = ElementTree.fromstring(f"<div>{view.prompt.value}{view.call.value}</div>")
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
