"""The quiz view without a front end: every form, every dial, a damaged file, and what a saved notebook keeps."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.interview import load_all
from helpers.interview.quiz import FORMS, list_topics
from helpers.learner import progress
from helpers.widgets import QuizView
from helpers.widgets.view import STATIC

CARDS = load_all()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.jsonl"


@pytest.fixture
def view(path):
    def make(**options):
        return QuizView(**{"path": path, "seed": 0} | options)

    return make


def is_shown(widget) -> bool:
    return widget.layout.display != "none"


def parsed(widget) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{widget.value}</div>")


def right(question) -> str:
    """An answer that passes."""
    if question.form == "folded":
        return "good"
    if question.form == "number":
        return question.card.predict.says
    texts = (question.card.choices.right.en, question.card.choices.right.zh)
    return "abcde"[next(number for number, option in enumerate(question.options) if option in texts)]


def test_a_folded_card_is_opened_rated_and_followed_by_the_next(view, path):
    quiz = view(form="folded")
    first = quiz.question
    assert is_shown(quiz.show_button) and not is_shown(quiz._rating_box) and quiz.solution.value == ""
    quiz.show_button.click()
    assert is_shown(quiz._rating_box) and not is_shown(quiz.show_button)
    assert "30 seconds" in quiz.solution.value and 'href="' in quiz.links.outputs[0]["data"]["text/html"]
    quiz.rating_buttons["good"].click()
    assert quiz.given.passed and "It comes back in" in quiz.text and is_shown(quiz.next_button)
    assert quiz.sentence.startswith("Asked 1, right 1")
    quiz.next_button.click()
    assert quiz.question != first and quiz.given is None and quiz.solution.value == "" and not quiz.links.outputs
    assert [entry.key for entry in progress.read(path).entries] == [first.card.id]


def test_one_of_several_is_chosen_with_a_button(view):
    quiz = view(form="choice")
    shown = [each for each in quiz.option_buttons if is_shown(each)]
    assert len(shown) == len(quiz.question.options) and shown[0].description.startswith("a)  ")
    assert not any("`" in each.description or "**" in each.description for each in shown)
    shown["abcde".index(right(quiz.question))].click()
    assert quiz.given.passed and not is_shown(quiz._options_box) and "30 seconds" in quiz.solution.value


def test_a_number_is_typed_and_one_that_is_none_leaves_the_question(view, path):
    quiz = view(form="number")
    quiz.field.value = "many"
    quiz.check_button.click()
    assert "cannot be read as a number" in quiz.text and 'role="alert"' in quiz.feedback.value
    assert quiz.given is None and not path.exists()
    quiz.field.value = right(quiz.question)
    quiz.field._handle_custom_msg({"event": "submit"}, [])  # what Enter in the browser sends
    assert quiz.given.passed and quiz.problem == ""
    quiz.next()
    assert quiz.field.value == ""


def test_a_number_has_its_own_question_above_the_answer(view):
    quiz = view(form="number")
    quiz.answer(right(quiz.question))
    card = quiz.given.card
    assert quiz.question.text == card.predict.ask.en != card.question.en
    assert "".join(parsed(quiz.solution)[0][0].itertext()) == re.sub("[`*]", "", card.question.en)


def test_what_is_answered_once_is_not_answered_twice(view, path):
    quiz = view(form="folded")
    quiz.answer("good")
    assert quiz.answer("again") is None and quiz.quiz.asked == 1
    quiz.reveal()
    assert len(progress.read(path).entries) == 1


def test_skip_notes_nothing(view, path):
    quiz = view()
    first = quiz.question.card
    quiz.skip_button.click()
    assert quiz.question.card != first and not path.exists()


@pytest.mark.parametrize("form", ["mixed", *FORMS])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_card_shows_in_every_form(form, language, view):
    quiz = view(form=form, language=language)
    for _ in range(len(CARDS)):
        if quiz.question is None:
            break
        quiz.answer(right(quiz.question))
        assert quiz.given.passed, quiz.text
        for part in (quiz.prompt, quiz.solution, quiz.feedback, quiz.progress):
            parsed(part)
        quiz.next()
    assert quiz.question is None and is_shown(quiz.ahead_button) and not is_shown(quiz.skip_button)


def test_nothing_due_says_so_and_can_be_asked_ahead(view):
    quiz = view(topics="start_here", form="folded")
    while quiz.question:
        quiz.answer("again" if quiz.quiz.asked == 0 else "easy")
        quiz.next()
    assert "Nothing is due with these settings." in quiz.text and "Weakest: start_here." in quiz.text
    quiz.ahead_button.click()
    assert quiz.question.card.topic == "start_here"
    quiz.skip()
    assert not is_shown(quiz.ahead_button)


def test_dials_choose_and_language_turns_every_word(view):
    quiz = view()
    for topic in list_topics(CARDS):
        quiz.topic.value = topic
        assert quiz.question.card.topic == topic
    quiz.topic.value, quiz.level.value = "", "staff"
    assert quiz.question.card.level == "staff"
    card = quiz.question.card
    quiz.language.value = "zh"
    assert "已答 0" in quiz.text and quiz.show_button.description == "看答案" and quiz.question.card == card


def test_dials_that_match_nothing_get_a_sentence_and_come_back(view):
    few = [card for card in CARDS if card.choices is None or card.predict is None][:3] or CARDS[:3]
    plain = [card for card in few if card.predict is None]
    if not plain:
        pytest.skip("every card of these can be asked as a number")
    quiz = view(cards=plain, form="folded")
    quiz.form.value = "number"
    assert quiz.question is None and "No card matches" in quiz.text and 'role="alert"' in quiz.feedback.value
    quiz.reveal()
    quiz.skip()
    quiz.form.value = "folded"
    assert quiz.question is not None and quiz.problem == ""


@pytest.mark.parametrize(
    "options",
    [{"topics": "xyz"}, {"levels": "guru"}, {"form": "song"}, {"language": "fr"}, {"topics": ["ddp", "zero"]}],
)
def test_a_start_that_no_dial_has_is_refused(options, view):
    with pytest.raises(ValueError, match="the dial|language is"):
        view(**options)


def test_a_damaged_file_is_told_and_kept(view, path):
    path.write_text('{"time": "2026\n')
    quiz = view(form="folded")
    assert "could not be read" in quiz.text and 'role="alert"' in quiz.note.value
    quiz.answer("good")
    assert progress.read(path).entries[-1].key == quiz.given.card.id


def test_a_file_that_cannot_be_written_is_told(view, tmp_path):
    quiz = view(path=tmp_path, form="folded")
    assert quiz.answer("good").passed and "cannot be written" in quiz.text


def test_a_saved_notebook_keeps_nothing_of_the_learner_or_the_time(view, path):
    quiz = view()
    before = quiz._repr_mimebundle_()
    for _ in range(3):
        quiz.answer(right(quiz.question))
        quiz.next()
    for after in (quiz._repr_mimebundle_(), view(seed=9)._repr_mimebundle_()):
        assert after["text/plain"] == before["text/plain"] == repr(quiz) and after["text/html"] == before["text/html"]
    assert before["text/plain"].startswith("[widget] QuizView") and "<details" in before["text/html"]


def test_colours_come_from_the_page():
    style = (STATIC / "interview.css").read_text(encoding="utf-8").partition("/* The lines of a round")[0]
    rules = re.sub(r"var\(--jp-[\w-]+, (?:[^()]|\([^()]*\))*\)", "", style)
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb\(", rules)
