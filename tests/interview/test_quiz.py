"""Which cards are asked, and in which order and form.

One sitting: what is asked, what an answer does, and a progress file that is damaged, gone or cannot be written.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from helpers.interview import Quiz
from helpers.interview.quiz import choose_form, forms_of, list_topics, order_cards, select_cards
from helpers.interview.reviews import Review, Reviews
from helpers.learner import progress
from tests.interview.quiz_cards import CARDS, START, Clock, card, line, lines


def ids(cards):
    return [one.id for one in cards]


def reviewed(*answers):
    reviews = Reviews(now=START)
    for card_id, rating, days_ago, form in answers:
        reviews.add(Review(card_id=card_id, when=START - timedelta(days=days_ago), rating=rating, form=form))
    return reviews


def test_topics_stand_along_the_interview_path():
    assert list_topics(CARDS) == ("start_here", "ddp", "amp", "communication")
    chapters = ["02_data_parallel", "06_pipeline", "08_zero", "01_collectives", "communication", "09_new"]
    assert list_topics(card(str(i), chapter) for i, chapter in enumerate(chapters)) == (
        "collectives", "zero", "pipeline", "data_parallel", "new", "communication",
    )  # fmt: skip


def test_new_cards_come_from_junior_to_staff_along_the_path():
    assert ids(order_cards(CARDS, Reviews(), START)) == ["start", "easy", "amp-easy", "senior", "beyond"]


def test_the_archive_comes_last_of_what_is_new_and_like_others_once_it_is_due():
    cards = [replace(one, archive=one.id == "start") for one in CARDS]
    assert ids(order_cards(cards, Reviews(), START)) == ["easy", "amp-easy", "senior", "beyond", "start"]
    assert ids(order_cards(cards, reviewed(("start", "again", 1, "")), START))[0] == "start"


def test_due_cards_come_first_and_the_most_overdue_before_the_others():
    reviews = reviewed(("senior", "again", 1, ""), ("amp-easy", "again", 5, ""), ("easy", "easy", 0, ""))
    assert ids(order_cards(CARDS, reviews, START)) == ["amp-easy", "senior", "start", "beyond"]
    assert ids(order_cards(CARDS, reviews, START, ahead=True))[-1] == "easy"


def test_a_card_that_is_gone_is_ignored():
    assert ids(order_cards(CARDS[:1], reviewed(("gone", "again", 3, "")), START)) == ["senior"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["senior", "amp-easy", "easy", "start", "beyond"]),
        ({"topics": ("ddp",)}, ["senior", "easy"]),
        ({"topics": "03_ddp"}, ["senior", "easy"]),
        ({"topics": "DDP 数据并行", "language": "zh"}, ["senior", "easy"]),
        ({"topics": ["amp", "ddp"], "levels": "junior"}, ["amp-easy", "easy"]),
        ({"form": "choice"}, ["senior", "easy"]),
        ({"form": "number"}, ["easy", "start"]),
    ],
)
def test_select(filters, expected):
    assert ids(select_cards(CARDS, **filters)) == expected


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ({"topics": ("dpd",)}, "There is no topic 'dpd': the topics are start_here, ddp, amp, communication."),
        ({"topics": ("dpd",), "language": "zh"}, "没有主题 'dpd'：现有主题为 start_here, ddp"),
        ({"levels": ("guru",)}, "There is no level 'guru': the levels are junior, senior, staff."),
        ({"form": "quiz"}, "There is no form 'quiz': the forms are mixed, choice, number, folded."),
        ({"topics": ("amp",), "form": "number"}, "No card matches amp, number: .* start_here 1, ddp 1."),
        ({"language": "fr"}, "language is 'fr': there are \"en\""),
    ],
)
def test_what_is_not_there_is_told_with_what_there_is(filters, sentence):
    with pytest.raises(ValueError, match=sentence):
        select_cards(CARDS, **filters)


def test_a_card_seen_before_comes_in_another_form():
    easy, chance = CARDS[2], random.Random(0)
    assert forms_of(easy) == ("choice", "number", "folded")
    for last, then in (("choice", "number"), ("number", "folded"), ("folded", "choice")):
        assert choose_form(easy, "mixed", reviewed(("easy", "good", 1, last)), chance) == then
    assert choose_form(easy, "folded", reviewed(("easy", "good", 1, "folded")), chance) == "folded"
    assert {choose_form(easy, "mixed", Reviews(), chance) for _ in range(60)} == {"choice", "number", "folded"}
    assert choose_form(CARDS[1], "mixed", reviewed(("amp-easy", "good", 1, "folded")), chance) == "folded"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "home" / "progress.jsonl"


def quiz(path, clock=None, cards=CARDS, **options):
    return Quiz(cards, path=path, now=clock or Clock(), seed=1, **options)


def right(question):
    return {"number": "64.2 MB" if question.unit else "1024", "folded": "good"}.get(question.form) or next(
        letter for letter, option in zip("abcd", question.options, strict=True) if "right" in option
    )


def test_a_sitting_from_the_first_card_to_the_last(path):
    clock = Clock()
    sitting = quiz(path, clock)
    asked = []
    while sitting.question:
        asked.append(sitting.question.card.id)
        assert sitting.question.is_new and sitting.remaining == 5 - sitting.asked
        clock.forward(seconds=7)
        answer = sitting.answer(right(sitting.question))
        assert answer.passed and answer.rating == "good" and answer.due == clock.now + timedelta(minutes=10)
        assert answer.sentence.endswith("It comes back in 10 min.")
    assert asked == ["start", "easy", "amp-easy", "senior", "beyond"]
    assert (sitting.asked, sitting.right, sitting.remaining, sitting.note) == (5, 5, 0, "")
    written = lines(path)
    assert [one["key"] for one in written] == asked
    assert {"kind": "quiz", "passed": True, "rating": "good", "seconds": 7.0, "language": "en"}.items() <= written[
        0
    ].items()
    assert written[0]["form"] in ("number", "folded")
    with pytest.raises(ValueError, match="the sitting is over"):
        sitting.answer("good")


def test_the_next_sitting_asks_what_is_due(path):
    clock = Clock()
    first = quiz(path, clock, topics="ddp", form="folded")
    first.answer("easy")  # days
    first.answer("again")  # a minute
    assert first.question is None
    clock.forward(minutes=5)
    second = quiz(path, clock, form="folded")
    assert [second.question.card.id, second.question.is_new] == ["senior", False]
    clock.forward(days=30)
    assert quiz(path, clock, topics="ddp").remaining == 2


def test_nothing_due_is_no_question_and_ahead_asks_all_the_same(path):
    for _ in range(2):
        sitting = quiz(path, form="folded", topics="amp")
        if sitting.question:
            sitting.answer("easy")
    assert sitting.question is None and sitting.remaining == 0
    assert quiz(path, form="folded", topics="amp", ahead=True).question.card.id == "amp-easy"


def test_only_due_leaves_out_what_is_new(path):
    clock = Clock()
    assert "No card is due now" in next(quiz(path, clock, only_due=True).steps()).text
    quiz(path, clock, topics="ddp", form="folded").answer("again")
    clock.forward(minutes=5)
    assert quiz(path, clock, only_due=True).remaining == 1 < quiz(path, clock).remaining


def test_what_was_not_known_comes_back_once_after_three_others(path):
    sitting = quiz(path, form="folded", cards=[card(name) for name in "abcde"])
    asked = []
    while sitting.question:
        asked.append(sitting.question.card.id)
        sitting.answer("again" if asked[-1] in "ae" else "good")
    assert asked == ["a", "b", "c", "d", "a", "e"]
    assert sitting.right == 3
    hopeless = quiz(path.with_name("other.jsonl"), form="folded", cards=[card(name) for name in "abcdefgh"])
    while hopeless.question:
        hopeless.answer("again")
        assert hopeless.asked <= 16
    assert max(Counter(answer.card.id for answer in hopeless.answers).values()) == 2


def test_count_limits_the_questions_and_skipped_cards_do_not_count(path):
    sitting = quiz(path, count=2, form="folded")
    assert sitting.remaining == 2
    sitting.skip()
    assert (sitting.question.card.id, sitting.asked, sitting.remaining) == ("easy", 0, 2)
    sitting.answer("again")
    sitting.answer("again")
    assert sitting.question is None and sitting.asked == 2
    assert [one["key"] for one in lines(path)] == ["easy", "amp-easy"]


def test_an_answer_that_cannot_be_read_leaves_the_question(path):
    sitting = quiz(path, form="number")
    before = sitting.question
    with pytest.raises(ValueError, match="cannot be read as a number"):
        sitting.answer("a lot")
    assert sitting.question is before and sitting.asked == 0 and not path.exists()


def test_options_are_shuffled_by_the_seed(path):
    def options(seed):
        return Quiz(CARDS, path=path, now=Clock(), seed=seed, form="choice").question.options

    assert options(1) == options(1)
    assert len({options(seed) for seed in range(20)}) > 5
    assert sorted(options(1)) == sorted(options(2)) and len(options(1)) == 4


def test_chinese_is_chinese_throughout(path):
    sitting = quiz(path, language="zh", form="choice")
    assert sitting.question.text == "question easy 呢？"
    answer = sitting.answer("abcd"[sitting.question.options.index("wrong x easy 呢？")])
    assert answer.sentence.startswith("不对。正确答案是 ") and answer.sentence.endswith("right easy 呢？1 分钟后再问。")


def test_the_summary_knows_the_weakest_topic_and_what_is_due_within_a_day(path):
    path.parent.mkdir()
    path.write_text(line("senior", "again", START - timedelta(days=1)) + line("gone", "again"))
    sitting = quiz(path, form="folded", topics=["amp", "start_here", "ddp"], levels="junior")
    assert sitting.summary().weakest == ""
    for rating in ("good", "easy", "again"):
        sitting.answer(rating)
    summary = sitting.summary()
    assert (summary.asked, summary.right, summary.hard, summary.weakest) == (3, 2, 0, "amp")
    assert summary.due_tomorrow == 2  # start and amp-easy; easy comes back in days, and senior was not chosen
    assert quiz(path).summary().due_tomorrow == 3


def test_a_hard_answer_is_right_and_told(path):
    sitting = quiz(path, form="folded")
    sitting.answer("hard")
    assert (sitting.summary().right, sitting.summary().hard) == (1, 1)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "3"])
def test_a_count_that_is_none(path, count):
    with pytest.raises(ValueError, match="count is .*: give how many cards to ask"):
        quiz(path, count=count)


def test_a_damaged_file_is_kept_aside_and_the_quiz_goes_on(path):
    path.parent.mkdir()
    good = line("senior", "again", START - timedelta(days=1)) + line("gone", "again", "0001-01-01T00:00:00+09:00")
    path.write_bytes(b"\x00\xff\xfe{{{\n" + good.encode() + b'{"time": "2026-01-01T00:0')
    sitting = quiz(path, form="folded")
    aside = path.with_name("progress.jsonl.unreadable-1")
    assert f"copied to {aside}" in sitting.note
    assert aside.read_bytes() == b'\x00\xff\xfe{{{\n{"time": "2026-01-01T00:0\n'
    assert sitting.question.card.id == "senior"
    sitting.answer("good")
    assert [entry.key for entry in progress.read(path).entries] == ["senior", "gone", "senior"]
    assert quiz(path).note == ""  # told once


def test_a_file_that_cannot_be_read_is_told(path):
    path.mkdir(parents=True)
    sitting = quiz(path, form="folded", language="zh")
    assert sitting.note.startswith(f"进度文件 {path} 无法读取（")
    sitting.answer("good")
    assert "答题记录无法写入" in sitting.note and sitting.asked == 1


def test_what_cannot_be_written_stays_in_memory_and_is_written_later(path):
    path.parent.write_text("a file where the folder should be")
    clock = Clock()
    sitting = quiz(path, clock, form="folded")
    sitting.answer("again")
    assert sitting.note.startswith("Your progress file") and "cannot be written to" in sitting.note
    assert sitting.reviews.due("start") == START + timedelta(minutes=1)
    path.parent.unlink()
    clock.forward(minutes=1)
    sitting.answer("good")
    assert "cannot be written" not in sitting.note
    assert [(one["key"], one["time"]) for one in lines(path)] == [
        ("start", "2026-03-01T20:00:00+00:00"),
        ("easy", "2026-03-01T20:01:00+00:00"),
    ]


def test_without_a_home_the_quiz_goes_on(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(progress, "default_path", no_home)
    sitting = quiz(None, form="folded")
    assert "your home cannot be read (Could not determine home directory.)" in sitting.note
    assert sitting.answer("good").passed


def test_the_whole_bank_can_be_asked_in_every_form_in_both_languages(path):
    for language in ("en", "zh"):
        sitting = Quiz(language=language, path=path, now=Clock(), seed=3)
        seen = set()
        while sitting.question and len(seen) < 400:
            seen.add(sitting.question.card.id)
            assert sitting.question.text and (sitting.question.form == "choice") == bool(sitting.question.options)
            sitting.skip()
        assert len(seen) >= 120
    assert not path.exists()


def test_every_number_of_the_bank_is_right_when_its_own_text_is_the_answer(path):
    sitting = Quiz(path=path, now=Clock(), form="number")
    while sitting.question:
        says = sitting.question.card.predict.says
        assert sitting.answer(says).passed, says


def test_ten_thousand_lines_are_replayed_without_making_anybody_wait(path):
    """Far from a measurement: it would take a hundred times as long to fail."""
    path.parent.mkdir()
    ratings = ("again", "hard", "good", "easy")
    text = (line(f"c{n % 200}", ratings[n % 4], START - timedelta(hours=10_000 - n)) for n in range(10_000))
    path.write_text("".join(text))
    before = time.monotonic()
    sitting = quiz(path, cards=[card(f"c{n}") for n in range(200)], form="folded")
    sitting.answer("good")
    assert time.monotonic() - before < 20
