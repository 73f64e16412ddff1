"""The worked interview without a front end: its steps, its buttons, and what a saved notebook keeps of it."""

import xml.etree.ElementTree as ElementTree

import pytest

from helpers.interview.dialogues import dialogue, dialogue_names
from helpers.learner.words import LANGUAGES
from helpers.widgets import DialogueView


def is_shown(widget) -> bool:
    return widget.layout.display != "none"


def buttons(view) -> set[str]:
    every = (view.next_button, view.all_button, view.again_button)
    return {each.description for each in every if is_shown(each)}


def test_the_learner_answers_before_the_candidate_and_reads_on():
    view, turns = DialogueView("pretrain-70b", language="en"), dialogue("pretrain-70b").turns
    assert turns[0].text.en in view.text and turns[1].text.en not in view.text
    assert view.asks and is_shown(view.own) and buttons(view) == {"Next", "Show all"}
    view.own.value = "I would ask <who> pays"
    view.next_button.click()
    assert turns[1].text.en in view.text and view.own.value == "" and not view.asks and not is_shown(view.own)
    assert "I would ask &lt;who&gt; pays" in view.transcript.value and buttons(view) == {
        "Next",
        "Show all",
        "From the start",
    }
    view.next_button.click()
    assert view.asks and turns[2].text.en in view.text and turns[3].text.en not in view.text
    assert not view.scorecard.outputs


@pytest.mark.parametrize("name", dialogue_names())
def test_every_step_comes_in_its_order_and_the_scorecard_last(name):
    view, one = DialogueView(name, language="en"), dialogue(name)
    for number, turn in enumerate(one.turns, start=1):
        assert view.shown == number and view.text.count(turn.text.en) == 1 and one.why.en not in view.text
        view.next()
    assert one.why.en in view.text and one.why.en in view.scorecard.outputs[0]["data"]["text/html"]
    assert buttons(view) == {"From the start"} and not view.asks
    before = view.text
    view.next()
    assert view.text == before


def test_all_is_shown_at_once_and_it_can_begin_again():
    view = DialogueView("rl-30b", language="en")
    view.own.value = "two pools"
    view.all_button.click()
    assert view.shown == len(view.steps) and "two pools" in view.transcript.value
    view.again_button.click()
    assert view.shown == 1 and "two pools" not in view.transcript.value and buttons(view) == {"Next", "Show all"}
    view.next()
    assert "two pools" not in view.transcript.value


def test_the_dial_changes_the_language_and_not_the_step():
    view = DialogueView("rl-30b", language="en")
    view.next()
    view.language.value = "zh"
    assert view.shown == 2 and dialogue("rl-30b").turns[1].text.zh in view.text
    assert buttons(view) == {"下一步", "显示全部", "从头开始"}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", dialogue_names())
def test_html_is_whole_at_each_step(name, language):
    view = DialogueView(name, language=language)
    for _ in view.steps:
        for part in (view.heading, view.transcript, view.invitation):
            ElementTree.fromstring(f"<div>{part.value}</div>")
        view.next()
    ElementTree.fromstring(view.scorecard.outputs[0]["data"]["text/html"].join(("<div>", "</div>")))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_saved_notebook_keeps_the_whole_dialogue_and_nothing_that_was_written(language):
    view, one = DialogueView("mfu-fell-8", language=language), dialogue("mfu-fell-8")
    before = view._repr_mimebundle_()
    shown = "".join(ElementTree.fromstring(before["text/html"]).itertext())
    assert all(turn.text.in_(language) in shown for turn in one.turns) and one.why.in_(language) in shown
    assert before["text/plain"].startswith("[widget] DialogueView: a worked interview, Yesterday MFU fell by 8 %")
    view.own.value = "a secret"
    view.show_all()
    after = view._repr_mimebundle_()
    assert (after["text/plain"], after["text/html"]) == (before["text/plain"], before["text/html"])


def test_the_page_is_written_in_the_language_of_the_dial(tmp_path):
    view = DialogueView("experts-1024", language="zh")
    page = view.page(tmp_path / "x.html").read_text(encoding="utf-8")
    assert all(turn.text.zh in page for turn in dialogue("experts-1024").turns if "`" not in turn.text.zh)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match="the dialogues are pretrain-70b, experts-1024, rl-30b and mfu-fell-8"):
        DialogueView("pretrain", language="en")
