"""A guess is asked once and kept, and its result is folded until then; without a front end."""

from __future__ import annotations

import re

import pytest

from helpers.learner.words import use_language
from helpers.widgets import ZeroExplorer, guess, reveal
from tests.widgets.guess_chapter import ASKED, GIVEN, SCENE, ask, noted
from tests.widgets.guess_chapter import chapter as chapter

pytestmark = pytest.mark.usefixtures("chapter")


def data(bundle):
    """Of a mimebundle with or without metadata."""
    return bundle[0] if isinstance(bundle, tuple) else bundle


def test_the_first_answer_goes_to_the_progress_file_and_stays():
    asked = ask("77.bytes")
    assert asked.value is None and asked.is_open and asked.controls.layout.display == ""
    asked.answer("6")
    asked.answer("8 B")
    (entry,) = noted()
    told = {"value": 6.0, "form": "number", "of": "memory", "unit": "B", "text": ASKED["77.bytes"]["text"]}
    assert (entry.key, entry.more) == ("77.bytes", told)
    assert asked.value == 6.0 and asked.controls.layout.display == "none"
    assert "Your guess: 6 B." in asked.text and "Now you say 8 B. The first answer stays." in asked.feedback.value


def test_a_reopened_notebook_shows_the_kept_answer_and_does_not_ask():
    ask("77.shrink").answer("yes")
    again = ask("77.shrink")
    assert not again.is_open and "Your guess: yes." in again.text and again.value == "yes"


def test_what_cannot_be_read_gets_a_sentence_and_is_not_kept():
    for key, bad in (("77.bytes", "64,2"), ("77.shrink", None), ("77.walk", ["free"]), ("77.step", ("9", "x"))):
        asked = ask(key)
        asked.answer(bad)
        assert asked.is_open and 'role="alert"' in asked.feedback.value and asked.problem in asked.text, key
    assert not noted()


def test_no_idea_is_an_answer():
    asked, shown = ask("77.bytes"), reveal("77.bytes", predicted=7.0)
    asked.controls.none_button.click()
    assert not asked.is_open and shown.is_open and "your guess no idea · predicted 7 B" in shown.text
    assert not ask("77.bytes").is_open and not noted()[0].passed


def test_a_question_alone_works_and_has_a_key_of_its_own():
    asked = guess("bytes per rank", unit="B")
    assert repr(asked) == "[guess] bytes-per-rank: bytes per rank"
    asked.answer("64 MB")
    assert asked.value == 64e6 and "bytes-per-rank" in noted()[0].key
    assert guess("每个 rank 多少字节").question.key != guess("每个 rank 多少消息").question.key


def test_a_table_in_a_text_keeps_its_columns():
    table = "         sent\nDDP      1.5 P\nZeRO-3  2.25 P"
    asked, shown = ask("77.bytes"), reveal("77.bytes", f"Two **engines**.\n\n{table}")
    asked.no_idea()
    assert "<b>engines</b>" in shown.body.children[0].value
    assert "\nDDP      1.5 P\nZeRO-3  2.25 P</pre>" in shown.body.children[0].value


@pytest.mark.parametrize("key", ASKED)
def test_each_form_is_answered_and_its_result_opens_by_itself(key):
    asked, shown = ask(key), reveal(key, SCENE, "**Four** and three.")
    assert "Your guess first." in shown.notice.value and not shown.body.children and shown.result.value == ""
    asked.answer(GIVEN[key])
    assert shown.is_open and len(shown.body.children) == 2 and "<svg" in shown.body.children[0].value
    assert "your guess" in shown.result.value and "<b>Four</b>" in shown.body.children[1].value
    assert "white-space:pre-line" in shown.body.children[1].value, "the lines of an output would become one line"
    assert len(noted()) == 1


def test_one_click_opens_a_result_and_the_row_says_that_nobody_guessed():
    asked, shown = ask("77.bytes"), reveal("77.bytes", SCENE, predicted=7.0, measured=7)
    shown.open_button.click()
    assert "not guessed · predicted 7 B · measured 7 B" in shown.text and not noted()
    asked.answer("7")
    assert "You had seen the result" in shown.text and noted()[0].more["late"]


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("77.bytes", "14", "Your guess is 2 times too large."),
        ("77.bytes", "6", "Your guess is 14.3 % too low."),
        ("77.bytes", "7.0", "Right."),
        ("77.shrink", "yes", "Not this one."),
        ("77.shrink", "no", "Right."),
        ("77.walk", "1 2 3", None),
        ("77.walk", ["gather", "compute", "free"], "Right."),
        ("77.walk", ["free", "compute", "gather"], "The right order is different."),
        ("77.step", "10 to 30", "Your range contains the answer."),
        ("77.step", ("1", "4"), "Your range lies below the answer; its middle is 10 times too small."),
    ],
)
def test_the_row_says_how_far_off(key, given, said):
    asked, shown = ask(key), reveal(key)
    asked.answer(given)
    assert said in shown.text.splitlines() if said else asked.value is not None


TRUE = {"77.bytes": 7, "77.shrink": "no", "77.walk": ["gather", "compute", "free"], "77.step": 20}


@pytest.mark.parametrize("key", ASKED)
def test_what_nbval_compares_never_depends_on_an_answer(key, monkeypatch):
    def kept() -> list:
        made = [ask(key), reveal(key, SCENE, "Why?", measured=TRUE[key])]
        bundles = [data(one._repr_mimebundle_()) for one in made]
        return [{name: value for name, value in one.items() if "widget-view" not in name} for one in bundles]

    before = kept()
    assert before[0].keys() == {"text/plain"} and before[1].keys() == {"text/plain", "image/png"}
    monkeypatch.setenv("RANKS_UNATTENDED", "1")
    assert kept() == before
    monkeypatch.delenv("RANKS_UNATTENDED")
    monkeypatch.setenv("GUESS", "off")
    assert kept() == before
    monkeypatch.delenv("GUESS")
    ask(key).answer(GIVEN[key])
    assert kept() == before


def test_the_stable_texts():
    assert repr(ask("77.bytes")) == "[guess] 77.bytes: bytes per parameter"
    assert repr(reveal("77.bytes", predicted=7.0, measured=7)) == "[reveal] 77.bytes · predicted 7 B · measured 7 B"
    ask("77.shrink")
    assert repr(reveal("77.bytes", measured=7)) == "[reveal] 77.bytes · measured 7 B"
    assert repr(reveal("77.shrink")) == "[reveal] 77.shrink · answer no · not measured"


LABELLED = {"emulated": "emulated", "by_rules": "by NCCL's documented rules", "published": "published"}


@pytest.mark.parametrize(("label", "said"), LABELLED.items())
def test_what_was_found_has_the_label_of_where_it_comes_from(label, said):
    ask("77.bytes")
    shown = reveal("77.bytes", predicted=7.0, **{label: 7.2})
    assert repr(shown) == f"[reveal] 77.bytes · predicted 7 B · {said} 7.2 B" and "measured" not in shown.text
    both = reveal("77.bytes", **{label: 7}, measured=7.1)
    assert repr(both) == f"[reveal] 77.bytes · {said} 7 B · measured 7.1 B"


def test_a_row_without_a_measurement_says_so_in_both_languages():
    asked, predicted = ask("77.bytes"), reveal("77.bytes", predicted=7.0)
    declared = reveal("77.bytes")
    asked.answer("14")
    assert "predicted 7 B · not measured" in predicted.text and "answer 7 B · not measured" in declared.text
    assert "2 times too large" in declared.text and "<span>not measured</span></div>" in declared.result.value
    with use_language("zh"):
        assert "答案 7 B · 未实测" in declared.text and "模拟 7 B" in reveal("77.bytes", emulated=7).text
        assert "按 NCCL 文档的规则 7 B" in reveal("77.bytes", by_rules=7).text


def test_unattended_takes_the_default_opens_everything_and_notes_nothing(monkeypatch):
    monkeypatch.setenv("RANKS_UNATTENDED", "1")
    asked, shown = ask("77.bytes", default=4.0), reveal("77.bytes", SCENE, predicted=7.0)
    assert asked.value == 4.0 and not asked.is_open and shown.is_open and shown.body.children and not noted()


def test_guess_off_opens_everything(monkeypatch):
    monkeypatch.setenv("GUESS", "off")
    asked, shown = ask("77.bytes"), reveal("77.bytes", predicted=7.0)
    assert not asked.is_open and "switched off" in asked.text and shown.text == "predicted 7 B · not measured"


def test_a_prediction_that_is_not_the_declared_one(monkeypatch):
    ask("77.bytes")
    assert "now predicts 8 B, and the question was about 7 B" in "".join(reveal("77.bytes", predicted=8)._sentences)
    assert not reveal("77.bytes", predicted=7 * (1 + 1e-7)).changed and reveal("77.bytes", predicted=7.0001).changed
    monkeypatch.setenv("RANKS_UNATTENDED", "1")
    with pytest.raises(ValueError, match=r"77.bytes: predicted is 8, and declared is 7.0"):
        reveal("77.bytes", predicted=8)
    with pytest.raises(ValueError, match=r"77.bytes: measured is 8, and declared is 7.0"):
        reveal("77.bytes", measured=8)
    with pytest.raises(ValueError, match=r"77.bytes: emulated is 8, and declared is 7.0"):
        reveal("77.bytes", measured=7, emulated=8)
    guess("how fast?", key="77.shrink", choices=["yes", "no"], kind="time")
    assert "measured yes" in reveal("77.shrink", measured="yes").text  # on another machine
    with pytest.raises(ValueError, match="77.shrink: emulated is 'yes', and declared is 'no'"):
        reveal("77.shrink", emulated="yes")
    assert repr(reveal("77.bytes", measured=7.1)) == "[reveal] 77.bytes · measured 7.1 B"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "size"}, "the kind is 'size'; expected one of memory, traffic, time, count"),
        ({"choices": ["a"]}, "give two or more"),
        ({"choices": ["a", "b"], "key": "77.shrink"}, "declared answer 'no' is none"),
        ({"order": ["free", "gather", "send"], "key": "77.walk"}, "answer ('gather', 'compute', 'free') is none"),
    ],
)
def test_what_an_author_did_wrong_is_a_sentence_for_learners_and_an_error_for_us(monkeypatch, wrong, says):
    assert says in guess("what?", **wrong).text
    monkeypatch.setenv("RANKS_UNATTENDED", "1")
    with pytest.raises(ValueError, match=re.escape(says)):
        guess("what?", **wrong)


def test_a_file_that_cannot_be_written_gets_a_sentence_and_nothing_is_lost(tmp_path):
    asked, shown = ask("77.bytes", path=tmp_path), reveal("77.bytes", predicted=7.0, path=tmp_path)  # a folder
    asked.answer("6")
    assert "could not be noted" in asked.text and asked.value == 6.0 and "your guess 6 B" in shown.text


def test_explorers_figures_and_other_things_are_shown():
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.set_title("seconds")
    explorer = ZeroExplorer()
    shown = reveal("77.bytes", explorer, figure, {"a": 1})
    shown.look()
    view, image, text = shown.body.children
    assert view is explorer.widget and 'alt="seconds"' in image.value and "{&#x27;a&#x27;: 1}" in text.value
    assert not pyplot.get_fignums() and shown._repr_mimebundle_()[0]["image/png"].startswith("iVBOR")


def test_both_languages():
    with use_language("zh"):
        asked, shown = ask("77.shrink"), reveal("77.shrink")
        assert "会变小吗" in asked.text and asked.controls.radio.options == (("会", "yes"), ("不会", "no"))
        asked.answer("yes")
        assert "你的猜测" in shown.text and "会" in shown.text and "不是这一项" in shown.text
        assert repr(asked) == "[guess] 77.shrink: do they shrink?" and repr(shown).endswith("answer no · not measured")


def test_an_order_is_pressed_and_shown_shuffled_alike_each_time():
    asked = ask("77.walk")
    texts = [item.description for item in asked.controls.items]
    assert texts != list(ASKED["77.walk"]["order"])
    assert texts == [item.description for item in ask("77.walk").controls.items]
    for text in ("free", "gather", "compute"):
        asked.controls.items[texts.index(text)].click()
    assert [item.description for item in asked.controls.items if item.disabled][0][1:4] == " · "
    asked.controls.again_button.click()
    asked.controls.send_button.click()
    assert "Press each of the 3 items once" in asked.text and not noted()
    for text in ("free", "gather", "compute"):
        asked.controls.items[texts.index(text)].click()
    asked.controls.send_button.click()
    assert asked.value == ["free", "gather", "compute"]
