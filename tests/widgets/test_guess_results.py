"""What came of the guesses: beside the truth, by kind, and of a class."""

from __future__ import annotations

import json

import pytest

from helpers.draw import GuessMark, guesses_scene, votes_scene
from helpers.interview import Quiz
from helpers.interview.quiz import poorly_guessed
from helpers.learner import progress
from helpers.learner.guesses.calibration import by_kind, geometric_median
from helpers.learner.words import use_language
from helpers.widgets import my_calibration, my_guesses, reveal, votes
from tests.interview.quiz_cards import card
from tests.widgets.guess_chapter import ASKED, GIVEN, SCENE, ask, noted
from tests.widgets.guess_chapter import chapter as chapter

pytestmark = pytest.mark.usefixtures("chapter")


@pytest.fixture
def box(tmp_path, monkeypatch):
    monkeypatch.setenv("GUESS_BOX", str(tmp_path / "box"))
    return tmp_path / "box"


def drawn(scene) -> list[str]:
    return [label.text for label in scene.labels()]


# -- mine ------------------------------------------------------------------------------------------------------------
def test_guesses_stand_beside_the_truth_and_what_was_not_guessed_is_named():
    shown = my_guesses("77")
    assert shown.sentence == "You have guessed none of the 4."
    ask("77.bytes").answer("14")
    ask("77.shrink").answer("no")
    ask("77.step").answer(("10", "30"))
    assert shown.sentence.startswith("You guessed 3 of 4. 2 of the 2 numbers lay within a factor of two, 1 of the 1")
    texts = drawn(shown.scene)
    assert {"bytes per parameter", "✓ right", "choices and orders", "1/10", "10 ×"} <= set(texts)
    assert "77.walk" not in texts, "it was not asked yet"
    assert "14 B / 7 B" in shown.scene.summary and "10 – 30 ms / 20 ms" in shown.html.value
    walk = ask("77.walk")
    assert "not guessed" in drawn(shown.scene)
    walk.answer(GIVEN["77.walk"])
    assert "✗ not right" in shown.html.value  # it draws itself anew


def test_the_axis_reaches_as_far_as_the_guesses_and_ends_at_a_thousand():
    words = ("low", "truth", "high")
    for ratio, end in ((2.0, "10 ×"), (40.0, "100 ×"), (1 / 40, "1/100"), (1e9, "1000 ×")):
        scene = guesses_scene([GuessMark(text="?", ratios=(ratio,))], title="t", words=words, summary="s")
        assert end in drawn(scene)
        assert all(0 <= item.x <= scene.width for item in scene.items if hasattr(item, "x"))


def test_a_long_question_is_broken_and_stands_whole_and_a_choice_has_no_place_on_the_axis():
    text = "What each rank sends in a step of stage 1, compared with plain data parallelism"
    words = ("low", "truth", "high", "choices")
    marks = [GuessMark(text=text, is_number=one) for one in (True, False)]
    number, choice = (guesses_scene([mark], title="t", words=words, summary="s") for mark in marks)
    assert text in " ".join(drawn(number)) and text not in drawn(number)
    assert text in drawn(choice) and "truth" not in drawn(choice) and "choices" not in drawn(number)


def test_the_saved_picture_holds_nobodys_guesses():
    for key in ASKED:
        ask(key)
    before = my_guesses("77")._repr_mimebundle_()[0]
    for key, given in GIVEN.items():
        ask(key).answer(given)
    after = my_guesses("77")._repr_mimebundle_()[0]
    assert before["image/png"] == after["image/png"] and before["text/plain"] == after["text/plain"]
    assert after["text/plain"] == "[guesses] chapter 77: my guesses and the truth"


def test_a_chapter_without_guesses_says_so():
    assert my_guesses("78").text == "Chapter 78 asks for no guesses."
    assert "image/png" not in my_guesses("78")._repr_mimebundle_()


def test_my_guesses_in_chinese():
    ask("77.bytes").answer("14")
    with use_language("zh"):
        shown = my_guesses("77")
        assert "每个参数多少字节" in "".join(drawn(shown.scene)) and "你猜了 1 题" in shown.sentence


# -- by kind ---------------------------------------------------------------------------------------------------------
def test_the_median_is_geometric():
    assert geometric_median([1 / 4, 4]) == pytest.approx(1) and geometric_median([2, 2, 100]) == pytest.approx(2)
    with pytest.raises(ValueError, match="at least one"):
        geometric_median([])


def test_calibration_by_kind():
    assert my_calibration().sentence.startswith("There is no guess with a declared answer yet")
    ask("77.bytes").answer("14")
    ask("77.shrink").answer("yes")
    ask("77.step").answer(("2", "8"))
    found = by_kind()
    memory = found["memory"]
    assert memory.times == pytest.approx(2) and (memory.num_chosen, memory.num_right) == (1, 0)
    said = my_calibration().sentence
    assert said.startswith("memory: typically 2 times too high (1 guess) · memory: 0 of 1 choices and orders right")
    assert "time: typically 5 times too low (1 guess)" in said and "asks cards first where you were far off" in said
    assert "memory" in drawn(my_calibration().scene)


def test_what_was_answered_after_the_result_or_with_no_idea_does_not_count():
    reveal("77.bytes").look()
    ask("77.bytes").answer("7")
    ask("77.shrink").no_idea()
    assert len(noted()) == 2 and by_kind() == {}


def test_a_saved_calibration_is_the_same_for_everyone():
    before = my_calibration()._repr_mimebundle_()[0]
    ask("77.bytes").answer("14")
    after = my_calibration()._repr_mimebundle_()[0]
    assert all(before[name] == after[name] for name in ("image/png", "text/plain"))


def test_the_quiz_begins_where_guesses_were_far_off(tmp_path):
    cards = [card("near", "03_ddp"), card("far", "77_made_up"), card("traffic", "03_ddp")]
    ask("77.bytes").answer("7")
    assert Quiz(cards, seed=0, path=progress.default_path()).question.card.id == "near"
    ask("77.step").answer(("200", "400"))
    ask("77.walk").answer(GIVEN["77.walk"])
    is_far = poorly_guessed()
    assert [is_far(one) for one in cards] == [False, True, False]
    assert Quiz(cards, seed=0, path=progress.default_path()).question.card.id == "far"


def test_cards_of_a_kind_that_is_guessed_badly_come_first():
    from dataclasses import replace

    from helpers.interview.cards import Check

    ask("77.step").answer(("200", "400"))
    timed = replace(card("timed", "03_ddp"), verify=(Check(call="helpers.predict.time.flops", value=1, says="1 s"),))
    assert poorly_guessed()(timed) and not poorly_guessed()(card("other", "03_ddp"))


# -- a class ---------------------------------------------------------------------------------------------------------
def test_answers_land_in_the_box_without_names(box):
    ask("77.bytes").answer("6")
    ask("77.bytes").answer("9")  # the first one stays
    ask("77.shrink").no_idea()
    files = sorted(box.iterdir())
    held = [json.loads(path.read_text()) for path in files]
    assert sorted((one["key"], one["value"]) for one in held) == [("77.bytes", 6.0), ("77.shrink", None)]
    assert all(one.keys() == {"key", "form", "unit", "value"} for one in held)
    assert all(path.suffix == ".json" and path.stat().st_mtime % 86_400 == 0 for path in files)


def test_what_was_answered_after_the_result_is_no_vote(box):
    reveal("77.bytes").look()
    ask("77.bytes").answer("7")
    assert not box.exists()


def fill(box, key: str, values, form: str = "number") -> None:
    box.mkdir(exist_ok=True)
    for number, value in enumerate(values):
        entry = {"key": key, "form": form, "unit": "B", "value": value}
        (box / f"{number}-{key}.json").write_text(json.dumps(entry))


def test_votes_show_only_the_number_of_answers_before_the_reveal(box):
    asked, result = ask("77.bytes"), reveal("77.bytes", SCENE)
    fill(box, "77.bytes", [7, 7, 4, None])
    shown = votes("77.bytes")
    assert shown.sentence == "4 answers so far. The histogram is folded until the result has been revealed."
    assert shown.scene is None and "svg" not in shown.html.value
    assert "7 B: 2" in votes("77.bytes", show=True).text and "the answer" not in votes("77.bytes", show=True).html.value
    shown.show_button.click()
    assert drawn(shown.scene)[1:] == ["4 B", "1", "7 B", "2", "no idea", "1"]
    result.look()
    assert "2  ← the answer" in drawn(shown.scene) and repr(shown) == "[votes] 77.bytes: how the class guessed"
    assert asked.is_open


def test_votes_on_choices_and_on_many_numbers(box):
    ask("77.shrink")
    fill(box, "77.shrink", ["yes", "no", "yes"], "choice")
    assert drawn(votes("77.shrink", show=True).scene)[1:] == ["yes", "2", "no", "1"]
    fill(box, "77.bytes", [1, 2, 3, 4, 5, 6, 7, 8, 9, 200])
    counts = [int(text) for text in drawn(votes("77.bytes", show=True).scene)[2::2]]
    assert sum(counts) == 10 and len(counts) <= 8


def test_damaged_and_strange_files_are_passed_over(box):
    fill(box, "77.bytes", [7])
    (box / "torn.json").write_text('{"key": ')
    (box / "list.json").write_text("[]")
    (box / "other.json").write_text('{"key": "77.bytes", "form": "x", "value": 1}')
    (box / "half.part").write_text('{"key": "77.bytes"')
    (box / "long.json").write_text("9" * 20_000)
    assert votes("77.bytes").answers == [7]


def test_without_a_box_votes_say_what_to_set():
    assert "set GUESS_BOX" in votes("77.bytes", show=True).text


def test_a_box_that_cannot_be_written_gets_a_sentence_once_and_nothing_is_lost(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GUESS_BOX", str(tmp_path / "file"))
    asked = ask("77.bytes")
    asked.answer("6")
    assert "(GUESS_BOX) cannot be written" in asked.text and asked.value == 6.0 and len(noted()) == 1
    second = ask("77.shrink")
    second.answer("yes")
    assert "box" not in second.text and len(noted()) == 2


def test_a_votes_scene_needs_an_answer():
    with pytest.raises(ValueError, match="got no row to draw"):
        votes_scene([], title="t")
