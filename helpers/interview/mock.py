"""A mock interview: five cards and one drill against the clock, then a sheet of what was strong and what was weak.

The candidate speaks an answer, looks at the card's own, and rates himself or herself; ratings go to the same progress
file as the quiz's, so a weak card comes back sooner there. Time is told, never cut off, and all can be skipped.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from helpers.interview.answers import judge_rating
from helpers.interview.bank_file import load_all
from helpers.interview.cards import LEVELS, Card
from helpers.interview.deck import select
from helpers.interview.drills import Attempt, Drill, Judge, Outcome, drills
from helpers.interview.reviews import Journal, Review, Reviews
from helpers.interview.sheet import Item, Sheet, card_item, drill_item
from helpers.interview.stopwatch import Now, Stopwatch, utc_now
from helpers.learner import progress, words

NUM_CARDS = 5
CARD_SECONDS = 180.0


class MockInterview:
    """`begin()`, then for each card `reveal()` and `rate("good")`, then `submit(function)`; `sheet` at any time.

    level, topics: of the cards; nothing given: mixed. seed: the same seed and progress file give the same interview.
    check: `(key, answer) -> verdict` for the drill, such as helpers.grading.grade. path, now: as in Quiz. cards:
    instead of the whole bank. Raises ValueError for a level, topic or language that is not there.
    """

    def __init__(
        self,
        *,
        level: str | None = None,
        topics: Iterable[str] = (),
        language: str | None = None,
        seed: int | None = None,
        check: Judge | None = None,
        path: str | os.PathLike | None = None,
        now: Now | None = None,
        cards: Iterable[Card] | None = None,
    ):
        self.language, self._now = words.language(language), now or utc_now
        self.seed = secrets.randbelow(10_000) if seed is None else seed
        chance = random.Random(self.seed)
        self._journal = Journal(path, language, self._now)
        reviews = self._journal.read()
        deck = load_all() if cards is None else tuple(cards)
        wanted = select(deck, topics=topics, levels=(level,) if level else (), language=language)
        self.cards = choose_cards(wanted, reviews, self._now(), chance)
        self.drill = choose_drill({card.topic for card in wanted}, _passed(path), chance)
        self.attempt = Attempt(self.drill, check, language=language, path=path, now=now)
        self._watches = [Stopwatch(CARD_SECONDS, now) for _ in self.cards]
        self._ratings: list[str] = []  # of the cards that were shown: a rating, or "skipped"
        self.stage = "ready"

    @property
    def card(self) -> Card | None:
        """The card at hand, or None before, at the drill and afterwards."""
        return self.cards[len(self._ratings)] if self.stage == "card" else None

    @property
    def watch(self) -> Stopwatch | None:
        """The clock of the card or drill at hand."""
        if self.stage == "drill":
            return self.attempt.watch
        return self._watches[len(self._ratings)] if self.stage == "card" else None

    @property
    def note(self) -> str:
        """A sentence where the progress file is damaged or cannot be written; "" otherwise."""
        return self._journal.note

    def begin(self) -> MockInterview:
        """Show the first card and start its clock; a second call changes nothing."""
        if self.stage == "ready":
            self._show("card")
        return self

    def reveal(self) -> Card:
        """The answer was spoken: the card's clock stops, its own answer may be looked at."""
        card = self._at_card("reveal()")
        self.watch.stop()
        return card

    def rate(self, rating: str) -> None:
        """How well the spoken answer held: "again", "hard", "good" or "easy", or 1 to 4. Then comes what is next.

        Raises ValueError for another word, and where no card is at hand.
        """
        card, word = self._at_card("rate()"), judge_rating(str(rating), self.language).rating
        self.watch.stop()
        review = Review(card_id=card.id, when=self._now().astimezone(UTC), rating=word, form="folded")
        self._journal.write(review, seconds=round(self.watch.seconds, 1), language=self.language, mock=True)
        self._next(word)

    def skip(self) -> None:
        """Leave out the card at hand, unrated, or give up the drill. At other times it does nothing."""
        if self.stage == "card":
            self.watch.stop()
            self._next("skipped")
        elif self.stage == "drill":
            self.finish()

    def submit(self, answer: Any) -> Outcome:
        """The drill's answer, a function or class. After one that passes the interview is over.

        Raises ValueError where the drill is not at hand, and where no check was handed in.
        """
        if self.stage != "drill":
            raise ValueError(f"the drill is not at hand: {self._where()}")
        outcome = self.attempt.submit(answer)
        if outcome.passed:
            self.finish()
        return outcome

    def finish(self) -> Sheet:
        """End it here, whatever is left."""
        if self.watch is not None:
            self.watch.stop()
        self.stage = "over"
        return self.sheet

    @property
    def sheet(self) -> Sheet:
        """What was asked so far, with times, ratings and where to read on."""
        return Sheet(items=tuple(self._items()), language=self.language, seed=self.seed)

    def _items(self) -> Iterable[Item]:
        for number, (card, watch) in enumerate(zip(self.cards, self._watches, strict=True)):
            state = self._ratings[number] if number < len(self._ratings) else _unrated(watch)
            yield card_item(card, watch, state, self.language)
        yield drill_item(self.drill, self.attempt, self.language)

    def _show(self, stage: str) -> None:
        self.stage = stage
        self.watch.begin()

    def _next(self, state: str) -> None:
        self._ratings.append(state)
        self._show("card" if len(self._ratings) < len(self.cards) else "drill")

    def _at_card(self, call: str) -> Card:
        if self.card is None:
            raise ValueError(f"{call} is for a card, and none is at hand: {self._where()}")
        return self.card

    def _where(self) -> str:
        return {
            "ready": "call begin() first",
            "card": f"card {len(self._ratings) + 1} of {len(self.cards)} is; rate() or skip() it",
            "drill": f"the drill {self.drill.key} is; submit() an answer or skip() it",
            "over": "the interview is over, see sheet",
        }[self.stage]


def choose_cards(cards: Sequence[Card], reviews: Reviews, now: datetime, chance: random.Random) -> tuple[Card, ...]:
    """Five of them, junior first: weak and due ones before new ones before known ones, topics and levels mixed."""
    left, chosen = chance.sample(list(cards), len(cards)), []
    urgency = {card.id: _urgency(card, reviews, now) for card in left}
    while left and len(chosen) < NUM_CARDS:
        topics, levels = Counter(card.topic for card in chosen), Counter(card.level for card in chosen)
        best = min(left, key=lambda card: _cost(card, topics, levels, urgency))
        left.remove(best)
        chosen.append(best)
    return tuple(sorted(chosen, key=lambda card: LEVELS.index(card.level)))


def _cost(card: Card, topics: Counter, levels: Counter, urgency: dict[str, int]) -> tuple:
    """Archive only where nothing else is; two of a topic are enough where there are others; then what is urgent; then
    what is not there yet."""
    return card.archive, topics[card.topic] >= 2, urgency[card.id], topics[card.topic], levels[card.level]


def _urgency(card: Card, reviews: Reviews, now: datetime) -> int:
    """0: weak or due. 1: new. 2: known, and not due."""
    if card.id not in reviews:
        return 1
    is_weak = reviews.ratings(card.id)[-1] in ("again", "hard")
    return 0 if is_weak or reviews.due(card.id) <= now else 2


def choose_drill(topics: set[str], passed: set[str], chance: random.Random) -> Drill:
    """One of these topics if there is one, and one that was not passed in time before if there is one."""
    among = [one for one in drills() if one.topic in topics] or list(drills())
    return chance.choice([one for one in among if one.key not in passed] or among)


def _passed(path: str | os.PathLike | None) -> set[str]:
    """Keys of the drills passed in time. A file that cannot be read counts as empty: the journal tells of it."""
    try:
        entries = progress.read(path).entries
    except (OSError, RuntimeError):
        return set()
    return {entry.key for entry in entries if entry.kind == "check" and entry.passed and entry.more.get("in_time")}


def _unrated(watch: Stopwatch) -> str:
    return "not_reached" if watch.began is None else "skipped"
