"""When a card comes back: FSRS over the progress file, which is replayed and never stored a second time.

The scheduler is the library `fsrs` (FSRS-6, its default parameters, no random spread of the dates), so that the same
file always gives the same dates. One line of kind "quiz" is one review: key = the card's id; `rating`, `form`,
`seconds` and `language` beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from helpers.interview.words import RATINGS, say
from helpers.learner import progress
from helpers.learner.progress import Entry


@dataclass(frozen=True, kw_only=True)
class Review:
    """One answer to one card. when: UTC. rating: "again", "hard", "good" or "easy". form: as it was asked, or ""."""

    card_id: str
    when: datetime
    rating: str
    form: str = ""


class Reviews:
    """What was answered so far, by card id. `entries`: lines of a progress file in its order; `now`: UTC.

    A time in the future comes from a clock that was wrong: the line counts at the time of the line before it.
    """

    def __init__(self, entries: Iterable[Entry] = (), now: datetime | None = None):
        self._by_card: dict[str, list[Review]] = {}
        self._memories: dict[str, Any] = {}
        for review in sorted(_reviews(entries, now or datetime.now(UTC)), key=lambda review: review.when):
            self._by_card.setdefault(review.card_id, []).append(review)

    def __contains__(self, card_id: str) -> bool:
        return card_id in self._by_card

    def due(self, card_id: str) -> datetime | None:
        """When the card is to be asked again, or None for a card that was never answered."""
        return self._memory(card_id).due if card_id in self else None

    def last_form(self, card_id: str) -> str:
        """The form in which it was last asked, or "" where that is not known."""
        return self._by_card[card_id][-1].form if card_id in self else ""

    def ratings(self, card_id: str) -> tuple[str, ...]:
        """How it was answered each time, oldest first."""
        return tuple(review.rating for review in self._by_card.get(card_id, ()))

    def add(self, review: Review) -> datetime:
        """Count one more answer, the newest; returns when the card is due."""
        memory = self._memory(review.card_id)
        self._by_card.setdefault(review.card_id, []).append(review)
        self._memories[review.card_id] = self._reviewed(memory, review)
        return self._memories[review.card_id].due

    def _memory(self, card_id: str) -> Any:
        """The card's fsrs state. Replayed when first asked for: most cards of a bank are not."""
        if card_id not in self._memories:
            from fsrs import Card

            memory = Card(card_id=1)  # a number of its own would be the clock's, after a pause of a millisecond
            for review in self._by_card.get(card_id, ()):
                memory = self._reviewed(memory, review)
            self._memories[card_id] = memory
        return self._memories[card_id]

    @cached_property
    def _fsrs(self) -> tuple[Any, dict[str, Any]]:
        """The scheduler, and its ratings by name."""
        from fsrs import Rating, Scheduler

        return Scheduler(enable_fuzzing=False), {name: Rating(number) for number, name in enumerate(RATINGS, start=1)}

    def _reviewed(self, memory: Any, review: Review) -> Any:
        scheduler, ratings = self._fsrs
        return scheduler.review_card(memory, ratings[review.rating], review.when)[0]


def _reviews(entries: Iterable[Entry], now: datetime) -> Iterator[Review]:
    """The lines of kind "quiz" as reviews; a time in the future becomes the last believable one before it."""
    lines = [(entry, _utc(entry.time)) for entry in entries if entry.kind == "quiz"]
    believable = [when for _, when in lines if when and when <= now]
    last = believable[0] if believable else now
    for entry, when in lines:
        last = when if when and when <= now else last
        rating, form = entry.more.get("rating"), entry.more.get("form")
        if rating not in RATINGS:
            rating = "good" if entry.passed else "again"
        yield Review(card_id=entry.key, when=last, rating=rating, form=form if isinstance(form, str) else "")


def _utc(text: str) -> datetime | None:
    """The instant in UTC; None for one at the end of the calendar that has no UTC. Without a zone it is UTC."""
    instant = datetime.fromisoformat(text)
    with suppress(OverflowError):
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    return None


class Journal:
    """The progress file as a quiz uses it: whatever goes wrong becomes `note`, a sentence, and the quiz goes on.

    What could not be written stays in memory and is written with the next answer that can be.
    """

    def __init__(self, path: str | os.PathLike | None, language: str, now: Callable[[], datetime]):
        self.path, self.language, self.now = path, language, now
        self._notes: dict[str, str] = {}
        self._pending: list[tuple[Review, dict[str, Any]]] = []

    @property
    def note(self) -> str:
        """What is wrong with the file, "" where nothing is."""
        return " ".join(self._notes.values())

    def read(self) -> Reviews:
        """All reviews of the file. Lines that cannot be read are copied aside, once."""
        try:
            found = progress.read(self.path)
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
            self._tell("unreadable", error)
            return Reviews(now=self.now())
        if found.num_skipped:
            self._set_aside()
        return Reviews(found.entries, self.now())

    def _set_aside(self) -> None:
        try:
            aside = progress.set_aside(self.path)
        except OSError as error:
            self._tell("not_copied", error)
        else:
            if aside:
                self._notes["damaged"] = say("damaged", self.language, aside=aside)

    def write(self, review: Review, **more: Any) -> None:
        """Append one review, after those that could not be written before."""
        self._pending.append((review, {"rating": review.rating, "form": review.form, **more}))
        try:
            while self._pending:
                oldest, fields = self._pending[0]
                passed = oldest.rating != "again"
                progress.record("quiz", oldest.card_id, passed, path=self.path, when=oldest.when, **fields)
                self._pending.pop(0)
            self._notes.pop("not_written", None)
        except (OSError, RuntimeError) as error:
            self._tell("not_written", error)

    def _tell(self, key: str, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        path = self.path or _default_path(self.language)
        self._notes[key] = say(key, self.language, path=path, reason=reason)


def _default_path(language: str) -> str:
    try:
        return str(progress.default_path())
    except RuntimeError:
        return say("home", language)
