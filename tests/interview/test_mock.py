"""A mock interview: what is asked, what the clock says, and that impatience breaks nothing."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from helpers.interview import Quiz
from helpers.interview.cards import LEVELS, Card, NotebookCell
from helpers.interview.mock import CARD_SECONDS, MockInterview
from helpers.learner import progress
from helpers.learner.words import Words

START = datetime(2026, 1, 1, 9, tzinfo=UTC)


class Clock:
    def __init__(self, time=START):
        self.time = time

    def __call__(self):
        return self.time

    def wait(self, seconds):
        self.time += timedelta(seconds=seconds)


def card(name, chapter="03_ddp", level="junior"):
    text = Words(en=f"{name}?", zh=f"{name}？")
    shown = NotebookCell(notebook=chapter, anchor="bytes")
    return Card(id=name, chapter=chapter, level=level, question=text, answer=text, shown_by=shown)


TOPICS = ("01_collectives", "03_ddp", "06_pipeline", "08_zero")
CARDS = tuple(card(f"{t[3:]}-{level}-{n}", t, level) for t in TOPICS for level in LEVELS for n in range(2))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.jsonl"


@pytest.fixture
def mock(path):
    """mock(**options): an interview on CARDS with a clock that a test turns."""

    def make(**options):
        given = {"cards": CARDS, "path": path, "seed": 1, "now": Clock(), "check": lambda key, answer: answer} | options
        return MockInterview(**given)

    return make


def ids(interview):
    return [card.id for card in interview.cards]


# -- what is asked ---------------------------------------------------------------------------------------------------
def test_five_cards_of_mixed_topics_and_levels_junior_first(mock):
    for seed in range(20):
        cards = mock(seed=seed).cards
        assert len(cards) == len({card.id for card in cards}) == 5
        assert max(Counter(card.topic for card in cards).values()) == 2 and len({card.topic for card in cards}) == 4
        assert {card.level for card in cards} == set(LEVELS)
        assert list(cards) == sorted(cards, key=lambda card: LEVELS.index(card.level))


def test_the_same_seed_asks_the_same(mock):
    assert ids(mock(seed=5)) == ids(mock(seed=5)) and mock(seed=5).drill == mock(seed=5).drill
    assert len({tuple(ids(mock(seed=seed))) for seed in range(10)}) == 10
    assert len({mock(seed=seed).drill.key for seed in range(30)}) > 4


def test_without_a_seed_it_says_which_it_took(mock):
    first = mock(seed=None)
    assert ids(mock(seed=first.seed)) == ids(first)


def test_weak_and_due_cards_come_before_new_ones_and_known_ones_last(mock, path):
    weak, due, known = CARDS[0].id, CARDS[7].id, CARDS[13].id
    progress.record("quiz", weak, False, path=path, when=START - timedelta(hours=1), rating="again")
    progress.record("quiz", due, True, path=path, when=START - timedelta(days=400), rating="good")
    progress.record("quiz", known, True, path=path, when=START - timedelta(minutes=1), rating="easy")
    for seed in range(20):
        asked = ids(mock(seed=seed))
        assert weak in asked and due in asked and known not in asked


def test_the_archive_is_asked_only_where_nothing_else_is(mock):
    cards = [replace(card, archive=card.topic != "ddp") for card in CARDS]
    assert {sum(card.archive for card in mock(seed=seed, cards=cards).cards) for seed in range(10)} == {0}
    assert len(mock(cards=cards, topics=["zero"]).cards) == 5


def test_level_and_topics_choose(mock):
    chosen = mock(level="senior", topics=["ddp", "zero"])
    assert {card.level for card in chosen.cards} == {"senior"} and len(chosen.cards) == 4  # all there are
    assert {card.topic for card in chosen.cards} == {"ddp", "zero"} and chosen.drill.topic in ("ddp", "zero")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": ["xyz"]}, "no topic 'xyz'"),
        ({"level": "guru"}, "no level 'guru'"),
        ({"language": "fr"}, "language is 'fr'"),
    ],
)
def test_what_is_not_there_is_told(mock, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        mock(**options)


def test_a_drill_passed_in_time_gives_way_to_others(mock, path):
    for key in ("03.average", "03.buckets"):
        progress.record("check", key, True, path=path, in_time=True)
    progress.record("check", "03.accumulate", True, path=path, in_time=False)
    assert {mock(seed=seed, topics=["ddp"]).drill.key for seed in range(10)} == {"03.accumulate"}


def test_the_whole_bank_serves(path):
    assert len(MockInterview(path=path, seed=0).cards) == 5


# -- how it goes -----------------------------------------------------------------------------------------------------
def test_a_whole_interview(mock, path):
    clock = Clock()
    interview = mock(now=clock)
    assert interview.card is None and interview.watch is None and interview.stage == "ready"
    interview.begin()
    for number, rating in enumerate(("good", "again", "4", "想起来了", "hard")):
        assert interview.card == interview.cards[number] and interview.watch.limit == CARD_SECONDS
        clock.wait(90)
        assert interview.reveal() == interview.cards[number]
        clock.wait(500)  # reading the card's own answer is not the candidate's time
        interview.rate(rating)
    assert interview.stage == "drill" and interview.watch.limit == 900 and interview.card is None
    clock.wait(100)
    assert not interview.submit(False).passed and interview.stage == "drill"
    clock.wait(100)
    assert interview.submit(True).passed and interview.stage == "over"
    items = interview.sheet.items
    assert [item.state for item in items] == ["good", "again", "easy", "good", "hard", "passed"]
    assert [item.seconds for item in items] == [90] * 5 + [200]


def test_ratings_reach_the_quiz(mock, path):
    clock = Clock()
    interview = mock(now=clock).begin()
    clock.wait(30)
    asked = interview.card
    interview.rate("again")
    (entry,) = progress.read(path).entries
    assert (entry.kind, entry.key, entry.passed) == ("quiz", asked.id, False)
    assert entry.more == {"rating": "again", "form": "folded", "seconds": 30.0, "language": "en", "mock": True}
    clock.wait(3600)
    assert Quiz(CARDS, path=path, now=clock, seed=0).question.card == asked


def test_over_time_is_told_and_not_cut_off(mock):
    clock = Clock()
    interview = mock(now=clock).begin()
    clock.wait(181)
    assert interview.watch.is_over and interview.card is interview.cards[0]
    interview.rate("good")
    assert interview.sheet.items[0].is_over and interview.sheet.items[0].is_weak


def test_skipping_everything_and_finishing_early(mock, path):
    interview = mock()
    interview.skip()  # before the beginning
    assert interview.stage == "ready"
    interview.begin()
    for _ in range(5):
        interview.skip()
    assert interview.stage == "drill"
    interview.skip()
    assert interview.stage == "over" and [item.state for item in interview.sheet.items] == ["skipped"] * 5 + [
        "no_answer"
    ]
    assert not path.exists()
    early = mock().begin()
    early.rate("good")
    sheet = early.finish()
    assert [item.state for item in sheet.items] == ["good", "skipped", *["not_reached"] * 4]
    assert early.finish() == sheet
    assert [item.state for item in mock().finish().items] == ["not_reached"] * 6


@pytest.mark.parametrize(
    ("stage", "call", "sentence"),
    [
        ("ready", "rate", r"rate\(\) is for a card, and none is at hand: call begin\(\) first"),
        ("ready", "submit", r"the drill is not at hand: call begin\(\) first"),
        ("card", "submit", r"the drill is not at hand: card 1 of 5 is; rate\(\) or skip\(\) it"),
        ("drill", "rate", r"none is at hand: the drill 0\d\.\w+ is; submit\(\) an answer or skip\(\) it"),
        ("over", "submit", r"the interview is over, see sheet"),
    ],
)
def test_a_call_at_the_wrong_time_says_what_is_at_hand(mock, stage, call, sentence):
    interview = mock()
    if stage != "ready":
        interview.begin()
    if stage in ("drill", "over"):
        for _ in range(5):
            interview.skip()
    if stage == "over":
        interview.skip()
    with pytest.raises(ValueError, match=sentence):
        getattr(interview, call)("good")
    assert interview.stage == stage


def test_a_rating_that_is_none_leaves_the_card(mock):
    interview = mock().begin()
    with pytest.raises(ValueError, match="'super' is not a rating"):
        interview.rate("super")
    assert interview.card is interview.cards[0] and interview.watch.ended is None


def test_a_damaged_progress_file_is_told_and_the_interview_goes_on(mock, path):
    path.write_text('{"time": "2026\nnonsense\n')
    interview = mock().begin()
    interview.rate("good")
    assert "could not be read" in interview.note and progress.read(path).entries[-1].key == interview.cards[0].id


def test_a_file_that_cannot_be_read_or_written_is_told(mock, tmp_path):
    interview = mock(path=tmp_path).begin()  # a folder
    for _ in range(5):
        interview.rate("good")
    assert "cannot be" in interview.note and interview.submit(True).note
    assert len(interview.sheet.items) == 6
