"""Schedules when each interview card is asked again, by replaying the reviews in the progress file through FSRS.

A review is one answer to one card, with a rating. FSRS is a schedule for flash cards. `review_memory` is FSRS-6 with
its default weights and without a random spread of the dates, so the same file always gives the same dates, and no date
is stored. It is written out here because the library `fsrs`, with which a test compares it, is not there in a browser's
Python. The progress file has one line per event. A line of kind "quiz" is one review: its key is the card's id, and
`rating`, `form`, `seconds` and `language` stand beside it, in `entry.more`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import exp
from typing import Any

from helpers.interview.cards import RATINGS, words
from helpers.interview.steps import Steps, Tell
from helpers.learner import progress
from helpers.learner.progress import FilePath, ProgressEntry

WEIGHTS = (  # of FSRS-6, by default
    0.212, 1.2931, 2.3065, 8.2956, 6.4133, 0.8334, 3.0194, 0.001, 1.8722, 0.1666, 0.796,
    1.4835, 0.0614, 0.2629, 1.6483, 0.6014, 1.8729, 0.5425, 0.0912, 0.0658, 0.1542,
)  # fmt: skip
DECAY = -WEIGHTS[20]
FACTOR = 0.9 ** (1 / DECAY) - 1  # so that after `stability` days a card is recalled with a probability of 90 %
LEARNING_STEPS, RELEARNING_STEPS = (timedelta(minutes=1), timedelta(minutes=10)), (timedelta(minutes=10),)
LONGEST_INTERVAL = 36_500  # days


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
        self._memories: dict[str, Memory | None] = {}  # by the card's id
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
        self._memories[review.card_id] = review_memory(memory, review.rating, review.when)
        return self._memories[review.card_id].due

    def _memory(self, card_id: str) -> Memory | None:
        """What is left of all reviews of the card. It is computed when first needed: most cards of a bank never are."""
        if card_id not in self._memories:
            memory = None
            for review in self._by_card.get(card_id, ()):
                memory = review_memory(memory, review.rating, review.when)
            self._memories[card_id] = memory
        return self._memories[card_id]


# -- FSRS-6 ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Memory:
    """What FSRS assumes of a learner's memory of one card.

    stability: days after which the card is recalled with a probability of 90 %. difficulty: 1 to 10. steps: the short
    intervals of a card that is being learned, () of one that comes back after days; step: the index of the present one.
    """

    stability: float
    difficulty: float
    reviewed: datetime
    due: datetime
    steps: tuple[timedelta, ...]
    step: int


def review_memory(memory: Memory | None, rating: str, when: datetime) -> Memory:
    """The memory of a card after one more review; None: there was none. rating: one of RATINGS."""
    grade = RATINGS.index(rating) + 1  # 1 to 4, as in the formulas of FSRS
    if memory is None:
        stability, difficulty = WEIGHTS[grade - 1], min(max(_first_difficulty(grade), 1.0), 10.0)
        steps, step = LEARNING_STEPS, 0
    else:
        stability, difficulty = _next_stability(memory, grade, when), _next_difficulty(memory.difficulty, grade)
        steps, step = memory.steps, memory.step
    if rating == "again":
        steps, step = steps or RELEARNING_STEPS, 0
    elif rating == "easy" or rating == "good" and step + 1 >= len(steps):
        steps, step = (), 0  # it has been learned
    elif rating == "good":
        step += 1
    if not steps:
        interval = timedelta(days=_interval(stability))
    elif rating == "hard" and step == 0:
        interval = (steps[0] + steps[1]) / 2 if len(steps) > 1 else steps[0] * 1.5
    else:
        interval = steps[step]
    return Memory(
        stability=stability, difficulty=difficulty, reviewed=when, due=when + interval, steps=steps, step=step
    )


def _interval(stability: float) -> int:
    """Days until a card is recalled with a probability of 90 %."""
    days = round(stability / FACTOR * (0.9 ** (1 / DECAY) - 1))
    return min(max(days, 1), LONGEST_INTERVAL)


def _next_stability(memory: Memory, grade: int, when: datetime) -> float:
    """The stability after a review: by a short formula on the same day, later by how much was forgotten."""
    w, stability, difficulty, days = WEIGHTS, memory.stability, memory.difficulty, (when - memory.reviewed).days
    if days < 1:
        growth = exp(w[17] * (grade - 3 + w[18])) * stability ** -w[19]
        return max(stability * (max(growth, 1.0) if grade > 1 else growth), 0.001)
    recall = (1 + FACTOR * days / stability) ** DECAY  # the probability that the card was still known
    if grade == 1:
        forgotten = w[11] * difficulty ** -w[12] * ((stability + 1) ** w[13] - 1) * exp((1 - recall) * w[14])
        return max(min(forgotten, stability / exp(w[17] * w[18])), 0.001)
    factor = {2: w[15], 3: 1.0, 4: w[16]}[grade]
    growth = exp(w[8]) * (11 - difficulty) * stability ** -w[9] * (exp((1 - recall) * w[10]) - 1) * factor
    return max(stability * (1 + growth), 0.001)


def _first_difficulty(grade: int) -> float:
    return WEIGHTS[4] - exp(WEIGHTS[5] * (grade - 1)) + 1


def _next_difficulty(difficulty: float, grade: int) -> float:
    """The difficulty after a review, which moves a little towards that of a card that was easy at once."""
    moved = difficulty + (10.0 - difficulty) * -(WEIGHTS[6] * (grade - 3)) / 9.0
    return min(max(WEIGHTS[7] * _first_difficulty(4) + (1 - WEIGHTS[7]) * moved, 1.0), 10.0)


# -- the lines of the file -------------------------------------------------------------------------------------------
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
