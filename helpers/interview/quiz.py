"""Runs a quiz over the interview cards: selects cards, asks them, judges each answer and schedules its review.

A card is a question with its answer. It belongs to a chapter such as "03_ddp", whose topic is "ddp", and to a level. It
can be asked in up to three forms: "choice" (multiple choice), "number" (predict the number) and "folded" (the learner
thinks of an answer, unfolds it and rates their own). `Reviews` has the earlier answers to each card, and says when a
card is due again.

`Quiz` prints nothing: it yields steps (steps.py), which a terminal and a notebook play. The mock interview and the
Anki export select their cards with `select_cards` as well. `words(key, language, **values)` is a sentence of the quiz.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from helpers.interview.answers import LETTERS, Judged, asked_unit, judge_choice, judge_number, judge_rating
from helpers.interview.bank_file import load_all
from helpers.interview.card_html import card_parts
from helpers.interview.cards import LEVELS, RATINGS, Card, format_span, topic_name, topic_of, words
from helpers.interview.reviews import Review, ReviewLog, Reviews
from helpers.interview.steps import Ask, Finished, Option, Steps, Talk, Tell, TextPart, labels
from helpers.learner.course import week
from helpers.learner.guesses.calibration import poorly_guessed_chapters, poorly_guessed_kinds
from helpers.learner.progress import FilePath
from helpers.learner.words import language as chosen_language

FORMS = ("choice", "number", "folded")
RETURNS_AFTER = 3  # a card that was not known is asked again in the same quiz, once, after so many others
LONGEST = 3600.0  # seconds: more than this on one card was a break, and is not noted


# -- which cards are asked, in which order, and in which form --------------------------------------------------------
def list_topics(cards: Iterable[Card]) -> tuple[str, ...]:
    """The topics of these cards, in the order in which an interviewee should take them."""
    return tuple(dict.fromkeys(map(topic_of, sorted({card.chapter for card in cards}, key=path_key))))


def forms_of(card: Card) -> tuple[str, ...]:
    """The forms in which this card can be asked, of which "folded" is always one."""
    possible = {"choice": card.choices, "number": card.predict, "folded": True}
    return tuple(form for form in FORMS if possible[form])


def select_cards(
    cards: Iterable[Card],
    *,
    topics: Iterable[str] = (),
    levels: Iterable[str] = (),
    form: str = "mixed",
    language: str | None = None,
) -> tuple[Card, ...]:
    """The cards of these topics and levels that can be asked in this form. Without topics or levels: all of them.

    A topic is "ddp"; its chapter, "03_ddp", and its name in `language` are understood too. Raises ValueError, in
    `language`, for an unknown name and where no card is left.
    """
    language = chosen_language(language)
    cards, levels = tuple(cards), _names(levels)
    known_topics = list_topics(cards)
    by_name = {topic_name(topic, language).lower(): topic for topic in known_topics}
    wanted = [by_name.get(topic.lower(), topic_of(topic).lower()) for topic in _names(topics)]
    _check_names("no_topic", wanted, known_topics, language)
    _check_names("no_level", levels, LEVELS, language)
    _check_names("no_form", (form,), ("mixed", *FORMS), language)
    in_form = [card for card in cards if form == "mixed" or form in forms_of(card)]
    of_topics = [card for card in in_form if not wanted or card.topic in wanted]
    selected = [card for card in of_topics if not levels or card.level in levels]
    if not selected:
        counts = Counter(card.topic for card in sorted(in_form, key=_path_key))
        known = ", ".join(f"{topic} {count}" for topic, count in counts.items())  # "" if no card has this form
        names = [*wanted, *levels] + ([words(form, language)] if form != "mixed" else [])
        raise ValueError(words("no_cards", language, wanted=", ".join(names), known=known or "0"))
    return tuple(selected)


def order_cards(
    cards: Iterable[Card],
    reviews: Reviews,
    now: datetime,
    *,
    ahead: bool = False,
    is_urgent: Callable[[Card], bool] = lambda card: False,
) -> tuple[Card, ...]:
    """Due cards, the most overdue first, then new ones from junior to staff, with new cards of the archive last.

    Cards that are not due yet are left out, or with `ahead` come last, the soonest due first. Cards for which
    `is_urgent` holds come before the others that are due, and before the other new ones of their level. The archive are
    cards that interviewers no longer ask.
    """
    known = [(reviews.due(card.id), card) for card in cards if card.id in reviews]  # cards that were answered before
    known.sort(key=lambda pair: (not is_urgent(pair[1]), pair[0]))
    new = [card for card in cards if card.id not in reviews]
    new.sort(key=lambda card: (card.archive, LEVELS.index(card.level), not is_urgent(card), _path_key(card)))
    not_due = sorted((pair for pair in known if pair[0] > now), key=lambda pair: pair[0])
    soon = not_due if ahead else []
    return (*(card for due, card in known if due <= now), *new, *(card for _, card in soon))


def poorly_guessed(path: FilePath = None) -> Callable[[Card], bool]:
    """A function that says whether the learner's guesses on a card's subject were off by a factor of two or more.

    The guesses are those that chapters ask for before they show a number. The subject is the card's chapter, or the
    kind of calculator that computes its numbers. path: of the progress file.
    """
    chapters, kinds = poorly_guessed_chapters(path), poorly_guessed_kinds(path)
    calculators = tuple(f"helpers.predict.{kind}." for kind in kinds)
    return lambda card: card.chapter[:2] in chapters or any(check.call.startswith(calculators) for check in card.verify)


def choose_form(card: Card, form: str, reviews: Reviews, chance: random.Random) -> str:
    """The form in which to ask: `form`, or if that is "mixed" another one than last time, if the card has one."""
    if form != "mixed":
        return form
    possible, last = forms_of(card), reviews.last_form(card.id)
    if last in possible:
        return possible[(possible.index(last) + 1) % len(possible)]  # the next one, in turn
    return chance.choice(possible)


def _path_key(card: Card) -> tuple[int, str]:
    """Sorts cards by their chapters, as `path_key` does."""
    return path_key(card.chapter)


def path_key(chapter: str) -> tuple[int, str]:
    """Sorts the chapters of the week before an interview first, then the other chapters, then the topics beyond.

    `week()` are the numbers of those chapters, such as "03", in their order. Chapters beyond have no number.
    """
    number, path = chapter[:2], week()
    if number in path:
        return path.index(number), chapter
    return len(path) + (not number.isdigit()), chapter  # True counts as 1


def _names(given: Iterable[str] | str | None) -> tuple[str, ...]:
    """One name or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def _check_names(key: str, given: Iterable[str], known: Sequence[str], language: str) -> None:
    """Raises ValueError, the quiz's sentence of this key, for a name that is not known."""
    for name in given:
        if name not in known:
            raise ValueError(words(key, language, given=name, known=", ".join(known)))


def rating_step(step: Ask, parts: tuple[TextPart, ...], prompt: str, language: str) -> Ask:
    """The question again, with the answer below it, which the learner now compares with their own and rates."""
    options = tuple(Option(value=name, label=words(name, language)) for name in RATINGS)
    return replace(step, form="rating", parts=parts, prompt=prompt, options=options)


# -- a quiz ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class QuizQuestion:
    """What is asked.

    form: "folded", "choice" or "number". text: the question. options: of a choice. unit: of the number asked for.
    is_new: whether the card was never answered.
    """

    card: Card
    form: str
    text: str
    options: tuple[str, ...]
    unit: str
    is_new: bool


@dataclass(frozen=True)
class Answer:
    """How an answer was judged.

    passed: whether the card was known. rating: "again", "hard", "good" or "easy". sentence: right or wrong, how far
    off, and when the card comes back. due: when it comes back, in UTC.
    """

    card: Card
    form: str
    passed: bool
    rating: str
    sentence: str
    due: datetime


@dataclass(frozen=True)
class Summary:
    """A quiz in numbers.

    asked: how many cards; right: how many of them were known; hard: how many of those were rated hard. weakest: a
    topic, or "". due_tomorrow: cards due within 24 hours, of the chosen topics and levels, else of the whole bank.
    """

    asked: int
    right: int
    hard: int
    due_tomorrow: int
    weakest: str


class Quiz(Talk):
    """Asks `question` and takes `answer(text)`, until `question` is None. `steps()` is the quiz as a conversation.

    cards: the whole bank where None. topics: names as in `Card.topic`. levels: "junior", "senior", "staff". form:
    "mixed", "folded", "choice" or "number". path: of the progress file. now: returns the time. seed: of the order of
    options. count: how many questions at most. ahead: whether cards that are not due yet are asked too. only_due:
    whether new cards are left out. Raises ValueError for an unknown topic, level or form.
    """

    kind = "quiz"

    def __init__(
        self,
        cards: Iterable[Card] | None = None,
        *,
        topics: Iterable[str] = (),
        levels: Iterable[str] = (),
        language: str | None = None,
        form: str = "mixed",
        path: FilePath = None,
        now: Callable[[], datetime] | None = None,
        seed: int | None = None,
        count: int | None = None,
        ahead: bool = False,
        only_due: bool = False,
    ):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(words("bad_count", language, given=count))
        self.language, self.form = chosen_language(language), form
        self.cards = tuple(load_all() if cards is None else cards)
        topics, levels = _names(topics), _names(levels)
        selected = select_cards(self.cards, topics=topics, levels=levels, form=form, language=language)
        self._now = now or (lambda: datetime.now(UTC))
        self._chance = random.Random(seed)
        self.is_chosen = bool(topics or levels)  # if not, the quiz covers the whole bank, and the summary says so
        # The cards that the summary counts as due: of these topics and levels, in whatever form they are asked.
        self._chosen = select_cards(self.cards, topics=topics, levels=levels, form="mixed", language=language)
        self._log = ReviewLog(path, language, self._time)
        self.reviews = self._log.read()
        urgent = poorly_guessed(path)
        self._only_due = only_due
        if only_due:
            selected = tuple(card for card in selected if card.id in self.reviews)
        self._queue = list(order_cards(selected, self.reviews, self._time(), ahead=ahead, is_urgent=urgent))
        self._count = count
        self._asked_again: set[str] = set()  # ids of cards
        self.answers: list[Answer] = []
        self._ask()

    @property
    def asked(self) -> int:
        """Questions answered so far."""
        return len(self.answers)

    @property
    def right(self) -> int:
        """How many of the answers so far were right."""
        return sum(answer.passed for answer in self.answers)

    @property
    def remaining(self) -> int:
        """Questions still to come, the present one included."""
        left = len(self._queue) + (self.question is not None)
        return left if self._count is None else min(left, self._count - self.asked)

    @property
    def note(self) -> str:
        """A sentence where the progress file is damaged or cannot be written, "" otherwise."""
        return self._log.note

    # -- the conversation ----------------------------------------------------------------------------------------------
    def steps(self) -> Steps:
        """Every card: its question, the answer, and how it was judged. Then a summary."""
        yield from self._log.tell_note()
        if self.question is None:
            yield Tell(text=words("none_due" if self._only_due else "nothing_due", self.language))
            return
        yield Tell(text=words("welcome", self.language, count=self.remaining), style="intro")
        try:
            while self.question is not None:
                yield from self._card_steps(self.question)
        except Finished:
            pass
        yield from self._summary_steps()

    def _card_steps(self, question: QuizQuestion) -> Steps:
        """Ask a card, and show its answer: before a folded card is rated, after another one is judged."""
        step, parts = self._first_step(question), card_parts(question.card, self.language, asked=question.text)
        if question.form == "folded":
            reply = yield from self.ask(step)
            if reply.action:
                return self.skip()
            step = rating_step(step, parts, words("ask_rating", self.language), self.language)
        answer = yield from self.ask_until_read(step, self.answer)
        if answer is None:
            return self.skip()
        yield from self._log.tell_note()
        style, told = "right" if answer.passed else "wrong", () if question.form == "folded" else parts
        yield Tell(text=answer.sentence, style=style, parts=told)
        if self.question is not None:
            yield from self.ask(self._pause(step, parts))

    def _pause(self, step: Ask, parts: tuple[TextPart, ...]) -> Ask:
        """The question again with its answer, until the learner goes on to the next card."""
        has_more = any(part.name == "longer" and part.is_folded for part in parts)
        prompt = words("ask_next" if has_more else "ask_next_told", self.language)
        button = labels("quiz.next", self.language)
        return replace(step, form="pause", parts=parts, prompt=prompt, submit=button, actions=(), problem="")

    def _first_step(self, question: QuizQuestion) -> Ask:
        """The question, with where in the quiz it is."""
        card, language, form = question.card, self.language, question.form
        place = words("place", language, number=self.asked + 1, total=self.asked + self.remaining)
        new = (words("is_new", language),) if question.is_new else ()
        heading = (place, topic_name(card.topic, language), words(card.level, language), *new)
        has_unit = question.unit not in ("", "x", "×")
        prompt = {
            "folded": words("ask_unfold", language),
            "choice": words("ask_letter", language, last=LETTERS[len(question.options) - 1]),
            "number": words("ask_number" if has_unit else "ask_count", language, unit=question.unit),
        }[form]
        options = tuple(
            Option(value=letter, label=text) for letter, text in zip(LETTERS, question.options, strict=False)
        )
        return Ask(
            form="ready" if form == "folded" else form, heading=heading, question=question.text, prompt=prompt,
            submit=labels("show" if form == "folded" else "quiz.check", language), options=options,
            unit=question.unit, actions=(self.action("skip"),),
        )  # fmt: skip

    def _summary_steps(self) -> Steps:
        """How many were asked, right, and due tomorrow, and the weakest topic."""
        summary, language = self.summary(), self.language
        key = "summary_nothing" if not summary.asked else "summary_hard" if summary.hard else "summary"
        counts = {"asked": summary.asked, "right": summary.right, "hard": summary.hard}
        yield Tell(text=words(key, language, **counts), style="bold" if summary.asked else "", heading=("",))
        key = "summary_due_chosen" if self.is_chosen else "summary_due"
        yield Tell(text=words(key, language, count=summary.due_tomorrow))
        if summary.weakest:
            yield Tell(text=words("summary_weakest", language, topic=topic_name(summary.weakest, language)))

    # -- the state -----------------------------------------------------------------------------------------------------
    def answer(self, given: str) -> Answer:
        """Judge an answer to the present question, note it, and go on to the next.

        choice: "b". number: "64.2 MB" or "64.2". folded: "again", "hard", "good" or "easy". Raises ValueError, with
        the question staying, for an answer that cannot be read, and when nothing is asked.
        """
        question = self.question
        if question is None:
            raise ValueError(words("over", self.language))
        judged = self._judge(question, str(given))
        when = self._time()
        seconds = min(max((when - self._since).total_seconds(), 0.0), LONGEST)
        review = Review(card_id=question.card.id, when=when, rating=judged.rating, form=question.form)
        due = self.reviews.add(review)
        self._log.write(review, seconds=round(seconds, 1), language=self.language)
        returns = words("returns", self.language, span=format_span(due - when, self.language))
        sentence = f"{judged.sentence}{words('between', self.language)}{returns}"
        answer = Answer(question.card, question.form, judged.passed, judged.rating, sentence, due)
        self.answers.append(answer)
        self._maybe_ask_again(answer)
        self._ask()
        return answer

    def skip(self) -> None:
        """Go on without an answer. Nothing is noted, and the card is not asked again in this quiz."""
        self._ask()

    def summary(self) -> Summary:
        """The quiz so far. The weakest topic is the one with the largest share of answers that were not known."""
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
        """Take the next card, or none where the quiz is over."""
        is_over = not self._queue or self._count is not None and self.asked >= self._count
        self.question: QuizQuestion | None = None if is_over else self._question(self._queue.pop(0))
        self._since = self._time()

    def _question(self, card: Card) -> QuizQuestion:
        """The question for a card, in the form in which it is asked now."""
        form = choose_form(card, self.form, self.reviews, self._chance)
        text = card.predict.ask if form == "number" else card.question
        options: list[str] = []
        if form == "choice":
            options = [option.in_(self.language) for option in (card.choices.right, *card.choices.wrong)]
            self._chance.shuffle(options)
        unit = asked_unit(card.predict) if form == "number" else ""
        is_new = card.id not in self.reviews
        return QuizQuestion(card, form, text.in_(self.language), tuple(options), unit, is_new)

    def _judge(self, question: QuizQuestion, given: str) -> Judged:
        """Judge an answer by the form of the question."""
        if question.form == "folded":
            return judge_rating(given, self.language)
        if question.form == "choice":
            right = question.card.choices.right.in_(self.language)
            return judge_choice(given, question.options, right, self.language)
        return judge_number(given, question.card, self.language)

    def _maybe_ask_again(self, answer: Answer) -> None:
        """Put a card that was not known back into the queue, once, if enough other cards come before it."""
        card = answer.card
        if not answer.passed and card.id not in self._asked_again and len(self._queue) >= RETURNS_AFTER:
            self._asked_again.add(card.id)
            self._queue.insert(RETURNS_AFTER, card)
