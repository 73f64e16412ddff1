"""A mock interview: what is asked, what the clock says, and that impatience breaks nothing."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from helpers.interview import Quiz
from helpers.interview.cards import LEVELS, Card, NotebookCell
from helpers.interview.mock import CARD_SECONDS, MockInterview
from helpers.interview.steps import FINISH, Ask, Reply, Show
from helpers.learner import progress
from helpers.learner.words import Words
from tests.interview.quiz_cards import played

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
class SlowLearner(Clock):
    """Replies to each question after so many seconds."""

    def play(self, interview, *replies):
        """The last document; each reply is a pair of seconds and of what `played` takes."""
        steps = interview.steps()
        step, left = next(steps), list(replies)
        while not isinstance(step, Show):
            if isinstance(step, Ask):
                seconds, given = left.pop(0) if left else (0, f":{FINISH}")
                self.wait(seconds)
                step = steps.send(Reply(action=given[1:]) if str(given).startswith(":") else Reply(given))
            else:
                step = next(steps)
        return step.document


READ = (500, "good")  # reading the card's own answer is not the candidate's time


def test_a_whole_interview(mock):
    clock = SlowLearner()
    rated = [[(90, ""), (500, rating)] for rating in ("good", "again", "4", "想起来了", "hard")]
    sheet = clock.play(mock(now=clock), (60, ""), *sum(rated, []), (100, False), (100, True))
    assert [item.state for item in sheet.items] == ["good", "again", "easy", "good", "hard", "passed"]
    assert [item.seconds for item in sheet.items] == [90] * 5 + [200]
    assert [item.limit for item in sheet.items] == [CARD_SECONDS] * 5 + [900]


def test_each_card_is_asked_with_its_clock_and_rated_beside_its_answer(mock):
    intro, begin, asked, rated, *_ = played(mock(), "", "", "good")
    assert intro.text.startswith("Five questions of 3 minutes") and begin.form == "ready"
    assert asked.heading[0] == "1 of 5" and asked.clock.began and not asked.clock.ended and not asked.parts
    assert rated.form == "rating" and rated.clock.ended and rated.question == asked.question
    assert [part.name for part in rated.parts] == ["answer", "shown_by"]


def test_ratings_reach_the_quiz(mock, path):
    clock = SlowLearner()
    interview = mock(now=clock)
    clock.play(interview, (0, ""), (30, ""), (0, "again"))
    asked = interview.cards[0]
    (entry,) = progress.read(path).entries
    assert (entry.kind, entry.key, entry.passed) == ("quiz", asked.id, False)
    assert entry.more == {"rating": "again", "form": "folded", "seconds": 30.0, "language": "en", "mock": True}
    clock.wait(3600)
    assert Quiz(CARDS, path=path, now=clock, seed=0).question.card == asked


def test_over_time_is_told_and_not_cut_off(mock):
    clock = SlowLearner()
    item = clock.play(mock(now=clock), (0, ""), (181, ""), READ).items[0]
    assert item.is_over and item.is_weak and item.state == "good"


@pytest.mark.parametrize(
    ("replies", "states"),
    [
        (["", *[":skip"] * 5, ":give_up"], ["skipped"] * 5 + ["no_answer"]),
        (["", "", "good"], ["good", "skipped", *["not_reached"] * 4]),
        (["", "", ":skip"], ["skipped", "skipped", *["not_reached"] * 4]),
        ([], ["not_reached"] * 6),
    ],
)
def test_everything_can_be_skipped_or_ended(mock, replies, states):
    assert [item.state for item in played(mock(), *replies)[-1].document.items] == states


def test_a_rating_that_is_none_leaves_the_card(mock):
    steps = played(mock(), "", "", "super")
    assert "'super' is not a rating" in steps[-2].problem and steps[-2].form == "rating"


def test_a_damaged_progress_file_is_told_and_the_interview_goes_on(mock, path):
    path.write_text('{"time": "2026\nnonsense\n')
    interview = mock()
    *_, note, _ = played(interview, "", "", "good")
    assert note.style == "problem" and "could not be read" in note.text
    assert progress.read(path).entries[-1].key == interview.cards[0].id


def test_a_file_that_cannot_be_read_or_written_is_told(mock, tmp_path):
    steps = played(mock(path=tmp_path), "", *["", "good"] * 5, True)  # a folder
    notes = [step.text for step in steps if getattr(step, "style", "") == "problem"]
    assert "could not be noted" in notes[0] and "cannot be" in notes[1] and len(steps[-1].document.items) == 6
