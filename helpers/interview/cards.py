"""Defines an interview card as frozen records, and computes the numbers in its answer to check what the answer says.

A card is a question with its answer; `bank_file.py` reads cards from YAML. `Words` is a text in two languages, with the
fields en and zh. `words(key, language, **values)` are the sentences of the quiz, from helpers/learner/words/quiz.yaml.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args

from helpers.learner.words import LANGUAGES, Words, book

Level = Literal["junior", "senior", "staff"]
LEVELS = get_args(Level)
RATINGS = ("again", "hard", "good", "easy")  # the worst first, as FSRS numbers them from 1
UNITS = {  # of a printed number -> bytes, seconds, bytes per second, or a plain ratio
    "": 1.0, "x": 1.0, "×": 1.0, "%": 0.01,
    "B": 1.0, "byte": 1.0, "bytes": 1.0,
    "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "GB/s": 1e9, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "min": 60.0, "h": 3600.0,
}  # fmt: skip
CARD_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PRINTED_NUMBER = re.compile(r"(?P<number>-?[0-9][0-9,]*(?:\.(?P<decimals>[0-9]+))?)\s*(?P<unit>[^\s0-9]*)")
words = book("quiz")  # words("rated", language, rating="good")


def topic_of(chapter: str) -> str:
    """A chapter's name without its number: "ddp" for "03_ddp". Other names stay as they are."""
    return chapter.lstrip("0123456789_") or chapter


def topic_name(topic: str, language: str) -> str:
    """A topic in the reader's language: "tensor_parallel" or 张量并行. A topic without a translation stays as it is."""
    return words(f"topics.{topic}", language) if f"topics.{topic}" in words else topic


def format_span(span: timedelta, language: str) -> str:
    """The time until a card comes back, rounded: "10 min", "3 days"."""
    minutes = max(1, round(span.total_seconds() / 60))
    days = round(span.total_seconds() / 86400)
    if minutes < 60:
        return words("minutes", language, count=minutes)
    if minutes < 60 * 20:  # from 20 hours on, it is a day
        return words("hours", language, count=round(minutes / 60))
    return words("day" if days == 1 else "days", language, count=days)


# -- readers of YAML fields: each gets (value, where, name of the field) ----------------------------------------------
def read_card_id(value: Any, where: str, name: str) -> str:
    """Lower case letters, digits and hyphens."""
    if not isinstance(value, str) or not CARD_ID.fullmatch(value):
        raise ValueError(f"{where}: `id` is {value!r}; use lower case letters, digits and hyphens")
    return value


def read_call(value: Any, where: str, name: str) -> str:
    """The dotted name of a function in this package."""
    if not str(value).startswith("helpers."):
        raise ValueError(f"{where}: `verify.call` is {value!r}; it must be a dotted name under helpers.")
    return value


# -- what a card consists of -----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class NotebookCell:
    """A cell of a chapter notebook that shows the answer: the notebook's name without suffix, and a tag or cell id."""

    notebook: str
    anchor: str

    def __str__(self) -> str:
        return f"chapter {self.notebook}, cell “{self.anchor}”"


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A publication or a page of documentation that shows the answer, where no cell of the course can run it."""

    source: str
    url: str

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, kw_only=True)
class Check:
    """A number in an answer, with the call that computes it.

    call: the dotted name of a function in this package, and args, kwargs: its arguments. value: what it must return
    (bytes, seconds or a ratio, as that function says). says: how the answer prints the number, for example "64.2 MB".
    attribute: which attribute of the returned object is the number, None if the returned object is.
    """

    call: Annotated[str, read_call]
    value: float
    says: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    attribute: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The card as multiple choice: one right answer among two to four wrong ones that people really give."""

    right: Words
    wrong: tuple[Words, ...]

    def __post_init__(self):
        if not 2 <= len(self.wrong) <= 4:
            raise ValueError(f"`choices.wrong` has {len(self.wrong)} entries; write two to four")
        for language in LANGUAGES:
            texts = [text.in_(language) for text in (self.right, *self.wrong)]
            if len(set(texts)) < len(texts):
                raise ValueError(f"two of `choices` read the same in `{language}`; make each another answer")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The card as "predict the number".

    ask: the question with everything needed to compute it. says: the number as printed, with its unit, the same as in
    one of the card's checks. tolerance: relative, so 0.05 is 5 %. how: the computation, "4 × 8 × 2", or "" where the
    card's answer has it.
    """

    ask: Words
    says: str
    tolerance: float = 0.05
    how: str = ""

    def __post_init__(self):
        if not 0 <= self.tolerance < 1:
            raise ValueError(
                f"`predict.tolerance` is {self.tolerance!r}; write a share from 0 to below 1, such as 0.05"
            )


@dataclass(frozen=True, kw_only=True)
class Card:
    """One question with its answer.

    level: one of LEVELS. answer: what one says in 30 seconds; `longer` continues it up to 3 minutes. shown_by: where
    the course shows it. usual_mistake: what people often say instead. follow_ups: what an interviewer asks next.
    verify: the numbers in the answer. choices, predict: the card as multiple choice, and as "predict the number", if it
    can be asked so. archive: interviewers no longer ask this, so new cards of this kind come last. where: file, line
    and id, for errors.
    """

    id: Annotated[str, read_card_id]
    chapter: str
    level: Level
    question: Words
    answer: Words
    shown_by: NotebookCell | Publication
    longer: Words | None = None
    usual_mistake: Words | None = None
    follow_ups: tuple[Words, ...] = ()
    verify: tuple[Check, ...] = ()
    choices: Choices | None = None
    predict: Prediction | None = None
    archive: bool = False
    where: str = ""

    @property
    def topic(self) -> str:
        """The name of its file without the number, such as "ddp" or "communication", by which cards are selected."""
        return topic_of(self.chapter)

    def full_answer(self, language: str) -> str:
        """The answer and its longer form in one string; `language` is "en" or "zh"."""
        texts = [self.answer] + ([self.longer] if self.longer else [])
        return "\n\n".join(text.in_(language) for text in texts)


# -- whether its numbers are right -----------------------------------------------------------------------------------
def problems(card: Card) -> list[str]:
    """Where the card's numbers disagree with its text or its functions, one sentence each; [] when all is right."""
    sentences = [sentence for check in card.verify for sentence in check_problems(card, check)]
    if card.predict and card.predict.how and not rounds_to(card.predict.says, evaluate(card.predict.how)):
        sentences.append(f"{card.where}: `predict.how` is {card.predict.how!r}, which is not {card.predict.says!r}")
    return sentences


def check_problems(card: Card, check: Check) -> list[str]:
    """Where one check disagrees: its call must return `value`, `says` must round it, and both answers must print it."""
    sentences = []
    value = compute(check)
    if abs(value - check.value) > 1e-9 * max(abs(value), abs(check.value)):
        sentences.append(f"{card.where}: {check.call} returns {value!r}, the card expects {check.value!r}")
    if not rounds_to(check.says, value):
        sentences.append(f"{card.where}: the text says {check.says!r}, {check.call} returns {value!r}")
    for language in LANGUAGES:
        if not has_number(check.says, card.full_answer(language)):
            sentences.append(f"{card.where}: the answer in `{language}` does not contain {check.says!r}")
    return sentences


def compute(check: Check) -> Any:
    """What the check's call returns. Raises ValueError when the dotted name does not lead to a function."""
    function = function_named(check.call)
    result = function(*map(build, check.args), **{key: build(value) for key, value in check.kwargs.items()})
    return getattr(result, check.attribute) if check.attribute else result


def function_named(dotted: str) -> Callable[..., Any]:
    """The function of a dotted name such as "helpers.quantities.costs.seconds". Raises ValueError for none."""
    module_name, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"`{dotted}` cannot be called: {error}; write the full dotted name of a function") from None


def build(argument: Any) -> Any:
    """An argument as the call wants it: `{make: helpers.specs.Link, latency: …}` becomes the object, the rest stays."""
    if isinstance(argument, list):
        return [build(item) for item in argument]
    if not isinstance(argument, dict):
        return argument
    values = {key: build(value) for key, value in argument.items()}
    if "make" not in values:
        return values
    return function_named(values.pop("make"))(**values)


def evaluate(how: str) -> float:
    """The value of "2 × 3/4 × 1,000,000 × 4 B", in bytes, seconds or as a plain number. Raises ValueError otherwise."""
    match = re.fullmatch(r"([0-9.,+\-×/() ]+?)\s*([A-Za-zµ%/]*)", how)
    if not match or match[2] not in UNITS:
        raise ValueError(f"`how` is {how!r}; write numbers, + - × / and brackets, and at the end a unit")
    return eval(match[1].replace(",", "").replace("×", "*")) * UNITS[match[2]]


def rounds_to(printed: str, value: float) -> bool:
    """Whether a printed number such as "64.2 MB" is `value` rounded to the digits that it shows."""
    match = PRINTED_NUMBER.fullmatch(printed.strip())
    if not match or match["unit"] not in UNITS:
        raise ValueError(f"`says` is {printed!r}; write a number and a unit out of {', '.join(filter(None, UNITS))}")
    half_digit = 0.5 * 10.0 ** -len(match["decimals"] or "")
    return abs(float(match["number"].replace(",", "")) - value / UNITS[match["unit"]]) <= half_digit * (1 + 1e-9)


def has_number(printed: str, text: str) -> bool:
    """Whether the printed number stands in the text on its own: "4 MB" does not stand in "64 MB"."""
    return re.search(r"(?<![0-9.,])" + re.escape(printed.strip()) + r"(?![0-9A-Za-z]|[.,][0-9])", text) is not None
