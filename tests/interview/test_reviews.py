"""Reviews: FSRS replayed from the progress file, whatever times stand in it."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from fsrs import Card, Rating, Scheduler

from helpers.interview.reviews import Review, Reviews
from helpers.learner import progress
from tests.interview.quiz_cards import START, line


def replayed(tmp_path, text, now=START + timedelta(days=30)):
    (tmp_path / "progress.jsonl").write_text(text)
    return Reviews(progress.read(tmp_path / "progress.jsonl").entries, now)


def by_fsrs(*reviews):
    scheduler, memory = Scheduler(enable_fuzzing=False), Card(card_id=1)
    for rating, when in reviews:
        memory, _ = scheduler.review_card(memory, rating, when)
    return memory.due


def test_the_due_date_is_what_fsrs_says(tmp_path):
    days = [START + timedelta(days=day) for day in (0, 1, 4, 15)]
    ratings = ("hard", "good", "again", "easy")
    reviews = replayed(tmp_path, "".join(line("a", *pair) for pair in zip(ratings, days, strict=True)))
    scale = (Rating.Hard, Rating.Good, Rating.Again, Rating.Easy)
    assert reviews.due("a") == by_fsrs(*zip(scale, days, strict=True))
    assert reviews.ratings("a") == ratings
    assert reviews.due("b") is None and "b" not in reviews


def test_what_is_added_equals_what_is_replayed(tmp_path):
    reviews = replayed(tmp_path, line("a", "good", START))
    later = START + timedelta(days=2)
    due = reviews.add(Review(card_id="a", when=later, rating="easy", form="choice"))
    assert due == reviews.due("a") == replayed(tmp_path, line("a", "good", START) + line("a", "easy", later)).due("a")
    assert reviews.last_form("a") == "choice"


def test_the_order_of_lines_does_not_matter_but_their_times_do(tmp_path):
    texts = [line("a", rating, START + timedelta(days=day)) for rating, day in (("again", 0), ("good", 3), ("easy", 9))]
    expected = replayed(tmp_path, "".join(texts)).due("a")
    random.Random(1).shuffle(texts)
    assert replayed(tmp_path, "".join(texts)).due("a") == expected


def test_a_time_in_the_future_counts_as_the_one_before_it(tmp_path):
    wrong_clock = line("a", "good", "2099-01-01T00:00:00+00:00")
    reviews = replayed(tmp_path, line("b", "good", START) + wrong_clock)
    assert reviews.due("a") == by_fsrs((Rating.Good, START))
    alone = replayed(tmp_path, wrong_clock, now=START)
    assert alone.due("a") == by_fsrs((Rating.Good, START))


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "2026-03-01T20:00:00"])
def test_odd_times_are_tolerated(tmp_path, time):
    reviews = replayed(tmp_path, line("a", "good", time) + line("a", "good", START))
    assert START < reviews.due("a") < START + timedelta(days=10)


@pytest.mark.parametrize(("passed", "rating"), [("true", "good"), ("false", "again")])
@pytest.mark.parametrize("more", ["", ', "rating": "perfect"', ', "rating": ["good"], "form": 3'])
def test_a_line_without_a_rating_counts_by_whether_it_passed(tmp_path, passed, rating, more):
    fields = f'{{"time": "{START.isoformat()}", "kind": "quiz", "key": "a", "passed": {passed}{more}}}\n'
    assert replayed(tmp_path, fields).ratings("a") == (rating,)


def test_checks_of_labs_are_no_reviews(tmp_path):
    assert "03.average" not in replayed(tmp_path, line("03.average").replace('"quiz"', '"check"'))


def test_times_are_utc_whatever_the_zone_of_the_line(tmp_path):
    there = replayed(tmp_path, line("a", "good", "2026-03-02T04:00:00+08:00")).due("a")
    assert there == by_fsrs((Rating.Good, datetime(2026, 3, 1, 20, tzinfo=UTC)))
