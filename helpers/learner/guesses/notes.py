"""The first answers, in the progress file. They are read anew each time, since two notebooks may be open."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from helpers.learner import progress
from helpers.learner.guesses.question import Question

UNATTENDED, SWITCH = "RANKS_UNATTENDED", "GUESS"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A learner's first answer. value: in the question's unit, a choice, a list; None for "no idea".

    is_late: it was given after the answer had been opened, so it says nothing about how well somebody guesses.
    """

    key: str
    value: Any
    form: str = "number"
    kind: str = "count"
    unit: str = ""
    text: str = ""
    is_late: bool = False


def is_unattended() -> bool:
    """Nobody is there: the default is taken, all is open, and what an author did wrong raises."""
    return os.environ.get(UNATTENDED, "") not in ("", "0")


def is_off() -> bool:
    """`GUESS=off`: nothing is asked, everything is open."""
    return os.environ.get(SWITCH, "").lower() in ("off", "0", "no")


def kept(path: str | os.PathLike | None = None) -> dict[str, Kept]:
    """Key -> the first answer. Raises OSError where the file cannot be read, RuntimeError where there is no home."""
    found: dict[str, Kept] = {}
    for entry in progress.read(path).entries:
        if entry.kind == "guess" and entry.key not in found and (one := _read(entry)) is not None:
            found[entry.key] = one
    return found


def first(key: str, path: str | os.PathLike | None = None) -> Kept | None:
    """The first answer to one question; None where there is none, and where the file cannot be read."""
    try:
        return kept(path).get(key)
    except (OSError, RuntimeError):
        return None


def note(question: Question, value: Any, *, is_late: bool = False, path: str | os.PathLike | None = None) -> str:
    """Append an answer; `value` None is "no idea". What prevents it comes back as a sentence, "" otherwise."""
    more = {"value": value, "form": question.form, "of": question.kind, "unit": question.unit}
    more |= {"text": question.text.en}
    more |= {"late": True} if is_late else {}
    return progress.record_quietly("guess", question.key, value is not None, path=path, **more) or ""


def _read(entry: progress.Entry) -> Kept | None:
    """None for a line that another program, or another version, wrote in another shape."""
    more = entry.more
    form, value = more.get("form", "number"), more.get("value")
    if not fits(form, value):
        return None
    texts = {name: str(more.get(given, "")) for name, given in (("kind", "of"), ("unit", "unit"), ("text", "text"))}
    return Kept(key=entry.key, value=value, form=form, is_late=bool(more.get("late")), **texts)


def fits(form: object, value: object) -> bool:
    """Whether this can be an answer of this form; None, "no idea", always can."""

    def number(one: object) -> bool:
        return isinstance(one, int | float) and not isinstance(one, bool)

    known = {
        "number": number,
        "between": lambda two: isinstance(two, list) and len(two) == 2 and all(map(number, two)),
        "choice": lambda one: isinstance(one, str),
        "order": lambda many: isinstance(many, list) and all(isinstance(one, str) for one in many),
    }
    return form in known and (value is None or known[form](value))
