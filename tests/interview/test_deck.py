"""Which cards are asked, and in which order and form."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from helpers.interview.quiz import choose_form, forms_of, list_topics, order_cards, select_cards
from helpers.interview.reviews import Review, Reviews
from tests.interview.quiz_cards import CARDS, START, card


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
