"""What this kernel knows beside the progress file: answers that could not be written, results that were opened, and who
waits for an answer: a reveal opens by itself when its guess is answered further up."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from helpers.learner import progress
from helpers.learner.guesses import box
from helpers.learner.guesses.notes import Kept, first, note
from helpers.learner.guesses.question import Question


class Listener(Protocol):
    """Whoever shows a guess or its result."""

    def refresh(self) -> None: ...


class Room:
    """The answers of one progress file, as one kernel sees them."""

    def __init__(self, path: Path | None):
        self._path = path
        self._unwritten: dict[str, Kept] = {}
        self._opened: set[str] = set()
        self._has_told_of_box = False
        self._listeners: dict[str, weakref.WeakSet[Any]] = {}
        self.asked: dict[str, Question] = {}

    def answer(self, key: str) -> Kept | None:
        """The first answer."""
        return first(key, self._path) or self._unwritten.get(key)

    def take(self, question: Question, value: Any) -> tuple[Kept, str, str]:
        """Keep an answer if it is the first. Returns the first one; a sentence where it could not be written; and the
        reason why it could not be laid into the class's box, told once.
        """
        problem = reason = ""
        if (kept := self.answer(question.key)) is None:
            is_late = question.key in self._opened
            problem = note(question, value, is_late=is_late, path=self._path)
            reason = "" if is_late else self._into_box(question, value)
            names = {name: getattr(question, name) for name in ("key", "form", "kind", "unit")}
            kept = Kept(value=value, text=question.text.en, is_late=is_late, **names)
            self._unwritten[question.key] = kept
        self._tell(question.key)
        return kept, problem, reason

    def _into_box(self, question: Question, value: Any) -> str:
        reason = box.put(question, value)
        is_new, self._has_told_of_box = (
            bool(reason) and not self._has_told_of_box,
            self._has_told_of_box or bool(reason),
        )
        return reason if is_new else ""

    def is_opened(self, key: str) -> bool:
        """Whether the result was looked at in this kernel."""
        return key in self._opened

    def open(self, key: str) -> None:
        """The result was looked at: what is answered from now on is no guess."""
        self._opened.add(key)
        self._tell(key)

    def listen(self, key: str, listener: Listener) -> None:
        """Call `refresh` whenever this question is answered, for as long as somebody else holds the listener."""
        self._listeners.setdefault(key, weakref.WeakSet()).add(listener)

    def _tell(self, key: str) -> None:
        for listener in list(self._listeners.get(key, ())):
            listener.refresh()


def room(path: str | os.PathLike | None = None) -> Room:
    """The one room of this file in this kernel; without a path of the one in the learner's home."""
    try:
        return _room(Path(path or progress.default_path()))
    except RuntimeError:  # there is no home: what is answered is kept as long as the kernel
        return _room(None)


_room: Callable[[Path | None], Room] = cache(Room)
