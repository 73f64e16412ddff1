"""Stores the learner's guesses: first answers in the progress file, the state of this kernel, a classroom's folder.

A chapter asks for a guess before it shows a result. `kernel_guesses()` is the object through which the widgets
`helpers.widgets.guess` and `reveal` store and read answers. A question has a key ("08.stage2"), a form (a number, a
range "between" two numbers, a "choice", an "order") and a kind (what it is about: "memory", "traffic", "time",
"count"). A "class" is a group of learners with a teacher. If the environment variable GUESS_BOX names a folder that the
class shares, each guess is also written there as one small file that does not say whose it is, and the teacher's
notebook shows the votes.
"""

from __future__ import annotations

import json
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from helpers.learner import progress
from helpers.learner.guesses.questions import Question
from helpers.learner.progress import FilePath

UNATTENDED_VARIABLE, GUESS_VARIABLE, BOX_VARIABLE = "RANKS_UNATTENDED", "GUESS", "GUESS_BOX"  # of the environment
DAY = 86_400  # seconds
LARGEST_FILE = 10_000  # bytes; a larger file in the class's folder is no guess and is not read


# -- the progress file -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class StoredGuess:
    """A learner's first answer."""

    key: str
    value: Any  # a number in the question's unit, a choice, a list (of a range or an order), or None for "no idea"
    form: str = "number"  # see the top of this file
    kind: str = "count"
    unit: str = ""
    text: str = ""  # of the question
    is_late: bool = False  # given after the result had been opened, so it does not show how well somebody guesses


def is_unattended() -> bool:
    """Whether RANKS_UNATTENDED is set, as when a program runs the notebooks.

    Then defaults are taken as answers, every result is open, and a mistake in a question raises an error.
    """
    return os.environ.get(UNATTENDED_VARIABLE, "") not in ("", "0")


def is_off() -> bool:
    """Whether GUESS=off is set: nothing is asked, and every result is open."""
    return os.environ.get(GUESS_VARIABLE, "").lower() in ("off", "0", "no")


def stored_guesses(path: FilePath = None) -> dict[str, StoredGuess]:
    """The first answer to each key, read anew each time because two notebooks may be open.

    Raises OSError where the file cannot be read, RuntimeError where there is no home.
    """
    guesses: dict[str, StoredGuess] = {}
    for entry in progress.read(path).entries:
        if entry.kind == "guess" and entry.key not in guesses and (one := _read_entry(entry)) is not None:
            guesses[entry.key] = one
    return guesses


def first_guess(key: str, path: FilePath = None) -> StoredGuess | None:
    """The first answer to one question; None where there is none, and where the file cannot be read."""
    try:
        return stored_guesses(path).get(key)
    except (OSError, RuntimeError):
        return None


def store_guess(question: Question, value: Any, *, is_late: bool = False, path: FilePath = None) -> str:
    """Append an answer; `value` None is "no idea". Returns "", or a sentence where it could not be written."""
    # "of" is the kind of the question, because the line of the progress file has a "kind" of its own, "guess".
    more = {"value": value, "form": question.form, "of": question.kind, "unit": question.unit, "text": question.text.en}
    more |= {"late": True} if is_late else {}
    # The third argument is the line's field `passed`, which for a guess says whether the learner had an idea.
    return progress.record_quietly("guess", question.key, value is not None, path=path, **more) or ""


def _read_entry(entry: progress.ProgressEntry) -> StoredGuess | None:
    """None for a line that another program, or another version, wrote in another shape."""
    more = entry.more
    form, value = more.get("form", "number"), more.get("value")
    if not is_possible(form, value):
        return None
    # The kind of the question is stored as "of", see store_guess.
    texts = {name: str(more.get(key, "")) for name, key in (("kind", "of"), ("unit", "unit"), ("text", "text"))}
    return StoredGuess(key=entry.key, value=value, form=form, is_late=bool(more.get("late")), **texts)


def is_possible(form: object, value: object) -> bool:
    """Whether this can be an answer of this form; None, "no idea", always can."""

    def is_number(one: object) -> bool:
        return isinstance(one, int | float) and not isinstance(one, bool)

    known = {
        "number": is_number,
        "between": lambda two: isinstance(two, list) and len(two) == 2 and all(map(is_number, two)),
        "choice": lambda one: isinstance(one, str),
        "order": lambda many: isinstance(many, list) and all(isinstance(one, str) for one in many),
    }
    return form in known and (value is None or known[form](value))


# -- the folder that a class of learners shares ----------------------------------------------------------------------
def class_folder() -> Path | None:
    """The folder that the class shares, None where GUESS_BOX names none."""
    name = os.environ.get(BOX_VARIABLE, "")
    return Path(name).expanduser() if name else None


def share_guess(question: Question, value: Any) -> str:
    """Write an answer into the folder of the class, if there is one. Returns "" or the reason why that failed.

    The file has a random name and the beginning of the day as its time, so it does not tell who wrote it. It is written
    under another name first, so no reader sees half of it.
    """
    if (folder := class_folder()) is None:
        return ""
    entry = {"key": question.key, "form": question.form, "unit": question.unit, "value": value}
    name = secrets.token_hex(8)
    file, partial = folder / f"{name}.json", folder / f"{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(entry, ensure_ascii=False) + "\n", encoding="utf-8")
        day = time.time() // DAY * DAY
        os.utime(partial, (day, day))
        partial.replace(file)
    except OSError as error:
        with suppress(OSError):  # a file that stays ends in .part and is never read
            partial.unlink(missing_ok=True)
        return error.strerror or str(error)
    return ""


def class_guesses(key: str) -> list[Any]:
    """The class's answers to one question, with None for "no idea"; [] without a folder. Damaged files are skipped."""
    folder = class_folder()
    return [value for one, value in _class_entries(folder) if one == key] if folder else []


def _class_entries(folder: Path) -> Iterator[tuple[str, Any]]:
    """(key, value) of every guess in the folder of a class."""
    for path in sorted(folder.glob("*.json")):
        try:
            if path.stat().st_size > LARGEST_FILE:
                continue
            entry = json.loads(path.read_text(encoding="utf-8"))
            key, form, value = entry["key"], entry["form"], entry["value"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if is_possible(form, value):
            yield key, value


# -- this kernel -----------------------------------------------------------------------------------------------------
class GuessListener(Protocol):
    """A view that shows a guess or its result."""

    def refresh(self) -> None: ...  # called when the question was answered or its result was opened


class KernelGuesses:
    """The guesses of one progress file as one kernel knows them.

    Besides the file, it knows the answers of this kernel, also those that could not be written, which results were
    opened, and which views wait for an answer: a result opens by itself when its guess is answered further up in the
    notebook.
    """

    def __init__(self, path: Path | None):
        # The dicts and the set below have keys of questions.
        self._path = path  # None: there is no home, so nothing can be written
        self._given_here: dict[str, StoredGuess] = {}  # answers given in this kernel, for when the file lacks them
        self._opened: set[str] = set()
        self._has_reported_folder = False  # whether the learner was told that the class's folder cannot be written
        self._listeners: dict[str, weakref.WeakSet[Any]] = {}
        self.asked: dict[str, Question] = {}  # the questions of this notebook; `helpers.widgets.guess` adds them

    def answer(self, key: str) -> StoredGuess | None:
        """The first answer, None where there is none."""
        return first_guess(key, self._path) or self._given_here.get(key)

    def take(self, question: Question, value: Any) -> tuple[StoredGuess, str, str]:
        """Store an answer if it is the first.

        Returns the first answer; a sentence where it could not be written, or ""; and the reason why it could not be
        shared with the class, or "", which is returned only once.
        """
        problem = reason = ""
        if (guess := self.answer(question.key)) is None:
            is_late = question.key in self._opened
            problem = store_guess(question, value, is_late=is_late, path=self._path)
            reason = "" if is_late else self._share(question, value)  # who has seen the result has no vote
            names = {name: getattr(question, name) for name in ("key", "form", "kind", "unit")}
            guess = StoredGuess(value=value, text=question.text.en, is_late=is_late, **names)
            self._given_here[question.key] = guess  # whether it was written or not; `answer` prefers the file's
        self._refresh(question.key)
        return guess, problem, reason

    def _share(self, question: Question, value: Any) -> str:
        """Write the answer for the class. The reason why that failed, but only the first time; else ""."""
        reason = share_guess(question, value)
        if not reason or self._has_reported_folder:
            return ""
        self._has_reported_folder = True
        return reason

    def is_opened(self, key: str) -> bool:
        """Whether the result was opened in this kernel."""
        return key in self._opened

    def open(self, key: str) -> None:
        """Note that the result was opened: an answer after this counts as late."""
        self._opened.add(key)
        self._refresh(key)

    def listen(self, key: str, listener: GuessListener) -> None:
        """Call the listener's `refresh` whenever this question is answered or its result is opened.

        Only a weak reference to it is stored, so that a view that is shown no more can be freed.
        """
        self._listeners.setdefault(key, weakref.WeakSet()).add(listener)

    def _refresh(self, key: str) -> None:
        for listener in list(self._listeners.get(key, ())):
            listener.refresh()


def kernel_guesses(path: FilePath = None) -> KernelGuesses:
    """The one `KernelGuesses` of this file in this kernel; without a path, of the progress file in the home."""
    try:
        return _kernel_guesses(Path(path or progress.default_path()))
    except RuntimeError:  # there is no home, so answers last only as long as the kernel
        return _kernel_guesses(None)


# One KernelGuesses for each path.
_kernel_guesses: Callable[[Path | None], KernelGuesses] = cache(KernelGuesses)
