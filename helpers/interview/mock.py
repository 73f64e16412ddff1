"""Runs a mock interview: five cards and one drill against the clock, then a sheet of strong and weak topics.

A card is a question with its answer, a drill is a program to write. The candidate speaks an answer, compares it with
the card's, and rates it. Ratings go to the same progress file as the quiz's, so a weak card comes back sooner there.
`Reviews` has the earlier answers to each card, and says when it is due. Nothing is cut off at a time limit, and
everything can be skipped.
"""

from __future__ import annotations

import functools
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from helpers.interview.answers import judge_rating
from helpers.interview.bank_file import load_all
from helpers.interview.card_html import card_parts
from helpers.interview.cards import LEVELS, Card, topic_name, words
from helpers.interview.drills import Attempt, Drill, Judge, Now, Stopwatch, drills, utc_now
from helpers.interview.quiz import rating_step, select_cards
from helpers.interview.reviews import Review, ReviewLog, Reviews
from helpers.interview.sheet import Sheet, SheetItem, card_item, drill_item
from helpers.interview.steps import Ask, Finished, Show, Steps, Talk, labels
from helpers.learner import progress
from helpers.learner.progress import FilePath
from helpers.learner.words import language as chosen_language

NUM_CARDS = 5
CARD_SECONDS = 180.0


class MockInterview(Talk):
    """A mock interview. `steps()` is the conversation; `sheet` can be read at any time.

    level, topics: of the cards; nothing given: mixed. seed: the same seed and progress file give the same interview.
    check: `(key, answer) -> verdict` for the drill, such as helpers.grading.grade. path: of the progress file, the
    learner's own if None. now: returns the time. cards: instead of the whole bank. Raises ValueError for an unknown
    level, topic or language.
    """

    kind = "mock"

    def __init__(
        self,
        *,
        level: str | None = None,
        topics: Iterable[str] = (),
        language: str | None = None,
        seed: int | None = None,
        check: Judge | None = None,
        path: FilePath = None,
        now: Now | None = None,
        cards: Iterable[Card] | None = None,
    ):
        self.language, self._now = chosen_language(language), now or utc_now
        self.seed = secrets.randbelow(10_000) if seed is None else seed
        chance = random.Random(self.seed)
        self._log = ReviewLog(path, language, self._now)
        reviews = self._log.read()
        bank = load_all() if cards is None else tuple(cards)
        wanted = select_cards(bank, topics=topics, levels=(level,) if level else (), language=language)
        self.cards = choose_cards(wanted, reviews, self._now(), chance)
        self.drill = choose_drill({card.topic for card in wanted}, _drills_passed_in_time(path), chance)
        self.attempt = Attempt(self.drill, check, language=language, path=path, now=now)
        self.watches = [Stopwatch(CARD_SECONDS, now) for _ in self.cards]
        self._ratings: list[str] = []  # of the cards that were shown: a rating, or "skipped"

    # -- the conversation ----------------------------------------------------------------------------------------------
    def steps(self) -> Steps:
        """The cards, the drill, and the sheet, which comes too if the learner ends the interview early."""
        try:
            if self.watches[0].began is None:
                yield from self.ask_to_begin(labels("mock.intro", self.language))
            while len(self._ratings) < len(self.cards):
                yield from self._card_steps(len(self._ratings))
            self.attempt.begin()
            yield from self.attempt.write_steps(self.finish_action)
        except Finished:
            pass
        for watch in (*self.watches, self.attempt.watch):
            watch.stop()
        yield from self._log.tell_note()
        yield Show(document=self.sheet)

    def _card_steps(self, index: int) -> Steps:
        """One card: the clock runs until the learner has spoken, then they see the answer and rate their own."""
        card, watch, language = self.cards[index], self.watches[index], self.language
        watch.begin()
        place = words("place", language, number=index + 1, total=len(self.cards))
        step = Ask(
            form="ready", heading=(place, topic_name(card.topic, language), words(card.level, language)),
            question=card.question.in_(language), prompt=words("ask_unfold", language),
            submit=labels("show", language), actions=(self.action("skip"), self.finish_action), clock=watch.state,
        )  # fmt: skip
        reply = yield from self.ask(step)
        watch.stop()
        rating = None
        if not reply.action:
            step = rating_step(step, card_parts(card, language), words("ask_mock_rating", language), language)
            read = functools.partial(judge_rating, language=language)
            rating = yield from self.ask_until_read(replace(step, clock=watch.state), read)
        self._ratings.append(rating.rating if rating else "skipped")
        if rating:
            review = Review(card_id=card.id, when=self._now().astimezone(UTC), rating=rating.rating, form="folded")
            self._log.write(review, seconds=round(watch.seconds, 1), language=language, mock=True)

    # -- the sheet -----------------------------------------------------------------------------------------------------
    @property
    def sheet(self) -> Sheet:
        """What was asked so far, with times, ratings and where to read on."""
        return Sheet(items=tuple(self._items()), language=self.language, seed=self.seed)

    def _items(self) -> Iterable[SheetItem]:
        """The rows of the sheet: a row per card, and the drill's."""
        for number, (card, watch) in enumerate(zip(self.cards, self.watches, strict=True)):
            state = "not_reached" if watch.began is None else "skipped"
            if number < len(self._ratings):
                state = self._ratings[number]
            yield card_item(card, watch, state, self.language)
        yield drill_item(self.drill, self.attempt, self.language)


def choose_cards(cards: Sequence[Card], reviews: Reviews, now: datetime, chance: random.Random) -> tuple[Card, ...]:
    """Five cards, junior first. Weak and due ones come first, then new ones, then known ones; topics are mixed.

    Each time, the card with the lowest cost is taken. chance: shuffles cards of equal cost.
    """
    left, chosen = chance.sample(list(cards), len(cards)), []
    urgency = {card.id: _urgency(card, reviews, now) for card in left}
    while left and len(chosen) < NUM_CARDS:
        topics, levels = Counter(card.topic for card in chosen), Counter(card.level for card in chosen)
        best = min(left, key=lambda card: _cost(card, topics, levels, urgency))
        left.remove(best)
        chosen.append(best)
    return tuple(sorted(chosen, key=lambda card: LEVELS.index(card.level)))


def _cost(card: Card, topics: Counter, levels: Counter, urgency: dict[str, int]) -> tuple:
    """The cost of a card, a tuple that is compared from left to right.

    Worst is a card of the archive, which interviewers no longer ask; then one whose topic has two chosen cards already;
    then a less urgent one; then one whose topic, or whose level, has more chosen cards. topics, levels: how many chosen
    cards are of each. urgency: of each card, by id, as `_urgency` says.
    """
    return card.archive, topics[card.topic] >= 2, urgency[card.id], topics[card.topic], levels[card.level]


def _urgency(card: Card, reviews: Reviews, now: datetime) -> int:
    """0: weak or due. 1: new. 2: known, and not due."""
    if card.id not in reviews:
        return 1
    is_weak = reviews.ratings(card.id)[-1] in ("again", "hard")
    return 0 if is_weak or reviews.due(card.id) <= now else 2


def choose_drill(topics: set[str], passed: set[str], chance: random.Random) -> Drill:
    """A drill of one of these topics if there is one, and one that was not `passed` before if there is one."""
    candidates = [one for one in drills() if one.topic in topics] or list(drills())
    return chance.choice([one for one in candidates if one.key not in passed] or candidates)


def _drills_passed_in_time(path: FilePath) -> set[str]:
    """Keys of the drills passed in time. A file that cannot be read counts as empty: `note` reports it."""
    entries = progress.read_if_possible(path).entries
    return {entry.key for entry in entries if entry.kind == "check" and entry.passed and entry.more.get("in_time")}
