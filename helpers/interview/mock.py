"""Runs a mock interview: five cards and one drill against the clock, then a sheet of strong and weak topics.

A card is a question with its answer, a drill is a program to write. The candidate speaks an answer, compares it with
the card's, and rates it. Ratings go to the same progress file as the quiz's, so a weak card comes back sooner there.
`Reviews` has the earlier answers to each card, and says when it is due. Nothing is cut off at a time limit, and
everything can be skipped. `terminal_interviews.py` and `helpers.widgets.MockView` show it.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from helpers.interview.answers import judge_rating
from helpers.interview.bank_file import load_all
from helpers.interview.cards import LEVELS, Card
from helpers.interview.drills import Attempt, Drill, DrillOutcome, Judge, Now, Stopwatch, drills, utc_now
from helpers.interview.quiz import select_cards
from helpers.interview.reviews import Review, ReviewLog, Reviews
from helpers.interview.sheet import Sheet, SheetItem, card_item, drill_item
from helpers.learner import progress
from helpers.learner.progress import FilePath
from helpers.learner.words import language as chosen_language

NUM_CARDS = 5
CARD_SECONDS = 180.0


class MockInterview:
    """`begin()`, then for each card `reveal()` and `rate("good")`, then `submit(function)`; `sheet` at any time.

    level, topics: of the cards; nothing given: mixed. seed: the same seed and progress file give the same interview.
    check: `(key, answer) -> verdict` for the drill, such as helpers.grading.grade. path: of the progress file, the
    learner's own if None. now: returns the time. cards: instead of the whole bank. `stage` is "ready", "card", "drill"
    or "over". Raises ValueError for an unknown level, topic or language.
    """

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
        self._watches = [Stopwatch(CARD_SECONDS, now) for _ in self.cards]
        self._ratings: list[str] = []  # of the cards that were shown: a rating, or "skipped"
        self.stage = "ready"

    @property
    def card(self) -> Card | None:
        """The present card, or None before the first card, at the drill and afterwards."""
        return self.cards[len(self._ratings)] if self.stage == "card" else None

    @property
    def watch(self) -> Stopwatch | None:
        """The clock of the present card or drill."""
        if self.stage == "drill":
            return self.attempt.watch
        return self._watches[len(self._ratings)] if self.stage == "card" else None

    @property
    def note(self) -> str:
        """A sentence where the progress file is damaged or cannot be written; "" otherwise."""
        return self._log.note

    def begin(self) -> MockInterview:
        """Show the first card and start its clock; a second call changes nothing."""
        if self.stage == "ready":
            self._show("card")
        return self

    def reveal(self) -> Card:
        """Stop the card's clock after the answer was spoken; returns the card, whose answer may be shown now."""
        card = self._present_card("reveal()")
        self.watch.stop()
        return card

    def rate(self, rating: str) -> None:
        """Rate the spoken answer, "again", "hard", "good" or "easy", or 1 to 4, and go on to what is next.

        Raises ValueError for another word, and where no card is shown.
        """
        card, rating = self._present_card("rate()"), judge_rating(str(rating), self.language).rating
        self.watch.stop()
        review = Review(card_id=card.id, when=self._now().astimezone(UTC), rating=rating, form="folded")
        self._log.write(review, seconds=round(self.watch.seconds, 1), language=self.language, mock=True)
        self._next(rating)

    def skip(self) -> None:
        """Leave out the present card, unrated, or give up the drill. At other times it does nothing."""
        if self.stage == "card":
            self.watch.stop()
            self._next("skipped")
        elif self.stage == "drill":
            self.finish()

    def submit(self, answer: Any) -> DrillOutcome:
        """Check the drill's answer, a function or class. After an answer that passes the interview is over.

        Raises ValueError where the drill is not shown, and where there is no check.
        """
        if self.stage != "drill":
            raise ValueError(f"the drill is not at hand: {self._what_is_next()}")
        outcome = self.attempt.submit(answer)
        if outcome.passed:
            self.finish()
        return outcome

    def finish(self) -> Sheet:
        """End the interview here, whatever is left."""
        if self.watch is not None:
            self.watch.stop()
        self.stage = "over"
        return self.sheet

    @property
    def sheet(self) -> Sheet:
        """What was asked so far, with times, ratings and where to read on."""
        return Sheet(items=tuple(self._items()), language=self.language, seed=self.seed)

    def _items(self) -> Iterable[SheetItem]:
        """The rows of the sheet: a row per card, and the drill's."""
        for number, (card, watch) in enumerate(zip(self.cards, self._watches, strict=True)):
            state = "not_reached" if watch.began is None else "skipped"
            if number < len(self._ratings):
                state = self._ratings[number]
            yield card_item(card, watch, state, self.language)
        yield drill_item(self.drill, self.attempt, self.language)

    def _show(self, stage: str) -> None:
        """Go to the next card or to the drill, and start its clock."""
        self.stage = stage
        self.watch.begin()

    def _next(self, state: str) -> None:
        """Note the rating of the present card, or "skipped", and go on."""
        self._ratings.append(state)
        self._show("card" if len(self._ratings) < len(self.cards) else "drill")

    def _present_card(self, call: str) -> Card:
        """The card that is shown. call: what was called, for the error where none is."""
        if self.card is None:
            raise ValueError(f"{call} is for a card, and none is at hand: {self._what_is_next()}")
        return self.card

    def _what_is_next(self) -> str:
        """What the caller can do now, for errors."""
        return {
            "ready": "call begin() first",
            "card": f"card {len(self._ratings) + 1} of {len(self.cards)} is; rate() or skip() it",
            "drill": f"the drill {self.drill.key} is; submit() an answer or skip() it",
            "over": "the interview is over, see sheet",
        }[self.stage]


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
