"""The views of the interview without a front end: every form, stage and dial, and what a saved notebook keeps."""

import re
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from types import SimpleNamespace

import pytest

from helpers import grading
from helpers.interview import load_all
from helpers.interview.dialogues import dialogue, dialogue_names
from helpers.interview.drills import drills
from helpers.interview.quiz import FORMS, list_topics
from helpers.learner import progress
from helpers.widgets import DialogueView, DrillView, MockView, QuizView, RoundView
from helpers.widgets.talk_view import parts_html
from helpers.widgets.view import STATIC

CARDS = load_all()
check = import_module("helpers.grading.check")  # the module; the package's attribute is the function


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".rank-by-rank" / "progress.jsonl"


def verdict(key, answer):
    return answer


def quiz(**options):
    return QuizView(**{"seed": 0} | options)


def mock(check=verdict, **options):
    return MockView(check, **{"seed": 1} | options)


def is_shown(widget) -> bool:
    return widget.layout.display != "none"


def buttons(view) -> set[str]:
    """Words of the buttons that can be pressed."""
    every = (view.submit_button, *view.action_buttons.values(), view.save_button, view.again_button)
    for row, members in ((view._rating_row, view.rating_buttons.values()), (view._options_box, view.option_buttons)):
        every += tuple(members) if is_shown(row) else ()
    return {each.description for each in every if is_shown(each)}


def links(view) -> str:
    return view.links.outputs[0]["data"]["text/html"] if view.links.outputs else ""


def right(view) -> str:
    """A reply to the quiz's question that passes."""
    question = view.talk.question
    if view.step.form == "number":
        return question.card.predict.says
    if view.step.form == "choice":
        right = question.card.choices.right.in_(view.language.value)
        return next(option.value for option in view.step.options if option.label == right)
    return "good"


# -- the quiz --------------------------------------------------------------------------------------------------------
def test_a_folded_card_is_opened_rated_and_followed_by_the_next(path):
    view = quiz(form="folded")
    first = view.talk.question
    assert buttons(view) == {"Show the answer", "Skip"} and view.solution.value == ""
    view.submit_button.click()
    assert buttons(view) == {"again", "hard", "good", "easy", "Skip"}
    assert "30 seconds" in view.solution.value and 'href="' in links(view)
    view.rating_buttons["good"].click()
    assert view.told[0].passed and "It comes back in" in view.text and buttons(view) == {"Next"}
    assert view.sentence.startswith("Asked 1, right 1") and "30 seconds" in view.solution.value
    view.submit_button.click()
    assert view.talk.question != first and not view.told and view.solution.value == "" and not links(view)
    assert [entry.key for entry in progress.read(path).entries] == [first.card.id]


def test_one_of_several_is_chosen_with_a_button():
    view = quiz(form="choice")
    shown = [each for each in view.option_buttons if is_shown(each)]
    assert len(shown) == len(view.step.options) and shown[0].description.startswith("a)  ")
    assert not any("`" in each.description or "**" in each.description for each in shown)
    shown["abcde".index(right(view))].click()
    assert view.told[0].passed and buttons(view) == {"Next"} and "30 seconds" in view.solution.value


def test_a_number_is_typed_and_one_that_is_none_leaves_the_question(path):
    view = quiz(form="number")
    card = view.talk.question.card
    view.field.value = "many"
    view.submit_button.click()
    assert "cannot be read as a number" in view.text and 'role="alert"' in view.feedback.value
    assert view.step.form == "number" and view.field.value == "many" and not path.exists()
    view.field.value = right(view)
    view.field._handle_custom_msg({"event": "submit"}, [])  # what Enter in the browser sends
    assert view.told[0].passed and view.step.question == card.predict.ask.en != card.question.en
    first = ElementTree.fromstring(view.solution.value)[0]  # the card's own question stands above its answer
    assert "".join(first.itertext()) == re.sub("[`*]", "", card.question.en)


def test_skip_notes_nothing(path):
    view = quiz()
    first = view.talk.question.card
    view.action_buttons["skip"].click()
    assert view.talk.question.card != first and not path.exists()


@pytest.mark.parametrize("form", ["mixed", *FORMS])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_card_shows_in_every_form(form, language):
    view, asked = quiz(form=form, language=language), 0
    while view.step is not None:
        for part in (view.prompt, view.solution, view.feedback, view.progress):
            ElementTree.fromstring(f"<div>{part.value}</div>")
        asked += view.step.form in ("ready", "choice", "number")
        view.reply("" if view.step.form in ("ready", "pause") else right(view))
    assert view.talk.right == view.talk.asked == asked and is_shown(view.again_button)


def test_nothing_due_says_so_and_can_be_asked_ahead():
    view = quiz(topics="start_here", form="folded")
    while view.step is not None:
        view.reply({"rating": "again" if view.talk.asked == 0 else "easy"}.get(view.step.form, ""))
    assert "Due within a day" in view.text and "Weakest topic: start_here." in view.text
    view.start()
    assert "Nothing is due now" in view.text and buttons(view) == {"Ask what is not due"}
    view.again_button.click()
    assert view.talk.question.card.topic == "start_here"


def test_dials_choose_and_language_turns_every_word():
    view = quiz()
    for topic in list_topics(CARDS):
        view.topic.value = topic
        assert view.talk.question.card.topic == topic
    view.topic.value, view.level.value, view.form.value = "", "staff", "folded"
    card = view.talk.question.card
    view.language.value = "zh"
    assert card.level == "staff" and view.talk.question.card == card
    assert "已答 0" in view.text and buttons(view) == {"看答案", "跳过"}


def test_dials_that_match_nothing_get_a_sentence_and_come_back():
    plain = [card for card in CARDS if card.predict is None][:3]
    view = quiz(cards=plain, form="folded")
    view.form.value = "number"
    assert view.step is None and "No card matches" in view.text and 'role="alert"' in view.feedback.value
    view.reply()
    view.act("skip")
    view.form.value = "folded"
    assert view.step is not None and view.problem == ""


@pytest.mark.parametrize(
    "options",
    [{"topics": "xyz"}, {"levels": "guru"}, {"form": "song"}, {"language": "fr"}, {"topics": ["ddp", "zero"]}],
)
def test_a_start_that_no_dial_has_is_refused(options):
    with pytest.raises(ValueError, match="the dial|language is"):
        quiz(**options)


def test_a_file_that_is_damaged_or_cannot_be_written_is_told(path, tmp_path):
    path.parent.mkdir()
    path.write_text('{"time": "2026\n')
    for view, sentence in ((quiz(), "could not be read"), (quiz(path=tmp_path), "cannot be read")):
        assert sentence in view.text and 'role="alert"' in view.note.value


# -- the mock interview ----------------------------------------------------------------------------------------------
def test_from_begin_to_sheet_with_buttons(tmp_path):
    view = mock()
    assert buttons(view) == {"Begin"} and is_shown(view._dials) and not is_shown(view.clock)
    view.submit_button.click()
    assert buttons(view) == {"Show the answer", "Skip", "Finish here"} and not is_shown(view._dials)
    for number in range(1, 6):
        assert f"{number} of 5 ·" in view.text and view.clock.began > 0 and view.clock.ended == 0
        view.submit_button.click()
        assert is_shown(view.clock) and view.clock.ended > 0 and "30 seconds" in view.solution.value and links(view)
        assert buttons(view) == {"Skip", "Finish here", "again", "hard", "good", "easy"}
        view.rating_buttons["good"].click()
    assert buttons(view) == {"Give up the drill", "Finish here"} and view.clock.limit == 900
    assert f".submit({view.talk.drill.name})" in view.call.value
    assert not view.submit(False).passed and 'data-right="false"' in view.feedback.value
    assert view.submit(True).passed and view.step is None
    assert buttons(view) == {"Save the sheet", "One more interview"} and not is_shown(view.clock)
    assert "<table" in view.document_page.outputs[0]["data"]["text/html"] and view.sheet.strong
    view.save_button.click()
    view.save_button.click()
    assert "Saved as mock-interview-2.md" in view.note.value
    assert {path.name for path in tmp_path.glob("*.md")} == {"mock-interview.md", "mock-interview-2.md"}
    view.save(tmp_path / "gone" / "sheet.md")
    assert "could not be saved: No such file" in view.note.value
    view.again_button.click()
    assert buttons(view) == {"Begin"} and not view.document_page.outputs


@pytest.mark.parametrize(
    ("names", "called"),
    [(["mine", "_3", "_"], "mine"), (["_", "__", "_3"], "_3"), ([], "mock")],
)
def test_the_line_to_copy_names_it_as_the_notebook_does(monkeypatch, names, called):
    view = mock().begin()
    shell = SimpleNamespace(user_ns=dict.fromkeys(names, view) | {"other": 1})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    for _ in range(5):
        view.act("skip")
    assert f"{called}.submit({view.talk.drill.name})" in view.call.value


def test_chinese_has_its_own_words_everywhere():
    view = mock(language="zh")
    assert buttons(view) == {"开始"}
    view.begin()
    assert "第 1 / 5 题" in view.text and view.clock.text.endswith("剩余（限时 3:00）")
    view.reply()
    assert buttons(view) == {"跳过", "到此结束", "忘了", "吃力", "想起来了", "很轻松"}
    assert "30 秒回答" in view.solution.value
    view.reply("good")
    assert "模拟面试" in view.finish().text and buttons(view) == {"保存评分表", "再来一场"}


def test_what_does_not_fit_is_told():
    view = mock(topics=["xyz"])
    assert "no topic 'xyz'" in view.text and view.begin().step is None
    with pytest.raises(ValueError, match="no topic 'xyz'"):
        view.submit(print)
    with pytest.raises(ValueError, match="no topic 'xyz'"):
        view.sheet  # noqa: B018
    with pytest.raises(ValueError, match="no program is asked for now"):
        mock().submit(print)


def test_level_and_language_are_dials_before_it_begins():
    view = mock()
    view.level.value = "staff"
    assert {card.level for card in view.talk.cards} == {"staff"}
    view.language.value = "zh"
    assert view.text.startswith("五道题")


def test_a_check_that_fails_by_itself_leaves_the_interview_as_it_was():
    def broken(key, answer):
        raise MemoryError

    view = mock(broken).begin()
    for _ in range(5):
        view.act("skip")
    with pytest.raises(MemoryError):
        view.submit(print)
    assert view.step.form == "code" and [item.state for item in view.sheet.items] == ["skipped"] * 5 + ["no_answer"]


# -- the drill -------------------------------------------------------------------------------------------------------
def test_a_drill_is_begun_and_checked(path):
    view = DrillView("03.average", verdict)
    assert "not begun" in view.text and buttons(view) == {"Begin"}
    view.action_buttons["begin"].click()
    assert view.clock.began > 0 and buttons(view) == set()
    assert 'drill("03.average").check(average_gradients)' in ElementTree.fromstring(view.call.value).find("pre").text
    assert not links(view)  # they lead to the solution
    assert not view.check(False).passed and 'data-right="false"' in view.feedback.value
    assert "Explained by" in links(view)
    assert view.check(True).passed and "Passed after 0:00" in view.text and "Explained by" in links(view)
    assert [entry.passed for entry in progress.read(path).entries] == [False, True]
    assert view.check(True).passed  # the cell is run again


def test_a_drill_without_a_lab_folds_its_own_answer_below_once_it_was_tried():
    view = DrillView("wb.merge", verdict)
    assert "One answer" not in view.solution.value
    view.check(False)
    assert "<details><summary>One answer" in view.solution.value


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_drill_is_shown_whole(language):
    for one in drills():
        view = DrillView(one.key, language=language)
        page = ElementTree.fromstring(f"<div>{view.solution.value}{view.call.value}</div>")
        assert page.find(".//pre").text == one.stub and page.findall(".//li")


def test_the_graders_drill_keeps_its_clock_until_it_is_passed(path, monkeypatch):
    monkeypatch.setattr(check, "grade", verdict)
    monkeypatch.setattr(check, "_drills", {})
    first = grading.drill("03.average", language="zh", path=path).begin()
    assert grading.drill("03.average") is first
    assert grading.drill("03.average", language="zh", path=path) is first
    assert grading.drill("03.buckets") is not first
    first.check(True)
    assert grading.drill("03.average", path=path) is not first
    with pytest.raises(ValueError, match="there is no drill '03.start'"):
        grading.drill("03.start")


def test_the_graders_mock_interview_judges_with_the_labs_checks(monkeypatch):
    asked = []
    monkeypatch.setattr(check, "grade", lambda key, answer: asked.append(key) or True)
    view = grading.mock_view(seed=1).begin()
    for _ in range(5):
        view.act("skip")
    assert view.submit(print).passed and asked == [view.talk.drill.key]


# -- rounds ----------------------------------------------------------------------------------------------------------
def test_lines_are_marked_compared_and_shown_on_the_sheet(tmp_path):
    view = RoundView("accumulated-and-repeated", language="en")
    assert view.text.startswith("Choose a round") and not is_shown(view.lines)
    view.submit_button.click()
    view.action_buttons["hint"].click()
    assert "Hint: Compare" in view.feedback.value
    lines = view.lines.buttons.children
    lines[7].value = lines[3].value = lines[0].value = True
    lines[0].value = False
    view.lines.reasons.children[1].value = "means add up"
    assert [field.line for field in view.lines.reasons.children] == [4, 8] and lines is view.lines.buttons.children
    view.action_buttons["hint"].click()
    assert "There is no further hint" in view.feedback.value  # both are found
    assert view.talk.marks[8] == "means add up" and buttons(view) == {"Hint (costs a point)", "Hand in", "Finish here"}
    view.submit_button.click()
    assert "model answer: Gradients add up" in view.ticks.children[0].children[0].value
    view.ticks.children[0].children[1].children[0].value = True
    view.submit_button.click()
    assert view.sheet.points == 4 and "<table" in view.document_page.outputs[0]["data"]["text/html"]
    view.save_button.click()
    assert "Saved as round.md" in view.note.value and (tmp_path / "round.md").exists()
    view.again_button.click()
    assert buttons(view) == {"Begin"} and not view.talk.marks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_design_is_asked_judged_and_refused_in_each_language(language):
    view = RoundView("eight-gpus", language=language).begin()
    view.field.value = "many"
    view.submit_button.click()
    assert 'role="alert"' in view.feedback.value and not view.talk.answers
    view.reply("128.5 GB")
    view.reply("dp=8")
    place, not_fit = ("2 of 4 · ", "not fit") if language == "en" else ("第 2 / 4 题 · ", "放不下")
    assert place in view.feedback.value and not_fit in view.feedback.value  # the third is asked meanwhile
    assert 'data-right="false"' in view.feedback.value
    for part in (view.prompt, view.solution, view.feedback, view.note):
        ElementTree.fromstring(f"<div>{part.value}</div>")
    view.action_buttons["finish"].click()
    assert view.sheet.points == 2 and ("未作答" if language == "zh" else "no answer") in view.text
    view.language.value = "en"
    assert view.talk.item.id == "eight-gpus" and "Llama-3 8B on one machine" in view.text


# -- dialogues -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", dialogue_names())
def test_the_learner_answers_before_the_candidate_and_reads_on(name, language):
    view, one = DialogueView(name, language=language), dialogue(name)
    for number in range(1, len(one.turns), 2):  # of the candidate's turns
        shown = [turn.text.in_(language) in view.text for turn in one.turns]
        assert shown == [True] * number + [False] * (len(one.turns) - number) and is_shown(view.notes)
        view.notes.value = "I would ask <who> pays"
        view.submit_button.click()
        assert "I would ask &lt;who&gt; pays" in view.solution.value and view.notes.value == ""
        ElementTree.fromstring(view.solution.value)
    assert one.why.in_(language) not in view.text and not is_shown(view.notes)
    view.submit_button.click()
    assert one.why.in_(language) in view.document_page.outputs[0]["data"]["text/html"]
    assert buttons(view) == {"From the start" if language == "en" else "从头开始"}


def test_all_is_shown_at_once_in_each_language_and_it_can_begin_again():
    view, last = DialogueView("rl-30b", language="en"), dialogue("rl-30b").turns[-1].text
    view.notes.value = "three pools"
    view.action_buttons["all"].click()
    assert view.step is None and "three pools" in view.solution.value and last.en in view.text
    view.language.value = "zh"
    assert view.step is None and "three pools" in view.solution.value and last.zh in view.text
    view.again_button.click()
    assert "three pools" not in view.solution.value and buttons(view) == {"下一步", "显示全部"}


def test_the_page_is_written_in_the_language_of_the_dial_and_an_unknown_name_refused(tmp_path):
    page = DialogueView("experts-1024", language="zh").page(tmp_path / "x.html").read_text(encoding="utf-8")
    assert all(turn.text.zh in page for turn in dialogue("experts-1024").turns if "`" not in turn.text.zh)
    with pytest.raises(ValueError, match="the dialogues are pretrain-70b, experts-1024, rl-30b and mfu-fell-8"):
        DialogueView("pretrain", language="en")


# -- all of them -----------------------------------------------------------------------------------------------------
def play(view):
    """Reply to a few questions, and end."""
    for reply in ("", "good", "", "", "good"):
        view.reply(reply)
    view.finish()


@pytest.mark.parametrize(
    "make",
    [quiz, mock, RoundView, DialogueView, lambda: DrillView("03.average", verdict)],
    ids=["quiz", "mock", "round", "dialogue", "drill"],
)
def test_a_saved_notebook_keeps_nothing_of_the_learner_or_the_time(make):
    view = make()
    before = view._repr_mimebundle_()
    view.check(True) if isinstance(view, DrillView) else play(view)
    for after in (view._repr_mimebundle_(), make()._repr_mimebundle_()):
        assert (after["text/plain"], after["text/html"]) == (before["text/plain"], before["text/html"])
    assert before["text/plain"] == repr(view) and repr(view).startswith(f"[widget] {type(view).__name__}: ")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_saved_dialogue_is_whole_and_a_saved_drill_has_its_task(language):
    one = dialogue("mfu-fell-8")
    page = ElementTree.fromstring(DialogueView(one.id, language=language).saved_html)
    shown = "".join(page.itertext())
    assert all(turn.text.in_(language) in shown for turn in one.turns) and one.why.in_(language) in shown
    assert "average_gradients" in DrillView("03.average", language=language).saved_html


def test_parts_of_nothing_are_nothing():
    assert parts_html((), "en") == ""


def test_colours_come_from_the_page():
    style = (STATIC / "interview.css").read_text(encoding="utf-8").partition("/* The lines of a round")[0]
    rules = re.sub(r"var\(--jp-[\w-]+, (?:[^()]|\([^()]*\))*\)", "", style)
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb\(", rules)
