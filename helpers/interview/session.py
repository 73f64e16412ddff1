"""One sitting of the quiz: what is asked next, what was answered, what that means for the schedule."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from helpers.interview.answers import Judged, asked_unit, judge_choice, judge_number, judge_rating
from helpers.interview.bank_file import load_all
from helpers.interview.cards import Card
from helpers.interview.deck import form_for, guessed_far, in_order, select
from helpers.interview.reviews import Journal, Review
from helpers.interview.words import say, say_span
from helpers.learner import words

RETURNS_AFTER = 3  # a card that was not known comes back in the sitting, once, after so many others
LONGEST = 3600.0  # seconds on one card that are noted: whoever went for lunch did not think for two hours


@dataclass(frozen=True)
class Question:
    """What is asked. form: "folded", "choice" or "number". unit: of the number asked for. is_new: never answered."""

    card: Card
    form: str
    text: str
    options: tuple[str, ...]
    unit: str
    is_new: bool


@dataclass(frozen=True)
class Answer:
    """What came of it. sentence: right or wrong, how far off, and when the card comes back. due: UTC."""

    card: Card
    form: str
    passed: bool
    rating: str
    sentence: str
    due: datetime


@dataclass(frozen=True)
class Summary:
    """A sitting in numbers. right: of those asked; hard: of those right. weakest: a topic, or "".

    due_tomorrow: cards due within 24 hours, of the topics and levels that were chosen, else of the whole bank.
    """

    asked: int
    right: int
    hard: int
    due_tomorrow: int
    weakest: str


class Quiz:
    """Ask `question`, give `answer`, until `question` is None.

    cards: the whole bank where None. topics: names as in `Card.topic`. levels: "junior", "senior", "staff". form:
    "mixed", "folded", "choice" or "number". path: of the progress file. now: the clock. seed: order of the options.
    count: how many questions at most. ahead: also cards that are not due yet. Raises ValueError for what is not there.
    """

    def __init__(
        self,
        cards: Iterable[Card] | None = None,
        *,
        topics: Iterable[str] = (),
        levels: Iterable[str] = (),
        language: str | None = None,
        form: str = "mixed",
        path: str | os.PathLike | None = None,
        now: Callable[[], datetime] | None = None,
        seed: int | None = None,
        count: int | None = None,
        ahead: bool = False,
    ):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(say("bad_count", language, given=count))
        self.language, self.form = words.language(language), form
        self.cards = tuple(load_all() if cards is None else cards)
        topics, levels = (given if isinstance(given, str) else tuple(given) for given in (topics, levels))
        selected = select(self.cards, topics=topics, levels=levels, form=form, language=language)
        self._now = now or (lambda: datetime.now(UTC))
        self._chance = random.Random(seed)
        self.is_chosen = bool(topics or levels)
        self._chosen = select(self.cards, topics=topics, levels=levels, form="mixed", language=language)
        self._journal = Journal(path, language, self._time)
        self.reviews = self._journal.read()
        self._queue = list(in_order(selected, self.reviews, self._time(), ahead=ahead, far=guessed_far(path)))
        self._count = count
        self._returned: set[str] = set()
        self.answers: list[Answer] = []
        self._ask()

    @property
    def asked(self) -> int:
        """Questions answered so far."""
        return len(self.answers)

    @property
    def right(self) -> int:
        """Of those, how many were known."""
        return sum(answer.passed for answer in self.answers)

    @property
    def remaining(self) -> int:
        """Questions still to come, the present one included."""
        left = len(self._queue) + (self.question is not None)
        return left if self._count is None else min(left, self._count - self.asked)

    @property
    def note(self) -> str:
        """A sentence where the progress file is damaged or cannot be written, "" otherwise."""
        return self._journal.note

    def answer(self, given: str) -> Answer:
        """Judge an answer to the question at hand, note it, and go on to the next.

        choice: "b". number: "64.2 MB" or "64.2". folded: "again", "hard", "good" or "easy". Raises ValueError, with
        the question staying, for what cannot be read, and when nothing is asked.
        """
        question = self.question
        if question is None:
            raise ValueError(say("over", self.language))
        judged = self._judge(question, str(given))
        when = self._time()
        seconds = min(max((when - self._since).total_seconds(), 0.0), LONGEST)
        review = Review(card_id=question.card.id, when=when, rating=judged.rating, form=question.form)
        due = self.reviews.add(review)
        self._journal.write(review, seconds=round(seconds, 1), language=self.language)
        returns = say("returns", self.language, span=say_span(due - when, self.language))
        sentence = f"{judged.sentence}{say('between', self.language)}{returns}"
        answer = Answer(question.card, question.form, judged.passed, judged.rating, sentence, due)
        self.answers.append(answer)
        self._return(answer)
        self._ask()
        return answer

    def skip(self) -> None:
        """Go on without an answer: nothing is noted, and the card is not asked again in this sitting."""
        self._ask()

    def summary(self) -> Summary:
        """The sitting so far. The weakest topic is the one with the largest share of answers that were not known."""
        by_topic = Counter(answer.card.topic for answer in self.answers)
        missed = Counter(answer.card.topic for answer in self.answers if not answer.passed)
        weakest = max(missed, key=lambda topic: (missed[topic] / by_topic[topic], missed[topic]), default="")
        hard = sum(answer.rating == "hard" for answer in self.answers)
        return Summary(self.asked, self.right, hard, self.due_by(self._time() + timedelta(days=1)), weakest)

    def due_by(self, when: datetime) -> int:
        """How many of the chosen cards will be due at that time; cards never answered do not count."""
        due = (self.reviews.due(card.id) for card in self._chosen)
        return sum(instant is not None and instant <= when for instant in due)

    def _time(self) -> datetime:
        return self._now().astimezone(UTC)

    def _ask(self) -> None:
        """Take the next card."""
        over = not self._queue or self._count is not None and self.asked >= self._count
        self.question: Question | None = None if over else self._question(self._queue.pop(0))
        self._since = self._time()

    def _question(self, card: Card) -> Question:
        form = form_for(card, self.form, self.reviews, self._chance)
        text = card.predict.ask if form == "number" else card.question
        options: list[str] = []
        if form == "choice":
            options = [option.in_(self.language) for option in (card.choices.right, *card.choices.wrong)]
            self._chance.shuffle(options)
        unit = asked_unit(card.predict) if form == "number" else ""
        is_new = card.id not in self.reviews
        return Question(card, form, text.in_(self.language), tuple(options), unit, is_new)

    def _judge(self, question: Question, given: str) -> Judged:
        if question.form == "folded":
            return judge_rating(given, self.language)
        if question.form == "choice":
            right = question.card.choices.right.in_(self.language)
            return judge_choice(given, question.options, right, self.language)
        return judge_number(given, question.card, self.language)

    def _return(self, answer: Answer) -> None:
        """What was not known is asked once more before the sitting ends, if enough comes between."""
        card = answer.card
        if not answer.passed and card.id not in self._returned and len(self._queue) >= RETURNS_AFTER:
            self._returned.add(card.id)
            self._queue.insert(RETURNS_AFTER, card)
