"""Schedules when each interview card is asked again, by replaying the reviews in the progress file through FSRS.

A review is one answer to one card, with a rating. FSRS, a schedule for flash cards, is the library `fsrs` (FSRS-6 with
its default parameters, without a random spread of the dates), so the same file always gives the same dates, and no date
is stored. The progress file has one line per event. A line of kind "quiz" is one review: its key is the card's id, and
`rating`, `form`, `seconds` and `language` stand beside it, in `entry.more`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from helpers.interview.cards import RATINGS, words
from helpers.interview.steps import Steps, Tell
from helpers.learner import progress
from helpers.learner.progress import FilePath, ProgressEntry


@dataclass(frozen=True, kw_only=True)
class Review:
    """One answer to one card. when: UTC. rating: "again", "hard", "good" or "easy". form: as it was asked, or ""."""

    card_id: str
    when: datetime
    rating: str
    form: str = ""


class Reviews:
    """The reviews of each card so far. entries: lines of a progress file in its order. now: UTC.

    A time in the future comes from a clock that was wrong, so such a line counts at the time of the line before it.
    """

    def __init__(self, entries: Iterable[ProgressEntry] = (), now: datetime | None = None):
        self._by_card: dict[str, list[Review]] = {}
        self._memories: dict[str, Any] = {}  # id of a card -> its state in fsrs
        for review in sorted(_reviews(entries, now or datetime.now(UTC)), key=lambda review: review.when):
            self._by_card.setdefault(review.card_id, []).append(review)

    def __contains__(self, card_id: str) -> bool:
        return card_id in self._by_card

    def due(self, card_id: str) -> datetime | None:
        """The time at which the card is to be asked again, or None if it was never answered."""
        return self._memory(card_id).due if card_id in self else None

    def last_form(self, card_id: str) -> str:
        """The form in which it was last asked, or "" where that is not known."""
        return self._by_card[card_id][-1].form if card_id in self else ""

    def ratings(self, card_id: str) -> tuple[str, ...]:
        """The ratings of the card, oldest first."""
        return tuple(review.rating for review in self._by_card.get(card_id, ()))

    def add(self, review: Review) -> datetime:
        """Add the newest review; returns the time at which the card is due."""
        memory = self._memory(review.card_id)
        self._by_card.setdefault(review.card_id, []).append(review)
        self._memories[review.card_id] = self._reviewed(memory, review)
        return self._memories[review.card_id].due

    def _memory(self, card_id: str) -> Any:
        """The card's state in fsrs. It is computed when first needed, because most cards of a bank never are."""
        if card_id not in self._memories:
            from fsrs import Card

            memory = Card(card_id=1)  # without a number, fsrs would wait a millisecond to make one of the clock
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
        """The card's state in fsrs after one more review."""
        scheduler, ratings = self._fsrs
        return scheduler.review_card(memory, ratings[review.rating], review.when)[0]


def _reviews(entries: Iterable[ProgressEntry], now: datetime) -> Iterator[Review]:
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


class ReviewLog:
    """Reads and writes a quiz's reviews in the progress file. A failure becomes the text `note`, not an error.

    path: of the file, the learner's own if None. Reviews that could not be written stay in memory and are written
    before the next one.
    """

    def __init__(self, path: FilePath, language: str, now: Callable[[], datetime]):
        self.path, self.language, self.now = path, language, now
        self._notes: dict[str, str] = {}  # key of a failure -> sentence
        self._pending: list[tuple[Review, dict[str, Any]]] = []
        self._told = ""  # the last note that was told

    @property
    def note(self) -> str:
        """What is wrong with the file, "" where nothing is."""
        return " ".join(self._notes.values())

    def tell_note(self) -> Steps:
        """Tell what is wrong with the file, each sentence once."""
        if self.note not in ("", self._told):
            yield Tell(text=self.note, style="problem")
        self._told = self.note

    def read(self) -> Reviews:
        """All reviews of the file. Lines that cannot be read are copied aside, once."""
        try:
            stored = progress.read(self.path)
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
            self._note_failure("unreadable", error)
            return Reviews(now=self.now())
        if stored.num_skipped:
            self._set_aside()
        return Reviews(stored.entries, self.now())

    def _set_aside(self) -> None:
        """Copy the lines that cannot be read to another file, and note where."""
        try:
            aside = progress.set_aside(self.path)
        except OSError as error:
            self._note_failure("not_copied", error)
        else:
            if aside:
                self._notes["damaged"] = words("damaged", self.language, aside=aside)

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
            self._note_failure("not_written", error)

    def _note_failure(self, key: str, error: Exception) -> None:
        """Note that something went wrong with the file. key: of the sentence."""
        reason = getattr(error, "strerror", None) or str(error)
        path = self.path or _default_path(self.language)
        self._notes[key] = words(key, self.language, path=path, reason=reason)


def _default_path(language: str) -> str:
    """The learner's own progress file, for a sentence; "home" in words where there is none."""
    try:
        return str(progress.default_path())
    except RuntimeError:
        return words("home", language)
