"""Reading what was guessed: a number with or without its unit, a range, a choice, an order.

Every function raises ValueError, a sentence in the language that was chosen, where it cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from helpers.interview.answers import FACTORS, KINDS, how_far_off, read_number
from helpers.learner.guesses import Question, compare, told
from helpers.learner.guesses.far import middle
from helpers.learner.words import Words, book, language

SAYS = book("guess")
_KNOWN = {unit for units in KINDS.values() for unit in units}


def read_guess(question: Question, given: Any) -> Any:
    """What is kept of an answer: a number in the question's unit, two of them, a choice, or the list of an order."""
    reader = {"number": _number, "between": _range, "choice": _choice, "order": _order}[question.form]
    return reader(question, given)


def say_value(question: Question, value: Any, lang: str | None = None) -> str:
    """An answer as it is shown, in the language that was chosen."""
    if value is None:
        return SAYS("no_idea", lang)
    if question.form == "choice":
        return _words(question, value).in_(lang)
    if question.form == "order":
        return " → ".join(_words(question, one).in_(lang) for one in value)
    return told(value, question.unit)


def _number(question: Question, given: Any) -> float:
    """ "7", "7 bytes", "64 MB", "6.5e7", 7.0: in the unit of the question."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = repr(given)
    said, unit = str(given).strip(), _base(question.unit)
    example = f"12.3 {question.unit}".strip()
    value = read_number(_without(said, question.unit), unit, language(), example)
    return value / FACTORS[unit]


def _range(question: Question, given: Any) -> list[float]:
    parts = re.split(r"\s*(?:–|—|~| to | and |到|至|,\s+|;)\s*", given) if isinstance(given, str) else list(given)
    two = [_number(question, part) for part in (*parts, "", "")[:2]]
    if two[0] > two[1]:
        raise ValueError(SAYS("wrong_way"))
    return two


def _choice(question: Question, given: Any) -> str:
    known = {text: one.en for one in question.options for text in (one.en, one.zh)}
    if given is None:
        raise ValueError(SAYS("choose_first"))
    if given not in known:
        raise ValueError(SAYS("unknown_choice", given=given, known="; ".join(one.in_() for one in question.options)))
    return known[given]


def _order(question: Question, given: Any) -> list[str]:
    """Texts, or their numbers as shown: "3 1 2"."""
    shown = question.options
    if isinstance(given, str) and re.fullmatch(r"[\d\s,.;>→-]+", given):
        given = [int(number) for number in re.findall(r"\d+", given)]
    parts = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    texts = [shown[one - 1].en if isinstance(one, int) and 0 < one <= len(shown) else one for one in parts]
    english = {text: one.en for one in shown for text in (one.en, one.zh)}
    texts = [english.get(text) for text in texts]
    if sorted(map(str, texts)) != sorted(one.en for one in shown):
        raise ValueError(SAYS("order_first", count=len(shown)))
    return texts


def _base(unit: str) -> str:
    """The unit that a number may be spelled in: "B" of "B per parameter"; "" of one that nobody else knows, as "P"."""
    head = unit.split(" ", 1)[0].split("/")[0] if unit not in _KNOWN else unit
    return head if head in _KNOWN else ""


def _without(said: str, unit: str) -> str:
    """The number without what only this question calls a unit."""
    tail = unit.removeprefix(_base(unit))
    for ending in filter(None, (unit if not _base(unit) else "", tail)):
        if said.lower().endswith(ending.lower().strip()):
            return said[: len(said) - len(ending.strip())].strip()
    return said


def _words(question: Question, english: str) -> Words:
    return next((one for one in question.options if one.en == english), Words.of(english))


def say_off(form: str, value: Any, truth: Any) -> str:
    """How far an answer is from the truth, as a sentence; "" where there is nothing to compare."""
    off = compare(form, value, truth)
    if off is None:
        return ""
    if form == "choice":
        return SAYS("right" if off.is_right else "not_right")
    if form == "order":
        return SAYS("right" if off.is_right else "other_order")
    if form == "between":
        where = "inside" if off.is_right else "outside_low" if value[1] < truth else "outside_high"
        return SAYS(where, off=how_far_off(middle(*value), truth, language()))
    return SAYS("right") if off.is_right else SAYS("off", off=how_far_off(value, truth, language()))
