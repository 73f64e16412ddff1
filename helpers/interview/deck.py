"""Which cards are asked, in which order, and in which form."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from helpers.interview.cards import LEVELS, Card, topic_of
from helpers.interview.reviews import Reviews
from helpers.interview.words import say, topic_name
from helpers.learner import words
from helpers.learner.course import week
from helpers.learner.guesses.calibration import far_chapters, far_kinds

FORMS = ("choice", "number", "folded")


def topics(cards: Iterable[Card]) -> tuple[str, ...]:
    """The topics of these cards in the order of the interview path."""
    return tuple(dict.fromkeys(card.topic for card in sorted(cards, key=_path_key)))


def forms_of(card: Card) -> tuple[str, ...]:
    """The forms in which this card can be asked: "folded" always."""
    possible = {"choice": card.choices, "number": card.predict, "folded": True}
    return tuple(form for form in FORMS if possible[form])


def select(
    cards: Iterable[Card],
    *,
    topics: Iterable[str] = (),
    levels: Iterable[str] = (),
    form: str = "mixed",
    language: str | None = None,
) -> tuple[Card, ...]:
    """The cards of these topics and levels that can be asked in this form; nothing given: all.

    A topic is "ddp"; its chapter, "03_ddp", and its name in `language` are understood too. Raises ValueError, in
    `language`, for a name that is not there and where no card is left.
    """
    language = words.language(language)
    cards, levels = tuple(cards), _names(levels)
    spoken = {topic_name(topic, language).lower(): topic for topic in _topics(cards)}
    wanted = [spoken.get(topic.lower(), topic_of(topic).lower()) for topic in _names(topics)]
    _check_names("no_topic", wanted, _topics(cards), language)
    _check_names("no_level", levels, LEVELS, language)
    _check_names("no_form", (form,), ("mixed", *FORMS), language)
    left = [card for card in cards if form == "mixed" or form in forms_of(card)]
    known = ", ".join(f"{topic} {count}" for topic, count in _counts(left).items())
    left = [card for card in left if not wanted or card.topic in wanted]
    left = [card for card in left if not levels or card.level in levels]
    if not left:
        names = ", ".join((*wanted, *levels, *([say(form, language)] if form != "mixed" else [])))
        raise ValueError(say("no_cards", language, wanted=names, known=known or "0"))
    return tuple(left)


def in_order(
    cards: Iterable[Card],
    reviews: Reviews,
    now: datetime,
    *,
    ahead: bool = False,
    far: Callable[[Card], bool] = lambda card: False,
) -> tuple[Card, ...]:
    """Due cards, most overdue first; then new ones from junior to staff, along the interview path; of the new ones the
    archive last.

    Cards that are not due yet are left out, or with `ahead` come last, the soonest due first. far: where the learner's
    guesses were far off; these cards come before the others that are due, and before the other new ones of their level.
    """
    known = [(due, card) for card in cards if (due := reviews.due(card.id)) is not None]
    known.sort(key=lambda pair: (not far(pair[1]), pair[0]))
    new = sorted((card for card in cards if card.id not in reviews), key=lambda card: _new_key(card, far(card)))
    soon = sorted((pair for pair in known if pair[0] > now), key=lambda pair: pair[0])
    waiting = [card for _, card in soon] if ahead else []
    return (*(card for due, card in known if due <= now), *new, *waiting)


def guessed_far(path: str | os.PathLike | None = None) -> Callable[[Card], bool]:
    """Whether a card is of a chapter, or computed by a calculator of a kind, in which the learner's guesses were off
    by a factor of two or more. path: of the progress file."""
    chapters, kinds = far_chapters(path), far_kinds(path)
    rooms = tuple(f"helpers.predict.{kind}." for kind in kinds)
    return lambda card: card.chapter[:2] in chapters or any(check.call.startswith(rooms) for check in card.verify)


def form_for(card: Card, form: str, reviews: Reviews, chance: random.Random) -> str:
    """The form in which to ask: as wished, or, mixed, another than the last time where the card has another."""
    if form != "mixed":
        return form
    possible, last = forms_of(card), reviews.last_form(card.id)
    if last in possible:
        return possible[(possible.index(last) + 1) % len(possible)]
    return chance.choice(possible)


def _path_key(card: Card) -> tuple[int, str]:
    """The chapters of the week before an interview, then the other chapters, then the topics beyond."""
    number, path = card.chapter[:2], week()
    if number in path:
        return path.index(number), card.chapter
    return len(path) + (not number.isdigit()), card.chapter


def _new_key(card: Card, is_far: bool) -> tuple[bool, int, bool, tuple[int, str]]:
    return card.archive, LEVELS.index(card.level), not is_far, _path_key(card)


def _counts(cards: Sequence[Card]) -> dict[str, int]:
    return dict(Counter(card.topic for card in sorted(cards, key=_path_key)))


_topics = topics  # `select` has an argument of this name


def _names(given: Iterable[str] | str | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _check_names(key: str, given: Iterable[str], known: Sequence[str], language: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(say(key, language, given=name, known=", ".join(known)))
