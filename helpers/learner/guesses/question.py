"""One question as plain data, whatever asks it."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.learner.guesses.answers import Answer, Declared, declared
from helpers.learner.words import Words

FORMS = ("number", "between", "choice", "order")
KINDS = ("memory", "traffic", "time", "count")
TIMES = ("s", "ms", "µs", "us", "ns", "min", "h")
LONGEST = 60  # characters of a key made from a text


@dataclass(frozen=True, kw_only=True)
class Question:
    """form: one of FORMS. kind: one of KINDS. options: the choices, or what is to be put in order, as shown.

    truth: the declared answer; None where none is declared. wrong: what is wrong with how the question was asked, "".
    """

    key: str
    text: Words
    form: str = "number"
    kind: str = "count"
    unit: str = ""
    options: tuple[Words, ...] = ()
    truth: Answer | None = None
    wrong: str = ""


def make_question(
    text: str,
    *,
    unit: str = "",
    kind: str = "",
    key: str = "",
    choices: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    between: bool = False,
) -> Question:
    """The question that such a call asks, with what its chapter declares. Never raises: `wrong` says what is wrong."""
    key = key or key_of(text)
    known, broken = _declared(key)
    form = "choice" if choices else "order" if order else "between" if between else "number"
    options = tuple(map(str, choices or order or ()))
    wrong = broken or _wrong(key, kind, form, options, known and known.answer)
    chinese = known.zh_choices if known and len(known.zh_choices) == len(options) else options
    words = [Words(en=en, zh=zh) for en, zh in zip(options, chinese, strict=True)]
    if form == "order":
        random.Random(key).shuffle(words)
    return Question(
        key=key,
        text=Words(en=text, zh=(known and known.zh) or text),
        form=form,
        kind=kind if kind in KINDS else _kind_of(unit),
        unit=unit,
        options=tuple(words),
        truth=None if known is None or wrong else known.answer,
        wrong=wrong,
    )


def key_of(text: str) -> str:
    """A key from the words of a question; what has no Latin letters, or many, gets a few digits of its own."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(slug) <= LONGEST and slug and text.isascii():
        return slug
    return f"{slug[:LONGEST].strip('-') or 'guess'}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _declared(key: str) -> tuple[Declared | None, str]:
    """What is declared, and what is wrong with the files."""
    try:
        return declared(key), ""
    except ValueError as error:
        return None, str(error)


def _kind_of(unit: str) -> str:
    return "memory" if re.match(r"([kKMGT]i?)?B\b", unit) else "time" if unit in TIMES else "count"


def _wrong(key: str, kind: str, form: str, options: Sequence[str], answer: Answer | None) -> str:
    """What an author should mend, or ""."""
    if kind and kind not in KINDS:
        return f"{key}: the kind is {kind!r}; expected one of {', '.join(KINDS)}"
    if form == "choice" and (len(options) < 2 or len(set(options)) < len(options)):
        return f"{key}: the choices are {', '.join(options)}; give two or more, each once"
    if form == "order" and len(set(options)) < 2:
        return f"{key}: there is one thing to put in order; give two or more"
    if answer is None:
        return ""
    fits = {
        "choice": answer in options,
        "order": sorted(options) == sorted(answer if isinstance(answer, tuple) else ()),
    }
    if not fits.get(form, isinstance(answer, float)):
        return f"{key}: the declared answer {answer!r} is none that can be given here"
    if form == "order" and tuple(options) != answer:
        return f"{key}: the declared order is {', '.join(answer)}, and the call has another"
    return ""
